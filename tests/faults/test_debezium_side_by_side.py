"""What the relay writes in ``envelope: debezium``, field by field beside what Debezium's own connector writes.

Both read one MariaDB, and publish to one registry. Every difference is in the table of ``reference/debezium.md``, with
its reason, and nothing else is.
"""

from __future__ import annotations

import io
import re
import struct
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import fastavro
import orjson
import pytest
import yaml
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from relay.config import load
from relay.process.managed import HOST
from relay.services.mariadb import PASSWORD, USER, MariaDB
from relay.services.registry import SchemaRegistry
from tests.avro_connect import AvroConnect
from tests.command_line import run_until_caught_up
from tests.faults.debezium_statements import AFTER, BEFORE, DEFINED
from tests.waiting import PATIENCE, wait_until

pytestmark = [
    pytest.mark.services,
    pytest.mark.faults("other people's software: kafka/test_debezium_writer.py has the records"),
]

PAGE = Path(__file__).parents[2] / "deploy/docs/reference/debezium.md"
TABLES = ("types", "pairs")


class Published:
    """The records of one side, decoded. ``prefix``: of its topics."""

    def __init__(self, prefix: str, registry: SchemaRegistry, servers: str) -> None:
        self.prefix, self._url = prefix, registry.url
        self._client = {"bootstrap.servers": servers}
        self.schemas: dict[int, dict[str, Any]] = {}

    def records(self, table: str) -> list[tuple[Any, Any, set[str]]]:
        """Return key, value and the names of the headers of each record."""
        topic = f"{self.prefix}.{table}"
        settings = {**self._client, "group.id": topic, "enable.auto.commit": False, "enable.partition.eof": True}
        found: list[tuple[Any, Any, set[str]]] = []
        with closing(Consumer(settings)) as consumer:
            consumer.assign([TopicPartition(topic, 0, 0)])
            while True:
                message = consumer.poll(PATIENCE)
                assert message is not None
                if (error := message.error()) is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return found
                names = {str(header[0]) for header in message.headers() or []}
                found.append((self._read(message.key()), self._read(message.value()), names))

    def _read(self, framed: Any) -> Any:
        if framed is None:
            return None
        (number,) = struct.unpack(">I", framed[1:5])
        if number not in self.schemas:
            with urllib.request.urlopen(f"{self._url}/schemas/ids/{number}") as answer:
                self.schemas[number] = orjson.loads(orjson.loads(answer.read())["schema"])
        return fastavro.schemaless_reader(io.BytesIO(framed[5:]), fastavro.parse_schema(self.schemas[number]), None)

    def named(self, table: str, part: str) -> dict[str, Any]:
        """Return the last schema with this name that a record was written with."""
        return [each for each in self.schemas.values() if each["connect.name"] == f"{self.prefix}.{table}.{part}"][-1]


def _columns(envelope: dict[str, Any]) -> dict[str, Any]:
    return {field["name"]: field for field in envelope["fields"][0]["type"][1]["fields"]}


