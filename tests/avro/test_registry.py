"""Schemas published before use and found by readers, on a real broker and a real registry."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from confluent_kafka.schema_registry import Schema

from relay.avro.framing import fingerprint, schema_id, single_object_header
from relay.avro.registry import open_schemas
from relay.avro.schema import change_schema
from relay.avro.schema_registry import RegistrySchemas
from relay.avro.topic_schemas import TopicSchemas
from relay.config import load
from relay.errors import RelayError, Unavailable
from relay.table import Column, KeyColumn, TableSchema

pytestmark = pytest.mark.services


def schema(kind: str = "decimal(10,2)", table: str = "orders") -> dict[str, Any]:
    key = (KeyColumn("id", "S"),)
    return change_schema(TableSchema("shop", table, key, 1, (Column("total", kind),)))


def with_scale(original: dict[str, Any], scale: int) -> dict[str, Any]:
    """Return a schema with another scale and the same fingerprint, which no table of ours has."""
    other = copy.deepcopy(original)
    for field in other["fields"]:
        if field["name"] == "old":
            field["type"][1]["fields"][0]["type"][1]["scale"] = scale
    assert other != original
    assert fingerprint(other) == fingerprint(original)
    return other


class Topic:
    """A schemas topic for one test."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.client: dict[str, Any] = {"bootstrap.servers": bootstrap_servers}
        self.name = f"test-{uuid.uuid4().hex[:8]}.schemas"
        settings = {"cleanup.policy": "compact"}
        admin = AdminClient(self.client)
        (created,) = admin.create_topics([NewTopic(self.name, 1, 1, config=settings)]).values()
        created.result(120)

    def open(self) -> TopicSchemas:
        return TopicSchemas(self.client, self.name)

    def write(self, key: bytes | None, value: bytes | None) -> None:
        producer = Producer(self.client)
        producer.produce(self.name, key=key, value=value)
        assert producer.flush(30) == 0

    def records(self) -> list[tuple[bytes | None, Any]]:
        consumer = Consumer({**self.client, "group.id": "test", "enable.partition.eof": True})
        consumer.assign([TopicPartition(self.name, 0, 0)])
        found = []
        while (message := consumer.poll(120)) is not None and message.error() is None:
            value = message.value()
            found.append((message.key(), None if value is None else orjson.loads(value)))
        consumer.close()
        return found


@pytest.fixture
def topic(kafka: Any) -> Topic:
    return Topic(kafka.bootstrap_servers)


@pytest.fixture
def opened(topic: Topic) -> Iterator[TopicSchemas]:
    schemas = topic.open()
    yield schemas
    schemas.close()


@pytest.fixture
def reader(topic: Topic) -> Iterator[TopicSchemas]:
    schemas = topic.open()
    yield schemas
    schemas.close()


def test_a_registered_schema_is_durable_and_found_by_a_reader(
    topic: Topic, opened: TopicSchemas, reader: TopicSchemas
) -> None:
    header = opened.register("shop.orders", schema())
    assert header == single_object_header(fingerprint(schema()))
    assert topic.records() == [(header[2:].hex().encode(), schema())]
    assert reader.lookup(header) == schema()
    assert reader.all() == {header: schema()}


def test_a_reader_reads_the_topic_again_for_an_unknown_header(opened: TopicSchemas, reader: TopicSchemas) -> None:
    first = opened.register("shop.orders", schema())
    assert reader.lookup(first) == schema()
    second = opened.register("shop.orders", schema("long"))
    assert reader.all() == {first: schema()}
    assert reader.lookup(second) == schema("long")
    assert reader.all() == {first: schema(), second: schema("long")}


def test_an_unknown_header_stays_unknown(opened: TopicSchemas) -> None:
    assert opened.lookup(single_object_header(bytes(8))) is None
    assert opened.lookup(b"\x00\x00\x00\x00\x01") is None


