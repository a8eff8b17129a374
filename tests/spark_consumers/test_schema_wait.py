"""A value whose schema nobody knows is waited for, and then foreign; a schema that is late is never given up (I1)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from relay.avro.framing import fingerprint, single_object_header
from relay.avro.schema import change_schema
from relay.cache import RedisStore, generation_key
from relay.config import Config
from relay.errors import Unavailable
from relay.kafka.topic_writer import TopicWriter
from relay.table import KeyColumn, TableSchema
from spark_consumers.dead_letters import DeadLetterTopic, NonChangeRecord, UnknownSchemas
from spark_consumers.records import DecodeStatus
from spark_consumers.schema_wait import PATIENCE, SchemaWait
from tests.benchmarks.changes import finished
from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.topic import Topic, change

A, B = single_object_header(b"aaaaaaaa"), single_object_header(b"bbbbbbbb")


class Schemas:
    """Schemas that a test publishes, at a place that may be down."""

    def __init__(self) -> None:
        self.published: dict[bytes, dict[str, Any]] = {}
        self.is_down = False

    def lookup(self, header: bytes) -> Mapping[str, Any] | None:
        if self.is_down:
            raise Unavailable("the registry does not answer")
        return self.published.get(header)


class Wait(SchemaWait):
    """Looks whenever the test says, at a time that it sets."""

    def __init__(self, *, waits: bool = True) -> None:
        self.now = 1000.0
        self.schemas = Schemas()
        super().__init__(self.schemas, "log", waits=waits, clock=lambda: self.now)

    def looks(self, *headers: bytes, after: float = 0.0) -> bool:
        self.now += after
        return self.look(set(headers))


def test_a_schema_that_stays_unknown_is_given_up_after_minutes() -> None:
    wait = Wait()
    assert not wait.looks(A)
    assert not wait.looks(A, after=PATIENCE - 1)
    assert wait.looks(A, after=1)
    assert wait.given_up == (A,)
    assert wait.looks(A)  # of the next batch
    assert not wait.looks(A, B)


def test_a_schema_that_nothing_waits_for_is_given_up_at_once_and_used_once_it_is_there() -> None:
    wait = Wait(waits=False)
    assert wait.looks(A, B)
    assert set(wait.given_up) == {A, B}
    wait.schemas.published[A] = {}
    assert wait.looks(A, B)
    assert wait.given_up == (B,)


def test_a_schema_that_is_published_late_is_used() -> None:
    wait = Wait()
    assert not wait.looks(A)
    wait.schemas.published[A] = {}
    assert wait.looks(A, after=2 * PATIENCE)
    assert wait.given_up == ()


def test_while_nobody_can_say_whether_a_schema_exists_none_is_given_up() -> None:
    """I1: a registry that was down for an hour had no schema published to it."""
    wait = Wait()
    assert not wait.looks(A)
    wait.schemas.is_down = True
    with pytest.raises(Unavailable):
        wait.looks(A, after=10 * PATIENCE)
    wait.schemas.is_down = False
    assert not wait.looks(A)
    assert not wait.looks(A, after=PATIENCE - 1)
    assert wait.looks(A, after=1)


def test_a_schema_that_is_published_after_it_was_given_up_is_used_from_then_on() -> None:
    """I1"""
    config = {
        "name": "shop",
        "kafka": {"bootstrap_servers": "127.0.0.1:9"},
        "sources": [{"name": "orders", "type": "dynamodb", "table": "orders"}],
    }
    wait = Wait()
    letters = DeadLetterTopic(Config.model_validate(config), "log", wait.schemas)
    assert not wait.looks(A)
    assert wait.looks(A, after=PATIENCE)
    foreign = [NonChangeRecord(DecodeStatus.FOREIGN, "t", 0, 5, A + b"body")]
    letters.refuse_unknown_schemas(foreign)
    wait.schemas.published[A] = {}
    with pytest.raises(UnknownSchemas) as refused:
        letters.refuse_unknown_schemas(foreign)
    assert wait.look(refused.value.headers)
    assert wait.given_up == ()


def test_foreign_values_with_a_schema_of_their_own_each_take_a_tenth_of_the_time() -> None:
    """I11: each held the log and the copy up for five minutes."""
    wait = Wait()
    wait.looks(A)
    assert wait.looks(A, after=PATIENCE)
    waited = 0.0
    for number in range(50):
        wait.now += 30
        begun, header = wait.now, single_object_header(number.to_bytes(8))
        while not wait.looks(header):
            wait.now += 0.5
        waited += wait.now - begun
    assert waited <= 50 * (30 * 0.1 + 0.5)
    assert not wait.looks(B, after=10 * PATIENCE)
    assert not wait.looks(B, after=PATIENCE - 1)
    assert wait.looks(B, after=1)


def test_the_headers_that_are_remembered_are_bounded() -> None:
    """I11: a foreign writer may begin each value with another header."""
    wait = Wait()
    headers = [single_object_header(number.to_bytes(8)) for number in range(3000)]
    wait.looks(*headers)
    assert wait.looks(*headers, after=PATIENCE)
    assert set(wait.given_up) == set(headers)
    wait.looks(A)
    assert wait.looks(A, after=PATIENCE)
    assert len(wait.given_up) == 1001


@pytest.mark.services
@pytest.mark.parametrize(
    ("consumer", "engine"),
    [
        pytest.param(
            "cache",
            "spark",
            marks=pytest.mark.faults("[cache-python] and [log-spark]; which of them waits: test_runner.py"),
        ),
        ("cache", "python"),
        ("log", "spark"),
    ],
)
def test_a_foreign_value_with_the_mark_of_the_framing_stops_no_consumer(
    tmp_path: Path, kafka: Any, redis_server: Any, unique: str, consumer: str, engine: str, spark_process: SparkProcess
) -> None:
    """I1, I6: it becomes a dead letter in full, and what follows is applied; a late schema loses nothing.

    The cache waits for none: it would hold up the invalidations that follow.
    """
    topic = Topic(tmp_path, unique, kafka.bootstrap_servers, redis_server.url)
    foreign = [A + b"somebody's value", B + b"another"]
    topic.publish([change("c0", 1)])
    topic.publish_raw(*foreign)
    late = change("late", 7)
    late.key = {"customer": "late", "line": b"\x01"}
    table = TableSchema("orders", "orders", (KeyColumn("customer", "S"), KeyColumn("line", "B")), 1)
    [(value, *_)] = finished(TopicWriter(table, topic.name, 2, "hash", _Unpublished()), [late])
    topic.publish_raw(value)
    topic.publish([change("c1", 2)])
    with RedisStore(redis_server.url) as store:
        before = store.generation(generation_key(topic.config.name))
        # The late schema comes at the first look after the wait has begun; for the cache, which does not wait, after
        # its value was given up, and before that is a dead letter.
        script = f"""
