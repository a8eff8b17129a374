"""The consumers on a topic: replays, records that carry no change, starting offsets, and ways to apply a batch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from relay.avro.framing import fingerprint, single_object_header
from relay.avro.schema import change_schema
from relay.avro.topic_schemas import TopicSchemas
from relay.cache import RedisStore, entry_key, generation_key
from relay.cache.entry import decode
from relay.change import Change, Operation
from relay.kafka import topics
from relay.kafka.topic_writer import TopicWriter
from relay.table import KeyColumn, TableSchema
from tests.benchmarks.changes import finished
from tests.log_lines import log_lines
from tests.spark_consumers.invalidated import undecodable
from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.topic import Topic, change, mark, read, truncation
from tests.waiting import wait_until

pytestmark = pytest.mark.services


def history() -> list[Change]:
    """Five customers: inserted, updated up to a version of their own, the last one deleted."""
    changes = [change(f"c{number}", 1, Operation.INSERT) for number in range(5)]
    changes += [change(f"c{number}", version) for number in range(5) for version in range(2, 3 + number)]
    return [*changes, change("c4", 99, Operation.DELETE)]


def entries(store: RedisStore, topic: Topic, customers: Sequence[str]) -> list[list[str]]:
    """Return the positions in each customer's entry."""
    namespace = topic.config.name
    found, _ = store.read([entry_key(namespace, f"order:{name}") for name in customers], generation_key(namespace))
    decoded = [decode(stored.meta) if stored else None for stored in found]
    return [[token.position for token in entry.tokens.values() if token] if entry else [] for entry in decoded]


IN_DELTA_TOO = ["postgres", pytest.param("delta", marks=pytest.mark.faults("one rule for both: test_newest.py"))]


@pytest.mark.parametrize("target", IN_DELTA_TOO)
def test_a_replay_from_the_beginning_changes_nothing_snapshots_included(
    topic: Topic, target: str, request: pytest.FixtureRequest
) -> None:
    """I7: a fresh checkpoint applies the whole topic again; so does a batch that a crash cut off."""
    if target == "postgres":
        topic.set_copy_url(request.getfixturevalue("database_url"))
    changes = history()
    # Read after a gap, in which c0 was changed, c1 deleted and c4 inserted again; c2 is unchanged, c3 was changed
    # since.
    as_of = 1_700_000_000 + 200
    changes.append(mark("begin", as_of))
    changes += [read("c0", 7, as_of), read("c2", 4, as_of + 5), read("c3", 5, as_of), read("c4", 8, as_of)]
    changes += [change("c3", 300), mark("end", as_of)]
    # Changes of another table, with the same keys, partitions and offsets.
    others = [change(f"c{number}", 70 + number, Operation.INSERT) for number in range(3)]
    # Truncated, then snapshotted and written to again: only its offset shows that the row of the snapshot is younger.
    others += [truncation(80), read("c4", 81, as_of - 190), change("c2", 82, Operation.INSERT)]
    for other in others:
        other.source = other.table = "lines"
        other.event_id = f"lines-{other.event_id}"
    topic.publish(changes)
    topic.publish(others)
    steps = [(consumer, f"{consumer}-{life}") for life in ("first", "again") for consumer in ("log", "copy")]
    assert topic.apply(*steps) == {
        "copy": {"c0": 7, "c2": 4, "c3": 300, "c4": 8},
        "log": sorted(one.event_id for one in [*changes, *others]),
        "lines": {"c2": 82, "c4": 81},
    }


@pytest.mark.parametrize("target", IN_DELTA_TOO)
def test_rows_of_a_topic_that_was_replaced_are_swept_and_truncated(
    topic: Topic, target: str, unique: str, request: pytest.FixtureRequest
) -> None:
    """I7: the new topic has other partitions, and no record of the rows that were deleted meanwhile."""
    services = topic.config.kafka.bootstrap_servers, topic.redis_url, topic.spark
    url = request.getfixturevalue("database_url") if target == "postgres" else f"delta://{topic.folder}/copy"
    before = Topic(topic.folder, f"{unique}-old", *services, partitions=4)
    before.set_copy_url(url)
    rows = [change(f"c{number}", 1, Operation.INSERT) for number in range(12)]
    lines = [change(f"c{number}", 1, Operation.INSERT) for number in range(12)]
    for line in [*lines, truncated := truncation(80)]:
        line.source = line.table = "lines"
    before.publish([*rows, *lines])
    before.consume("copy", checkpoint="before")
    after = Topic(topic.folder, f"{unique}-new", *services)
    after.set_copy_url(url)
    as_of = 1_700_000_000 + 100
    found = [read(f"c{number}", 1, as_of + 5) for number in range(3)]
    after.publish([mark("begin", as_of), *found, change("c3", 190), mark("end", as_of), truncated])
    copied = after.apply(("copy", "after"))
    assert (copied["copy"], copied["lines"]) == ({"c0": 1, "c1": 1, "c2": 1, "c3": 190}, {})