def test_a_schema_is_published_once(topic: Topic, opened: TopicSchemas, reader: TopicSchemas) -> None:
    assert opened.register("a", schema()) == opened.register("b", schema()) == reader.register("a", schema())
    assert len(topic.records()) == 1


def test_a_table_lacks_schemas_until_one_of_its_own_is_published(opened: TopicSchemas, reader: TopicSchemas) -> None:
    wanted = [("all", schema()), ("all", schema(table="customers"))]
    assert reader.lacks(wanted) == [True, True]
    opened.register("all", schema("long"))
    assert reader.lacks(wanted) == [False, True]


def test_in_a_registry_a_topic_lacks_schemas_until_its_subject_has_one_or_the_schemas_topic(
    topic: Topic, opened: TopicSchemas, schema_registry: Any, unique: str
) -> None:
    with closing(RegistrySchemas(schema_registry.url, earlier=topic.open)) as schemas:
        wanted = [(unique, schema()), (f"{unique}.before", schema(table="customers"))]
        assert schemas.lacks(wanted) == [True, True]
        opened.register(f"{unique}.before", schema(table="customers"))
        assert schemas.lacks(wanted) == [True, False]
        schemas.register(unique, schema("long"))
        assert schemas.lacks(wanted) == [False, False]


def test_a_fingerprint_held_by_another_schema_is_refused(topic: Topic, opened: TopicSchemas) -> None:
    """I8."""
    header = opened.register("shop.orders", schema())
    with pytest.raises(RelayError, match=f"has the fingerprint {header[2:].hex()}, and so has another schema"):
        opened.register("shop.orders", with_scale(schema(), 4))
    assert topic.records() == [(header[2:].hex().encode(), schema())]