import pathlib
from unittest import mock
import spark_consumers
from relay.avro.topic_schemas import TopicSchemas
from relay.config import load
from spark_consumers import dead_letters, schema_wait

config, path = load(pathlib.Path({str(topic.path)!r})), pathlib.Path({str(topic.folder / "checkpoint")!r})
look, refuse = schema_wait.SchemaWait.look, dead_letters.DeadLetterTopic.refuse_unknown_schemas

def publish():
    TopicSchemas(config.kafka.client(), config.internal("schemas")).register({topic.name!r}, {change_schema(table)!r})

def publish_and_look(self, headers):
    found = look(self, headers)
    publish()
    return found

def publish_and_refuse(self, records):
    if {engine == "python"}:
        publish()
    return refuse(self, records)

place = {{"engine": "python"}} if {engine == "python"} else {{"checkpoint": path}}
with (
    mock.patch.object(schema_wait, "PATIENCE", {3.0 if consumer == "log" else 1e9}),
    mock.patch.object(dead_letters.DeadLetterTopic, "refuse_unknown_schemas", publish_and_refuse),
    mock.patch.object(schema_wait.SchemaWait, "look", publish_and_look),
):
    spark_consumers.run({consumer!r}, config, until_caught_up=True, **place)
"""
        if engine == "spark":
            spark_process.run(script, log=topic.log)
        else:
            with topic.log.open("wb") as log:
                ran = subprocess.run([sys.executable, "-c", script], stderr=log, timeout=600, check=False)
            assert ran.returncode == 0, topic.log.read_text()
        counts = topic.counts()
        # The first attempt has applied some.
        assert counts["applied"] + counts.get("discarded", 0) == 3, topic.log.read_text()
        assert [(letter, reason) for _, letter, reason in topic.dead_letters()] == [
            (each, "unknown schema") for each in foreign
        ]
        if consumer == "cache":
            assert store.generation(generation_key(topic.config.name)) != before


class _Unpublished:
    """Returns the header of a schema without publishing it."""

    def register(self, topic: str, schema: Any) -> bytes:
        return single_object_header(fingerprint(schema))