@pytest.mark.parametrize("target", IN_DELTA_TOO)
def test_changes_on_a_topic_that_was_created_again_are_not_replays(
    topic: Topic, target: str, request: pytest.FixtureRequest
) -> None:
    """I7: a row of a snapshot has no token, and its offset is one of another topic now."""
    if target == "postgres":
        topic.set_copy_url(request.getfixturevalue("database_url"))
    as_of = 1_700_000_000
    rows = [read(f"c{number}", 1, as_of) for number in range(4)]
    line = change("c0", 1, Operation.INSERT)
    line.source = line.table = "lines"
    topic.publish([mark("begin", as_of), *rows, mark("end", as_of), line])
    topic.consume("copy", checkpoint="before")
    topic.create_again()
    topic.publish([change(f"c{number}", 100) for number in range(2)])
    copied = topic.apply(("copy", "after"))
    assert (copied["copy"], copied["lines"]) == ({"c0": 100, "c1": 100, "c2": 1, "c3": 1}, {"c0": 1})


def test_neither_a_checkpoint_nor_reported_offsets_are_continued_on_a_topic_that_was_created_again(
    topic: Topic,
) -> None:
    """I1: the records before them were never read. A consumer may report its offsets until it notices."""
    topic.publish([change("c0", version) for version in (1, 2)])
    topic.consume("log", checkpoint="one")
    reported = topic.reported("log")
    topic.create_again()
    topic.publish([change("c0", version) for version in (3, 4, 5, 6)])
    topic.refuse("log", checkpoint="one")
    assert f"topic {topic.name} was created again" in topic.log.read_text()
    topic.report("log", reported)
    topic.refuse("log", "--from", "committed", checkpoint="two")
    group = f"{topic.config.name}.log"
    assert f"topic {topic.name} was created again since group {group} read it" in topic.log.read_text()
    assert topic.consume("log", checkpoint="two")["applied"] == 4


def test_a_table_that_left_the_config_is_read_to_its_end_and_stops_no_consumer(topic: Topic, database_url: str) -> None:
    """I1, I10: it may have been dropped, and the config not name its tables."""
    topic.set_copy_url(database_url)
    lines = [change("ada", version) for version in (1, 2)]
    for line in lines:
        line.source = line.table = "lines"
        line.event_id = f"line-{line.event_id}"
    topic.set_cache_keys("line:{customer}", table="lines")
    topic.publish([change("ada", 1), lines[0]])
    topic.consume("cache log copy", checkpoint="one")
    topic.publish([change("ada", 2), lines[1]])
    topic.leave_out("lines")
    topic.consume("cache log copy", checkpoint="one")
    found = topic.apply()
    assert (found["copy"], found["lines"], len(found["log"])) == ({"ada": 2}, {"ada": 2}, 4)
    admin, left = topics.connect(topic.config), topic.config.topic("lines")
    admin.delete_topics([left])[left].result(120)
    wait_until(lambda: left not in topics.list_topics(admin, topic.config))
    topic.consume("cache", checkpoint="one")  # I12: the values of dropped tables are nobody's
    topic.refuse("log", checkpoint="one/log")
    assert f"topic {left}, which is in the checkpoint" in topic.log.read_text()
    topic.publish([change("ada", 3)])
    assert topic.consume("log", "--from", "committed", checkpoint="two")["rows"] == 1
    assert len(topic.apply()["log"]) == 5


def test_a_topic_that_is_created_again_while_a_consumer_runs_ends_it(topic: Topic) -> None:
    """I1: it would go on at the offset of the old one, and miss what is before."""
    topic.publish([change("c0", version) for version in (1, 2)])
    process = topic.start_in_spark("log", checkpoint="one")
    wait_until(lambda: log_lines(topic.log, "batch") or None)
    topic.create_again()
    topic.publish([change("c0", version) for version in (3, 4, 5, 6)])
    assert process.wait(150) == 2, process.log()
    assert process.has_logged(f"topic {topic.name} was created again")