def test_of_two_that_register_at_once_the_first_holds_the_fingerprint(
    topic: Topic, opened: TopicSchemas, reader: TopicSchemas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8: both look, both find nothing, both publish; compaction keeps the first."""
    publish = opened._publish

    def late(mark: bytes, mine: dict[str, Any]) -> None:
        if len(topic.records()) == 0:
            reader.register("shop.orders", schema())
        publish(mark, mine)

    monkeypatch.setattr(opened, "_publish", late)
    with pytest.raises(RelayError, match="another schema"):
        opened.register("shop.orders", with_scale(schema(), 4))
    header = single_object_header(fingerprint(schema()))
    assert [value for _, value in topic.records()] == [schema(), with_scale(schema(), 4), schema()]
    assert opened.lookup(header) == schema()
    assert reader.register("shop.orders", schema()) == header


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"00", b"{"),
        (b"not hexadecimal", b'"null"'),
        (b"0000000000000000", orjson.dumps(schema())),
        (b"0000000000000000", b'{"type":"nothing"}'),
    ],
)
def test_a_record_that_is_not_a_schema_stops_the_reader(
    topic: Topic, opened: TopicSchemas, key: Any, value: bytes
) -> None:
    topic.write(key, value)
    with pytest.raises(RelayError, match=f"{topic.name} holds .* at offset 0"):
        opened.refresh()


def test_a_missing_topic_is_named(topic: Topic) -> None:
    schemas = TopicSchemas(topic.client, "no-such-topic.schemas")
    with pytest.raises(Unavailable, match=r"no-such-topic\.schemas at .* does not exist"):
        schemas.refresh()
    with pytest.raises(Unavailable, match="does not exist"):
        schemas.register("shop.orders", schema())
    schemas.close()


def _config(folder: Path, kafka: Any, more: str = "") -> Path:
    path = folder / "relay.yaml"
    path.write_text(
        f"name: shop\nkafka: {{bootstrap_servers: {kafka.bootstrap_servers!r}}}\n{more}"
        "sources: [{name: orders, type: dynamodb, table: orders, region: us-east-1}]\n"
    )
    return path


def test_the_config_chooses_where_schemas_are_kept(tmp_path: Path, kafka: Any, schema_registry: Any) -> None:
    in_topic = open_schemas(load(_config(tmp_path, kafka)))
    assert in_topic.place == "topic shop.schemas"
    in_topic.close()
    in_registry = open_schemas(load(_config(tmp_path, kafka, f"schema_registry: {{url: {schema_registry.url!r}}}\n")))
    assert isinstance(in_registry, RegistrySchemas)
    in_registry.close()


def test_values_from_before_there_was_a_registry_stay_readable(
    tmp_path: Path, topic: Topic, kafka: Any, schema_registry: Any
) -> None:
    """I1: their schemas are in the topic."""
    path = _config(tmp_path, kafka, f"schema_registry: {{url: {schema_registry.url!r}}}\n")
    path.write_text(path.read_text().replace("name: shop", f"name: {topic.name.removesuffix('.schemas')}"))
    with closing(topic.open()) as before, closing(open_schemas(load(path))) as schemas:
        header = before.register("shop.orders", schema())
        assert schemas.lookup(header) == schema()
        assert schemas.lookup(single_object_header(b"unknown!")) is None
        assert schemas.all() == {header: schema()}


@pytest.fixture
def subject() -> str:
    return f"test-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def registered(schema_registry: Any) -> Iterator[RegistrySchemas]:
    schemas = RegistrySchemas(schema_registry.url)
    yield schemas
    schemas.close()


def test_the_registry_assigns_an_id_by_which_readers_find_the_schema(
    registered: RegistrySchemas, schema_registry: Any, subject: str
) -> None:
    mine = schema(table=subject)
    header = registered.register(subject, mine)
    assert registered.register(subject, mine) == header
    assert schema_id(header) is not None
    other = RegistrySchemas(schema_registry.url)
    assert other.all() == {}
    assert other.lookup(header) == mine
    other.refresh()
    assert other.all() == {header: mine}
    other.close()


def test_the_subject_is_the_topics_value(registered: RegistrySchemas, subject: str) -> None:
    registered.register(subject, schema(table=subject))
    assert f"{subject}-value" in registered._client.get_subjects()
    assert registered.subject(subject) == (1, "BACKWARD")
    assert registered.subject("no-such-topic")[0] == 0


def test_schemas_with_different_scales_get_different_ids_or_are_refused(
    registered: RegistrySchemas, subject: str
) -> None:
    """I8."""
    mine = schema(table=subject)
    first = registered.register(subject, mine)
    try:
        second = registered.register(subject, with_scale(mine, 4))
    except RelayError as refused:
        assert "could not be told apart" in str(refused)  # noqa: PT017
    else:
        assert second != first
        assert registered.lookup(second) == with_scale(mine, 4)
    assert registered.lookup(first) == mine


def test_an_id_that_the_registry_does_not_know_has_no_schema(registered: RegistrySchemas) -> None:
    assert registered.lookup(b"\x00\x7f\xff\xff\xff") is None
    assert registered.lookup(single_object_header(bytes(8))) is None


def test_a_subject_with_a_compatibility_rule_of_its_owner_is_left_alone(
    registered: RegistrySchemas, subject: str
) -> None:
    client = registered._client
    client.register_schema(f"{subject}-value", Schema('"string"', "AVRO"))
    client.set_compatibility(f"{subject}-value", "FULL")
    with pytest.raises(RelayError, match=r"not compatible with version 1 of the subject .*-value \(compatibility FULL"):
        registered.register(subject, schema(table=subject))
    assert registered.subject(subject) == (1, "FULL")


def test_schemas_that_many_threads_register_at_once_are_all_there(kafka: Any) -> None:
    topic = Topic(kafka.bootstrap_servers)
    with closing(topic.open()) as schemas, ThreadPoolExecutor(16) as pool:
        made = [schema(table=f"t{number}") for number in range(60)]
        headers = list(pool.map(lambda one: schemas.register("test", one), made * 2))
    with closing(topic.open()) as reader:
        assert [reader.lookup(header) for header in headers] == made * 2
