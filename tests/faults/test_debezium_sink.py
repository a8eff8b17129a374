"""Debezium's own JDBC sink in a real Kafka Connect keeps a table of PostgreSQL equal to a source: I1 to I3.

Both are unchanged. The sink reads topics of ``envelope: debezium`` through Apicurio's Avro converter while the relay
is killed.
"""

from __future__ import annotations

import os
import random
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import boto3
import psycopg
import pytest
import yaml
from pymysql.connections import Connection
from pymysql.cursors import Cursor
from pymysql.err import OperationalError

from relay.services.mariadb import PASSWORD, USER
from relay.services.postgres import PASSWORD as POSTGRES_PASSWORD
from relay.services.postgres import USER as POSTGRES_USER
from relay.services.registry import SchemaRegistry
from tests.avro_connect import AvroConnect
from tests.command_line import run_until_caught_up
from tests.faults.harness import Relay, relay_command
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.services,
    pytest.mark.faults("other people's software: kafka/test_debezium_writer.py has the records"),
]

DEFINED = """
    id int not null, place varchar(10) not null, size tinyint, amount decimal(12,3), big bigint, ratio double,
    day date, at datetime(6), seen timestamp(3) null, flag bit(1), kind enum('a','b,c'), data varbinary(20), note text,
    primary key (id, place)
"""
COLUMNS = "id, place, size, amount, big, ratio, day, at, seen, flag, kind, data, note"


def drawn_values(drawn: random.Random, note: str) -> tuple[Any, ...]:
    """Return values for all columns behind the key, some of them null."""
    values = (
        drawn.randrange(-128, 128),
        f"{drawn.randrange(-(10**11), 10**11) / 1000:.3f}",
        drawn.randrange(-(2**63), 2**63),
        drawn.random(),
        f"{drawn.randrange(1, 9999):04}-0{drawn.randrange(1, 10)}-{drawn.randrange(10, 29)}",
        f"2024-02-29 12:13:14.{drawn.randrange(10**6):06}",
        f"2024-02-29 12:13:14.{drawn.randrange(1000):03}",
        drawn.randrange(2),
        drawn.choice(["a", "b,c"]),
        drawn.randbytes(drawn.randrange(20)),
        note,
    )
    return tuple(None if drawn.random() < 0.1 else value for value in values)


class Rows:
    """A table of SQL that is written to: rows, changes of them and of their keys, and deletions."""

    def __init__(self, connection: Connection[Cursor], table: str, seed: int) -> None:
        self.connection = connection
        self.cursor = connection.cursor()
        self.cursor.execute("set time_zone = '+00:00'")
        self.table = table
        self.columns = COLUMNS
        self._drawn = random.Random(seed)
        self._next = 0

    def write(self, count: int) -> None:
        for _ in range(count):
            number = self._drawn.randrange(max(1, self._next))
            what = self._drawn.random()
            if what < 0.5 or not self._next:
                values = (self._next, "here", *drawn_values(self._drawn, f"note {self._next}"))
                marks = ", ".join(["%s"] * len(values))
                self.cursor.execute(f"insert into {self.table} ({COLUMNS}) values ({marks})", values)
                self._next += 1
            elif what < 0.75:
                values = (*drawn_values(self._drawn, f"changed {number}"), number)
                sets = ", ".join(f"{name} = %s" for name in COLUMNS.split(", ")[2:])
                self.cursor.execute(f"update {self.table} set {sets} where id = %s", values)
            elif what < 0.85:
                place = f"p{self._drawn.random():.4f}"
                self.cursor.execute(f"update {self.table} set place = %s where id = %s", (place, number))
            else:
                self.cursor.execute(f"delete from {self.table} where id = %s", (number,))

    def add_column(self) -> None:
        self.cursor.execute(f"alter table {self.table} add column extra smallint unsigned")
        self.columns += ", extra"
        wait_until(self._has_columns)  # vtgate takes a moment to notice it

    def _has_columns(self) -> bool:
        try:
            self.cursor.execute(f"select {self.columns} from {self.table} limit 1")
        except OperationalError:
            return False
        return True

    def write_to_all(self) -> None:
        self.cursor.execute(f"update {self.table} set extra = 60000 where id % 3 = 0")
        self.cursor.execute(f"delete from {self.table} where id % 7 = 0")

    def rows(self) -> list[tuple[Any, ...]]:
        self.cursor.execute(f"select {self.columns} from {self.table}")
        return sorted(map(_plain, self.cursor.fetchall()), key=repr)

    def close(self) -> None:
        self.connection.close()