def test_a_checkpoint_is_not_continued_in_another_place(topic: Topic, database_url: str) -> None:
    """I1: what comes before its offset would be missing there."""
    topic.publish([change("c0", 1), change("c1", 1)])
    topic.consume("log copy", checkpoint=".")
    topic.publish([change("c0", 2)])
    before = yaml.safe_load(topic.path.read_text())
    refused = (
        rf"the {{}} lacks {topic.name}\[\d\] from offset 0 to \d, but the checkpoint .* is already past those offsets"
    )
    topic.set_log_path(f"file://{topic.folder}/elsewhere")
    topic.refuse("log", checkpoint="log")
    assert re.search(refused.format("log"), topic.log.read_text())
    for url in (f"delta://{topic.folder}/another", database_url):
        topic.set_copy_url(url)
        topic.refuse("copy", checkpoint="copy")
        said = topic.log.read_text()
        assert re.search(refused.format("copy"), said)
        assert f"{urlsplit(database_url).password}@" not in said
    assert topic.consume("copy", checkpoint="another")["applied"] == 3
    topic.path.write_text(yaml.safe_dump(before))
    assert topic.consume("log copy", checkpoint=".")["applied"] == 2


def is_refused(topic: Topic, values: Sequence[bytes]) -> bool:
    """Whether these are the dead letters, each with a reason of its own."""
    letters = topic.dead_letters()
    return [value for _, value, _ in letters] == [*values] and len({reason for *_, reason in letters}) == len(values)


@pytest.mark.faults("a foreign value and then a late one, without a start: test_schema_wait.py [log-spark]")
def test_a_log_waits_for_an_unknown_schema_and_loses_nothing(topic: Topic) -> None:
    """I1: a value that comes before its schema is neither dropped nor misread."""
    topic.publish([change("c0", 1)])
    other = TableSchema("orders", "orders", (KeyColumn("customer", "S"), KeyColumn("line", "B")), 1)
    unpublished = _Unpublished()
    late = change("late", 7)
    late.key = {"customer": "late", "line": b"\x01"}
    [(value, *_)] = finished(TopicWriter(other, topic.name, 2, "hash", unpublished), [late])
    topic.publish_raw(value)
    process = topic.start_in_spark("log", "--until-caught-up", checkpoint="log")
    wait_until(lambda: process.has_logged("schema"), 120)
    assert process.is_running
    _schemas(topic).register(topic.name, change_schema(other))
    assert process.wait(120) == 0, process.log()
    assert topic.dead_letters() == []
    assert sum(line["applied"] for line in log_lines(topic.log, "batch")) == 2


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("one action", marks=pytest.mark.faults("as small batches are applied: all other tests on Spark")),
        "partition by partition",
        "on the workers",
    ],
)
def test_all_ways_to_apply_a_batch_leave_the_same_entries_and_dead_letters(
    topic: Topic, store: RedisStore, spark_process: SparkProcess, way: str
) -> None:
    """I6, I8: and invalidate the namespace for a record that nobody can read."""
    topic.consume("cache", checkpoint="cache", engine="python")
    before = store.generation(generation_key(topic.config.name))
    changes = [change(f"c{number:03}", version) for version in (1, 2) for number in range(200)]
    topic.publish(changes)
    topic.publish_raw(*(values := undecodable(topic)))
    large_batch = 10**9 if way == "one action" else 1
    script = f"""
import pathlib
from unittest import mock
from relay.config import load
import spark_consumers
from spark_consumers import invalidate

with (
    mock.patch.object(invalidate, "_LARGE_BATCH", {large_batch}),
    mock.patch.object(invalidate, "is_cluster", lambda master: {way == "on the workers"}),
):
    spark_consumers.run(
        "cache", load(pathlib.Path({str(topic.path)!r})), until_caught_up=True,
        checkpoint=pathlib.Path({str(topic.folder / "checkpoint")!r}),
    )
"""
    spark_process.run(script)
    assert store.generation(generation_key(topic.config.name)) != before
    assert is_refused(topic, values)
    names = [f"c{number:03}" for number in range(200)]
    assert entries(store, topic, names) == [["DynamoDB/100000000000000000002"]] * 200


def _schemas(topic: Topic) -> TopicSchemas:
    return TopicSchemas(topic.config.kafka.client(), topic.config.internal("schemas"))


class _Unpublished:
    """Returns the header of a schema without publishing it."""

    def register(self, topic: str, schema: Any) -> bytes:
        return single_object_header(fingerprint(schema))
