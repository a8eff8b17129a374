"""Tables of one database that are altered while the snapshot of a relay reads them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from relay.avro.registry import open_schemas
from relay.config import load
from relay.services.mariadb import PASSWORD, USER
from tests.command_line import run_until_caught_up
from tests.faults.copied import copied, seen
from tests.faults.harness import Relay
from tests.faults.scripted_relay import start_relay
from tests.mysql.reading import NUMBERS
from tests.topic_changes import read_changes

_VALUES = ", concat('before ', n)"


class Altered:
    """Tables of one database, and a relay whose snapshot reads them slowly."""

    def __init__(self, folder: Path, servers: str, server: Any, name: str, **source: Any) -> None:
        self.name, self.server = name, server
        self.path = folder / "relay.yaml"
        kafka = {"bootstrap_servers": servers, "partitions": 2, "producer": {"transaction.timeout.ms": 2000}}
        entry: dict[str, Any] = {"name": "s", "type": "mysql", "database": name, "user": USER, "password": PASSWORD}
        entry |= {"shards": {"-": [server.address]}, "snapshot": "initial", "snapshot_rows_per_second": 100}
        self.path.write_text(yaml.safe_dump({"name": name, "kafka": kafka, "sources": [entry | source]}))
        self.execute(f"create database {name}")
        self.relays: list[Relay] = []

    def configure(self, **source: Any) -> None:
        content = yaml.safe_load(self.path.read_text())
        content["sources"][0] |= {name: value for name, value in source.items() if value is not None}
        self.path.write_text(yaml.safe_dump(content))

    def execute(self, *statements: str) -> Any:
        with closing(self.server.connect()) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
                if statement.startswith("create database"):
                    cursor.execute(f"use {self.name}")
            return cursor.fetchall()

    def within(self, *statements: str) -> Any:
        return self.execute(f"use {self.name}", *statements)

    def fill(self, table: str, rows: int) -> None:
        self.within(
            f"create table {table} (id int primary key, v varchar(40))",
            f"insert {table} {NUMBERS.format(rows, _VALUES)}",
        )

    def rows(self, table: str) -> dict[str, str]:
        if not self.within(f"show tables like '{table}'"):
            return {}
        return {str(key): v for key, v in self.within(f"select id, v from {table}")}

    def start(self, *arguments: str) -> Relay:
        self.relays.append(start_relay(self.path, *arguments))
        return self.relays[-1]

    def catch_up(self) -> None:
        run_until_caught_up(self.path)

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