class Items:
    """A table of DynamoDB that is written to."""

    declared: Mapping[str, str] = {
        "id": "string",
        "line": "long",
        "total": "decimal(20,4)",
        "big": "long",
        "data": "bytes",
        "flag": "boolean",
        "note": "string",
    }
    columns = ", ".join(declared)

    def __init__(self, endpoint_url: str, table: str, seed: int) -> None:
        resource = boto3.resource("dynamodb", endpoint_url=endpoint_url, region_name="us-east-1")
        self._table = resource.create_table(
            TableName=table,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}, {"AttributeName": "line", "KeyType": "RANGE"}],
            AttributeDefinitions=[
                {"AttributeName": "id", "AttributeType": "S"},
                {"AttributeName": "line", "AttributeType": "N"},
            ],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
        )
        self._drawn = random.Random(seed)

    def write(self, count: int) -> None:
        drawn = self._drawn
        for number in range(count):
            key: dict[str, Any] = {"id": f"ü{drawn.randrange(20)}", "line": drawn.randrange(-3, 3)}
            if drawn.random() < 0.2:
                self._table.delete_item(Key=key)
                continue
            values = {
                "total": Decimal(drawn.randrange(10**9)).scaleb(-4),
                "big": drawn.randrange(-(2**63), 2**63),
                "data": drawn.randbytes(drawn.randrange(1, 20)),
                "flag": drawn.random() < 0.5,
                "note": f"note {number}",
            }
            self._table.put_item(Item=key | {name: value for name, value in values.items() if drawn.random() < 0.9})

    def add_column(self) -> None:
        """Any item may have any attribute."""

    def write_to_all(self) -> None:
        self.write(30)

    def rows(self) -> list[tuple[Any, ...]]:
        found = []
        for item in self._table.scan(ConsistentRead=True)["Items"]:
            values: list[Any] = [item.get(name) for name in self.declared]
            found.append(tuple(value.value if hasattr(value, "value") else value for value in values))
        return sorted(map(_plain, found), key=repr)

    def close(self) -> None:
        self._table.delete()


def _plain(values: Any) -> tuple[Any, ...]:
    """Return a row as all databases have it: only MariaDB returns BIT as bytes, PostgreSQL times with their zone."""
    plain: list[Any] = []
    for value in values:
        if hasattr(value, "tzinfo") and value.tzinfo is not None:
            value = value.replace(tzinfo=None)
        if isinstance(value, Decimal | int) and not isinstance(value, bool):
            value = Decimal(value).normalize()
        plain.append(bytes(value) if isinstance(value, memoryview | bytearray) else value)
    if len(plain) > 9 and plain[9] is not None:
        plain[9] = plain[9] in (True, b"\x01")
    return tuple(plain)


def sunk(url: str, columns: str) -> list[tuple[Any, ...]] | None:
    """Return the rows of the sink's table, or None while it does not have all columns."""
    with closing(psycopg.connect(url, options="-c timezone=UTC")) as connection:
        try:
            found = connection.execute(f"select {columns} from items").fetchall()
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
            return None
    return sorted(map(_plain, found), key=repr)


