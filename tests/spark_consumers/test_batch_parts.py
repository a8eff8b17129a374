"""Batches whose values are large are applied in parts (I11)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.change import Operation
from relay.kafka.group_offsets import EARLIEST, Offsets
from relay.kafka.topics import LARGEST_MESSAGE
from spark_consumers.table_consumer import SizedRecord, cut, cut_batch
from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.topic import Topic, change

AT_MOST = 1000


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[SizedRecord], Offsets, Offsets]:
    """Records of some partitions, with holes among their offsets, as transactions leave them."""
    records: list[SizedRecord] = []
    begin: Offsets = {}
    end: Offsets = {}
    for topic in ("shop.lines", "shop.orders"):
        for partition in range(draw(st.integers(1, 3))):
            first = draw(st.integers(0, 5))
            offsets = draw(st.lists(st.integers(first, first + 30), unique=True, max_size=12))
            sizes = st.one_of(st.integers(0, 300), st.integers(0, 5000))
            records += [(topic, partition, offset, draw(sizes)) for offset in offsets]
            begin.setdefault(topic, {})[str(partition)] = draw(st.sampled_from([first, EARLIEST]))
            end.setdefault(topic, {})[str(partition)] = first + 31
    return draw(st.permutations(records)), begin, end


@given(batches())
def test_the_parts_of_a_batch_are_small_and_have_each_record_once_in_its_order(
    batch: tuple[list[SizedRecord], Offsets, Offsets],
) -> None:
    """I2, I11: parts follow one another in each partition, and only a single record may be larger than a part."""
    records, begin, end = batch
    parts = cut(records, begin, end, AT_MOST)
    found: list[SizedRecord] = []
    for number, (first, last) in enumerate(parts):
        assert first == parts[number - 1][1] or number == 0
        part = [one for one in records if first[one[0]][str(one[1])] <= one[2] < last[one[0]][str(one[1])]]
        assert len(part) == 1 or sum(size for *_, size in part) <= AT_MOST
        assert part or len(parts) == 1
        found += part
    assert sorted(found) == sorted(records)
    assert parts[-1][1] == end
    for topic, partitions in parts[0][0].items():
        for partition, offset in partitions.items():
            assert begin[topic][partition] in (EARLIEST, offset)


def test_two_partitions_are_cut_side_by_side() -> None:
    records = [("t", partition, offset, 100) for partition in (0, 1) for offset in range(20)]
    begin, end = {"t": {"0": 0, "1": 0}}, {"t": {"0": 20, "1": 20}}
    parts = cut(records, begin, end, AT_MOST)
    assert [last for _, last in parts] == [{"t": {"0": n, "1": n}} for n in (5, 10, 15, 20)]


def test_the_values_of_a_few_records_are_not_read_twice() -> None:
    """A small batch, of which there are many, takes no action of Spark more."""
    nothing: Any = None  # neither Spark nor Kafka is asked
    few: Offsets = {"shop.orders": {"0": 16, "1": 107}}
    begin: Offsets = {"shop.orders": {"0": EARLIEST, "1": 107}}
    assert cut_batch(nothing, nothing, "log", begin, few, 16 * LARGEST_MESSAGE) == []


_APPLY = """
import json, pathlib, sys
from contextlib import closing
from types import SimpleNamespace
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from relay.avro.registry import open_schemas
from relay.config import load
from spark_consumers import kafka_source
from spark_consumers.dead_letters import DeadLetterTopic
from spark_consumers.decode import Decoder
from spark_consumers.table_consumer import BatchPlan, TableConsumer

config = load(pathlib.Path(sys.argv[1]))
begin, end = json.loads(sys.argv[2])
seen = []

def plan(part):
    place = ("topic", "partition", "offset")
    rows = part.records.select(*place, "status").orderBy(*place).collect()
    places = [[*row[:3]] for row in rows]
    seen.append({"places": places, "begin": part.begin, "end": part.end})
    return BatchPlan({status: 1 for status in {row[3] for row in rows}}, lambda gaps: {"applied": len(rows)})

consumer = TableConsumer("log", config, SimpleNamespace(plan=plan), at_most=50_000, bytes_at_most=int(sys.argv[3]))
session = SparkSession.getActiveSession()
with closing(open_schemas(config)) as schemas:
    schemas.refresh()
    letters = DeadLetterTopic(config, "log", schemas)
    decoder = Decoder(schemas.all(), registry=False, gaps=config.internal("gaps"))
    whole = {topic: dict.fromkeys(partitions, 0) for topic, partitions in end.items()}
    records = kafka_source.read_between(session, config, "log", whole, end)
    counts = consumer.apply(consumer.stream(records, decoder), 0, letters, begin, end)
json.dump({"counts": counts, "seen": seen}, sys.stdout)
"""


@pytest.mark.services
def test_huge_and_damaged_values_come_in_parts_of_a_bounded_size(
    tmp_path: Path, kafka: Any, redis_server: Any, unique: str, spark_process: SparkProcess
) -> None:
    """I11: a record that is larger than a part comes alone, and nothing else is with a damaged one of that size."""
    topic = Topic(tmp_path, unique, kafka.bootstrap_servers, redis_server.url, spark_process)
    topic.publish([change(f"c{number}", 1, Operation.INSERT) for number in range(40)])
    topic.publish_raw(b"damaged" * 3000, b"huge" * 50_000)
    topic.publish([change(f"c{number}", 2) for number in range(10)])
    size = 10_000
    empty = {topic.config.internal("gaps"): {"0": 0}}
    begin, end = {topic.name: {"0": 0}} | empty, {topic.name: topic.ends()} | empty  # partition 1 was added since
    arguments = (str(topic.path), json.dumps([begin, end]), str(size))
    found = json.loads(spark_process.run(_APPLY, *arguments).splitlines()[-1])
    sizes = sizes_of(topic)
    parts = [[sizes[tuple(place)] for place in part["places"]] for part in found["seen"]]
    assert all(sum(part) <= size or len(part) == 1 for part in parts)
    assert max(map(sum, parts)) == 200_000
    places = [tuple(place) for part in found["seen"] for place in part["places"]]
    assert sorted(places) == sorted(sizes)
    for partition in (0, 1):
        assert [at for _, p, at in places if p == partition] == sorted(at for _, p, at in sizes if p == partition)
    assert found["counts"]["parts"] == len(parts) > 3
    assert (found["counts"]["applied"], found["counts"]["dead_letters"]) == (52, 2)
    assert sorted(len(value) for _, value, _ in topic.dead_letters()) == [21_000, 200_000]


def sizes_of(topic: Topic) -> dict[Any, int]:
    """Return the size of each value on the topic, by its place."""
    return {(one.topic(), one.partition(), one.offset()): len(one.value() or b"") for one in topic.records()}
