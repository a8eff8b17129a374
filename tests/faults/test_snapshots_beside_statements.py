"""Statements on tables while a snapshot reads them, before their first row and between two chunks: I1, I7, I10."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay.avro.registry import open_schemas
from relay.config import load
from relay.demo.truth import read_changes
from relay.services.sql_server import PASSWORD, USER
from tests.faults.copied import copied, seen
from tests.faults.harness import Relay
from tests.faults.scripted_relay import start_relay
from tests.faults.world import wait_for
from tests.mysql.reading import NUMBERS
from tests.waiting import wait_until

pytestmark = pytest.mark.services

ROWS = 240
VALUES = ", concat('before ', n)"

STATEMENTS = {
    "emptied": ["truncate table {0}"],
    "refilled": ["truncate table {0}", "insert {0} values (7, 'after'), (230, 'after'), (500, 'after')"],
    "dropped": ["drop table {0}"],
    "made_anew": [
        "drop table {0}",
        "create table {0} (more int, v varchar(40), id bigint primary key)",
        "insert {0} (id, v) values (7, 'after'), (230, 'after')",
    ],
    "renamed": ["rename table {0} to {0}_new"],
    "exchanged": [
        "create table {0}_new like {0}",
        "insert {0}_new select id + 200, concat('after ', id) from {0}",
        "rename table {0} to {0}_old, {0}_new to {0}",
    ],
    "retyped": ["alter table {0} modify id varchar(9)", "update {0} set v = 'after' where id = '7'"],
    "widened": ["alter table {0} add more int default 5 first", "delete from {0} where id in (7, 230)"],
}
"""What happens to a table of this name."""


class Altered:
    """Tables of one database, and a relay whose snapshot reads them slowly."""

    def __init__(self, folder: Path, servers: str, server: Any, name: str, **source: Any) -> None:
        self.name, self.server = name, server
        self.path = folder / "relay.yaml"
        kafka = {"bootstrap_servers": servers, "partitions": 2, "producer": {"transaction.timeout.ms": 2000}}
        entry = {"name": "s", "type": "mysql", "database": name, "user": USER, "password": PASSWORD}
        entry |= {"shards": {"-": [server.address]}, "snapshot": "initial", "snapshot_rows_per_second": 100}
        self.path.write_text(yaml.safe_dump({"name": name, "kafka": kafka, "sources": [entry | source]}))
        self.execute(f"create database {name}")
        self.relays: list[Relay] = []

    def execute(self, *statements: str) -> Any:
        with closing(self.server.connect()) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
                if statement.startswith("create database"):
                    cursor.execute(f"use {self.name}")
            return cursor.fetchall()

    def within(self, *statements: str) -> Any:
        return self.execute(f"use {self.name}", *statements)

    def fill(self, table: str, rows: int = ROWS) -> None:
        self.within(
            f"create table {table} (id int primary key, v varchar(40))",
            f"insert {table} {NUMBERS.format(rows, VALUES)}",
        )

    def rows(self, table: str) -> dict[str, str]:
        if not self.within(f"show tables like '{table}'"):
            return {}
        return {str(key): v for key, v in self.within(f"select id, v from {table}")}

    def start(self, *arguments: str) -> Relay:
        self.relays.append(start_relay(self.path, *arguments))
        return self.relays[-1]

    def catch_up(self) -> None:
        relay = self.start("--until-caught-up")
        assert relay.wait(120) == 0, relay.log()

    def changes(self, table: str) -> list[tuple[int, int, dict[str, Any]]]:
        config = load(self.path)
        with closing(open_schemas(config)) as schemas:
            return sorted(read_changes(config.kafka.client(), config.topic(table), schemas), key=lambda each: each[:2])

    def is_read(self, table: str) -> bool | None:
        return any(change["operation"] == "READ" and change["key"] for *_, change in self.changes(table)) or None

    def copy(self, table: str) -> dict[str, str]:
        return copied(
            seen(
                partition,
                change,
                item=str(change["key"]["id"]) if change["key"] else None,
                new=change["new"]["v"] if change["new"] else None,
            )
            for partition, _, change in self.changes(table)
        )

    def tables(self) -> list[str]:
        return [table for (table,) in self.within("show tables")]

    def close(self) -> None:
        for relay in self.relays:
            relay.kill()
        self.execute(f"drop database {self.name}")


@pytest.fixture
def altered(tmp_path: Path, kafka: Any, mariadb: Any, unique: str) -> Iterator[Altered]:
    world = Altered(tmp_path, kafka.bootstrap_servers, mariadb, unique)
    yield world
    world.close()


def test_copies_equal_the_tables_whatever_is_done_to_them_during_their_snapshot(altered: Altered) -> None:
    """I1, I7: rows that were read before disappear, and rows that came by another way than changes are read."""
    for what in STATEMENTS:
        altered.fill(f"{what}_now")
        altered.fill(f"{what}_first", ROWS // 10)  # the largest are read first
    relay = altered.start("--until-caught-up")
    wait_for(relay, "starts, about")
    for what, statements in STATEMENTS.items():
        altered.within(*(each.format(f"{what}_first") for each in statements))
    for what, statements in STATEMENTS.items():
        wait_until(lambda table=f"{what}_now": altered.is_read(table), 120)  # type: ignore[misc]
        altered.within(*(each.format(f"{what}_now") for each in statements))
    assert relay.wait(240) == 0, relay.log()
    altered.catch_up()
    found = {name: altered.copy(name) for name in (*altered.tables(), "dropped_now", "dropped_first", "renamed_now")}
    assert [name for name, rows in found.items() if rows != altered.rows(name)] == []
    assert relay.has_logged("emptied_now, ")