def connect_sink(connect: AvroConnect, name: str, topic: str, database_url: str) -> None:
    """Start the sink of a topic to the table ``items``."""
    place = database_url.partition("@")[2]
    connect.run(
        name,
        {
            "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
            "tasks.max": "1",
            "topics": topic,
            "connection.url": f"jdbc:postgresql://{place}",
            "connection.username": POSTGRES_USER,
            "connection.password": POSTGRES_PASSWORD,
            "insert.mode": "upsert",
            "delete.enabled": "true",
            "primary.key.mode": "record_key",
            "schema.evolution": "basic",
            "collection.name.format": "items",
            "use.time.zone": "UTC",
        },
    )


def subjects(registry: SchemaRegistry) -> str:
    with urllib.request.urlopen(f"{registry.url}/subjects") as answer:
        return str(answer.read().decode())


@pytest.fixture(params=["mariadb", "dynamodb", "vitess"])
def written(request: pytest.FixtureRequest, unique: str) -> Any:
    """Return a table that is written to, its name, and its source in the config."""
    server, seed = request.getfixturevalue(request.param), int(os.environ.get("RELAY_SEED") or 44)
    if request.param == "dynamodb":
        items = Items(server.endpoint_url, unique, seed)
        found = {"type": "dynamodb", "table": unique, "region": "us-east-1", "endpoint_url": server.endpoint_url}
        return items, unique, found | {"columns": dict(Items.declared)}
    if request.param == "vitess":
        server.execute(f"create table {unique} ({DEFINED})")
        server.execute(f"alter vschema on {unique} add vindex hash(id) using hash")
        found = {"type": "vitess", "vtgate": server.vtgate, "keyspace": "commerce", "start": "current"}
        return Rows(server.connect(), unique, seed), unique, found | {"tables": [unique]}
    server.execute(f"create database {unique}")
    server.execute(f"create table {unique}.items ({DEFINED})")
    found = {"type": "mysql", "shards": {"-": [server.address]}, "database": unique, "user": USER, "password": PASSWORD}
    rows = Rows(server.connect(autocommit=True, database=unique), "items", seed)
    return rows, "items", found | {"start": {"gtid": {"-": f"MariaDB/{server.gtid}"}}}


def test_debeziums_jdbc_sink_keeps_a_table_equal_to_its_source_over_a_kill_of_the_relay(
    tmp_path: Path,
    kafka: Any,
    registry: SchemaRegistry,
    connect: AvroConnect,
    database_url: str,
    unique: str,
    written: Any,
) -> None:
    """I1, I2, I3: inserts, updates, changed keys, deletions, rows from before the relay, and a column that is added."""
    table, name, source = written
    path = tmp_path / "relay.yaml"
    kafka_settings = {"bootstrap_servers": kafka.bootstrap_servers, "producer": {"transaction.timeout.ms": 2000}}
    config = {"name": unique, "envelope": "debezium", "kafka": kafka_settings, "schema_registry": {"url": registry.url}}
    path.write_text(yaml.safe_dump({**config, "sources": [{"name": "shop", **source}]}))
    if source.get("start") == "current":
        run_until_caught_up(path)  # its position is known from here on
    table.write(60)
    relays = [Relay(relay_command("run", str(path)), tmp_path / "relay-0.log")]
    try:
        relays[0].wait_for("took over")
        wait_until(lambda: f"{unique}.{name}-value" in subjects(registry))
        connect_sink(connect, unique, f"{unique}.{name}", database_url)
        table.write(160)
        relays[0].kill()
        table.write(60)
        table.add_column()
        relays.append(Relay(relay_command("run", str(path)), tmp_path / "relay-1.log"))
        table.write(60)
        table.write_to_all()
        relays[1].wait_for("took over")
        assert relays[1].terminate() == 0, relays[1].log()
        run_until_caught_up(path)
        wait_until(lambda: connect.is_running(unique) and sunk(database_url, table.columns) == table.rows())
        assert len(table.rows()) > 40
    finally:
        for relay in relays:
            relay.kill()
        table.close()