def _plain(schema: Any) -> Any:
    """Return a schema without what only says where else it is defined."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if isinstance(schema, dict):
        return {name: _plain(value) for name, value in schema.items()}
    return schema


def differing_schemas(ours: Published, theirs: Published) -> Iterator[str]:
    for table in TABLES:
        mine, other = (side.named(table, "Key") for side in (ours, theirs))
        if mine["fields"] != other["fields"]:
            yield f"key schema of {table}"
        mine, other = (side.named(table, "Envelope") for side in (ours, theirs))
        assert [field["name"] for field in mine["fields"]] == [field["name"] for field in other["fields"]]
        for field, beside in zip(mine["fields"][2:], other["fields"][2:], strict=True):
            if field["name"] == "source":
                assert [each["name"] for each in field["type"]["fields"]] == [
                    e["name"] for e in beside["type"]["fields"]
                ]
                field, beside = (each["type"]["fields"] for each in (field, beside))
                yield "schema: io.debezium.connector.mysql.Source"
            if _plain(field) != _plain(beside):
                yield f"schema of {field['name']}"
        columns, others = _columns(mine), _columns(other)
        assert columns.keys() == others.keys()
        for name, column in columns.items():
            beside = others[name]
            if "default" in beside and beside["default"] is not None:
                yield "schema: defaults"
            elif isinstance(column["type"], list) != isinstance(beside["type"], list):
                yield "schema: NOT NULL"
            elif column != beside and name != "line":  # the geometry, which stands at its first place
                yield f"schema of {name}"


def differing_values(ours: Published, theirs: Published) -> Iterator[str]:
    for table in TABLES:
        mine, others = ours.records(table), theirs.records(table)
        extra = [value["op"] for _, value, _ in mine if value is not None and value["op"] == "t"]
        if extra:
            yield "op t"
        mine = [each for each in mine if each[1] is None or each[1]["op"] != "t"]
        if refused := [each for each in others if table == "types" and each[0]["id"] == 6]:
            yield "BIGINT UNSIGNED above 2^63 - 1"
        others = [each for each in others if each not in refused]
        assert [key for key, _, _ in mine] == [key for key, _, _ in others]
        for (_, value, headers), (_, beside, others_headers) in zip(mine, others, strict=True):
            yield from (f"header {name}" for name in headers ^ others_headers)
            assert (value is None) == (beside is None)
            if value is None:
                continue
            assert value["transaction"] == beside["transaction"]
            if beside["op"] == "r":
                assert value["op"] == "c"
                yield "op r"
            else:
                assert value["op"] == beside["op"]
                differing = (name for name, part in value["source"].items() if part != beside["source"][name])
                yield from (f"source.{name}" for name in differing)
            for image in ("before", "after"):
                assert (value[image] is None) == (beside[image] is None)
                for name, part in (value[image] or {}).items():
                    if part != beside[image][name]:
                        yield f"value of {name}"


def test_every_difference_from_debeziums_connector_is_in_the_documentation(
    tmp_path: Path, kafka: Any, registry: SchemaRegistry, connect: AvroConnect, unique: str
) -> None:
    with MariaDB() as mariadb:
        mariadb.execute("set global sql_mode = ''")
        connection = mariadb.connect(autocommit=True)
        cursor = connection.cursor()
        for statement in ("set time_zone = '+00:00'", f"create database {unique}", f"use {unique}", *DEFINED):
            cursor.execute(statement)
        start = {"gtid": {"-": f"MariaDB/{mariadb.gtid}"}}
        cursor.execute(BEFORE)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        topics = [*(f"theirs.{unique}.{table}" for table in TABLES), f"{unique}.history"]
        for future in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
            future.result(60)
        connect.run(
            unique,
            {
                "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
                "tasks.max": "1",
                "topic.prefix": "theirs",
                "database.hostname": HOST,
                "database.port": str(mariadb.port),
                "database.user": USER,
                "database.password": PASSWORD,
                "database.server.id": "77",
                "database.ssl.mode": "disable",
                "database.include.list": unique,
                "include.schema.changes": "false",
                "snapshot.locking.mode": "none",
                "schema.history.internal.kafka.bootstrap.servers": kafka.bootstrap_servers,
                "schema.history.internal.kafka.topic": f"{unique}.history",
                "schema.name.adjustment.mode": "avro",
                "field.name.adjustment.mode": "avro",
            },
        )
        theirs = Published(f"theirs.{unique}", registry, kafka.bootstrap_servers)
        wait_until(lambda: theirs.records("types"))
        path = tmp_path / "relay.yaml"
        source = {
            "name": "theirs",
            "type": "mysql",
            "shards": {"-": [mariadb.address]},
            "database": unique,
            "user": USER,
            "password": PASSWORD,
            "start": start,
            "on_unencodable": "dead_letter",
        }
        config = {
            "name": unique,
            "topics": "ours.{name}.{table}",
            "envelope": "debezium",
            "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "partitions": 1},
            "schema_registry": {"url": registry.url},
            "sources": [source],
        }
        path.write_text(yaml.safe_dump(config))
        assert load(path).topic("types") == f"ours.{unique}.types"
        run_until_caught_up(path)
        for statement in AFTER:
            cursor.execute(statement)
        connection.close()
        run_until_caught_up(path)
        ours = Published(f"ours.{unique}", registry, kafka.bootstrap_servers)
        last = ours.records("pairs")[-1][0]
        wait_until(lambda: connect.is_running(unique) and [key for key, *_ in theirs.records("pairs")][-1:] == [last])
        for table in TABLES:
            ours.records(table)
            theirs.records(table)
        found = {*differing_schemas(ours, theirs), *differing_values(ours, theirs)}
    _, _, section = PAGE.read_text(encoding="utf-8").partition("## What differs from Debezium")
    assert found == set(re.findall(r"^\| `([^`]+)`", section, re.MULTILINE))
