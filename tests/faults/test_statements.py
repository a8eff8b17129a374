"""Statements on ``<name>.ddl``: each once and in order with the rows around it, whatever is killed: I1, I2, I3, I8."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay.avro.registry import open_schemas
from relay.config import load
from relay.keyrange import shard_range
from relay.mysql_dialect.catalog import ask
from relay.services.mariadb import PASSWORD, USER, MariaDB
from relay.services.vitess import Vitess, database
from relay.token import EventToken, Order, compare
from relay.vitess.vindex import keyspace_id
from tests import needs
from tests.faults.harness import Relay, relay_command
from tests.faults.scripted_relay import tail_topic
from tests.mysql.server import MySQL
from tests.topic_changes import read_changes
from tests.waiting import wait_until

pytestmark = pytest.mark.services

DATABASE = "shop"
_VSCHEMA = {
    "sharded": True,
    "vindexes": {"hash": {"type": "hash"}},
    "tables": {"items": {"column_vindexes": [{"column": "id", "name": "hash"}]}},
}


def statements(chance: random.Random, count: int) -> Iterator[str]:
    """Yield statements about the table ``items (id bigint primary key, v varchar(20))``, which keep these columns."""
    columns: dict[str, str] = {}
    for n in range(count):
        at = chance.choice(["", " first", " after id"])
        kind = chance.choice(["int", "varchar(9) default 'a,b'", "decimal(9,2)", "datetime(3)", "bigint unsigned"])
        column = chance.choice(list(columns)) if columns else ""
        if (what := chance.randrange(6)) == 0 and column:
            del columns[column]
            yield f"alter table items drop column {column}"
        elif what == 1 and column:
            columns[f"r{n}"] = kind = columns.pop(column)
            yield f"ALTER TABLE `items` /* {n} */ CHANGE {column} `r{n}` {kind}{at}, comment = 'rename to x'"
        elif what == 2:
            yield f"alter table items comment '{n}'"
        elif what == 3:
            yield f"create index i{n} on items (v)"
        else:
            columns[f"c{n}"] = kind
            yield f"-- number {n}\nalter table items add column (c{n} {kind}), add key k{n} (v, id)"


class Stage:
    """A table ``items`` in some databases, each a shard, and the relay that is killed and started again.

    ``connect``: to the database of a shard. ``waits``: before each statement, until the rows before it are published:
    the columns that they had are not known later.
    """

    def __init__(
        self,
        folder: Path,
        servers: str,
        name: str,
        source: dict[str, Any],
        connect: Callable[[str], Any],
        *,
        waits: bool = False,
    ) -> None:
        self.folder, self.connect, self._waits = folder, connect, waits
        self.path = folder / "relay.yaml"
        kafka = {"bootstrap_servers": servers, "producer": {"transaction.timeout.ms": 2000}}
        self.path.write_text(yaml.safe_dump({"name": name, "kafka": kafka, "sources": [source]}))
        self.relays: list[Relay] = []
        # By shard: the statements, and the columns of the table before and after each.
        self.executed: dict[str, list[tuple[str, Any, Any]]] = defaultdict(list)
        # By shard: the ids that were inserted, with the number of statements before them.
        self.inserted: dict[str, dict[int, int]] = defaultdict(dict)

    def start(self, *arguments: str) -> Relay:
        log = self.folder / f"relay-{len(self.relays)}.log"
        relay = Relay(relay_command("run", str(self.path), *arguments), log)
        self.relays.append(relay)
        return relay

    def columns(self, shard: str) -> Any:
        """Return the columns of the table now, as a record shows them."""
        with closing(self.connect(shard)) as connection, connection.cursor() as cursor:
            cursor.execute("select database()")
            ((name,),) = cursor.fetchall()

            def execute(sql: str) -> list[Any]:
                cursor.execute(sql)
                return list(cursor.fetchall())

            found = ask(execute, name, ["items"])["items"]
        columns = [
            {"name": each.name, "type": each.type, **({"decimals": True} if each.has_decimals else {})}
            for each in found.columns
        ]
        return {"columns": columns, "primary_key": found.primary}

    def execute(self, shard: str, statement: str) -> None:
        before = self.columns(shard)
        with closing(self.connect(shard)) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
        self.executed[shard].append((statement, before, self.columns(shard)))

    def insert(self, shard: str, key: int) -> None:
        self.inserted[shard][key] = len(self.executed[shard])
        with closing(self.connect(shard)) as connection, connection.cursor() as cursor:
            cursor.execute(f"insert into items (id, v) values ({key}, 'v')")

    def played(self, chance: random.Random, shards: Sequence[str], keys: Callable[[str], int], count: int) -> None:
        """Execute the same ``count`` statements on each shard, at different times, while the relay is killed."""
        relay = self.start()
        relay.wait_for(" shard ")
        todo = {shard: list(statements(random.Random(5), count)) for shard in shards}
        for shard in shards:
            self.insert(shard, keys(shard))
        while left := [shard for shard in shards if todo[shard]]:
            shard = chance.choice(left)
            if self._waits:
                wait_until(lambda shard=shard: self.inserted[shard].keys() <= self.published().keys() or None)  # type: ignore[misc]
            dies = chance.random()
            if dies < 0.15:
                relay.kill()
            self.execute(shard, todo[shard].pop(0))
            for _ in range(chance.randrange(3)):
                self.insert(shard, keys(shard))
            if dies < 0.3:
                relay.kill()
                relay = self.start()
                if chance.random() < 0.5:
                    relay.wait_for(" shard ")
        relay.wait_for("took over")
        assert relay.terminate() == 0, relay.log()
        last = self.start("--until-caught-up")
        assert last.wait(300) == 0, last.log()

    def published(self) -> dict[int, EventToken]:
        """Return the tokens of the rows on the topic."""
        config = load(self.path)
        with closing(open_schemas(config)) as schemas:
            changes = read_changes(config.kafka.client(), config.topic("items"), schemas)
        return {change["key"]["id"]: _token(change["token"]) for _, _, change in changes}

    def check(self, source: str) -> int:
        """Compare the topics with what was executed. Return how many of the columns after a statement were known."""
        found = tail_topic(self.path, "ddl")
        records = [each["value"] for each in found]
        assert len({record["event_id"] for record in records}) == len(records)  # I3
        assert {each["key"] for each in found} == {record["token"]["shard"] for record in records}
        tokens, known = self.published(), 0
        for shard, executed in self.executed.items():
            own = [record for record in records if record["token"]["shard"].endswith(f"/{shard}")]
            assert [record["statement"] for record in own] == [sql for sql, _, _ in executed]  # I1, I2, I3
            for record, (_, before, after) in zip(own, executed, strict=True):
                (table,) = record["tables"]
                assert (record["source"], table["table"], table["renamed_to"]) == (source, "items", None)
                for side, truth in (("before", before), ("after", after)):
                    assert (table[side] is None) == (table[f"{side}_known_by"] is None)
                    assert table[side] in (None, truth), record  # I8
                known += table["after"] is not None
            marks = [_token(record["token"]) for record in own]
            for key, count in self.inserted[shard].items():
                orders = [compare(tokens[key], mark) for mark in marks]
                assert orders == [Order.NEWER] * count + [Order.OLDER] * (len(marks) - count), key
        return known

    def close(self) -> None:
        for relay in self.relays:
            relay.kill()


def _token(value: Any) -> EventToken:
    return EventToken(value["timestamp"], value["shard"], value["position"], None)


@pytest.fixture(params=[MariaDB, pytest.param(MySQL, marks=pytest.mark.faults("as on MariaDB"))])
def own(request: pytest.FixtureRequest) -> Iterator[Any]:
    with request.param() as server:
        yield server


@pytest.fixture
def chance() -> random.Random:
    return random.Random(int(os.environ.get("RELAY_SEED") or 30))


def test_each_statement_of_a_database_is_published_once_between_its_rows(
    own: Any, kafka: Any, tmp_path: Path, unique: str, chance: random.Random
) -> None:
    """Its seed is ``RELAY_SEED``."""
    count = 16 if isinstance(own, MariaDB) else 40  # a relay is killed beside one in three
    own.execute(f"create database {DATABASE} character set utf8mb4")
    own.execute(f"create table {DATABASE}.items (id bigint primary key, v varchar(20))")
    account = {"database": DATABASE, "user": USER, "password": PASSWORD}
    source = {"name": "legacy", "type": "mysql", **account, "shards": {"-": [own.address]}, "tables": ["items"]}
    stage = Stage(
        tmp_path, kafka.bootstrap_servers, unique, source, lambda _: own.connect(database=DATABASE, autocommit=True)
    )
    ids = iter(range(1, 10_000))
    try:
        stage.played(chance, ["-"], lambda _: next(ids), count)
        assert stage.check("legacy") > count // 2
    finally:
        stage.close()


@pytest.mark.faults("kills of another source: vitess/test_statements.py and mysql_dialect/ know its statements")
def test_the_shards_of_a_keyspace_publish_each_statement_when_they_execute_it(
    kafka: Any, tmp_path: Path, unique: str, chance: random.Random
) -> None:
    """Its seed is ``RELAY_SEED``."""
    needs.vitess()
    shards = ["-80", "80-"]
    schema = "create table items (id bigint primary key, v varchar(20))"
    with Vitess(keyspaces={"commerce": shards}, schemas={"commerce": (schema, _VSCHEMA)}) as cluster:
        source = {"name": "commerce", "type": "vitess", "vtgate": cluster.vtgate, "keyspace": "commerce"}
        stage = Stage(
            tmp_path,
            kafka.bootstrap_servers,
            unique,
            source | {"tables": ["items"]},
            lambda shard: cluster.mariadb.connect(database=database("commerce", shard), autocommit=True),
            waits=True,
        )
        ids = {
            shard: iter([key for key in range(1, 2000) if shard_range(shard).contains(keyspace_id("hash", key))])
            for shard in shards
        }
        try:
            stage.played(chance, shards, lambda shard: next(ids[shard]), 12)
            assert stage.check("commerce") > 8
        finally:
            stage.close()
