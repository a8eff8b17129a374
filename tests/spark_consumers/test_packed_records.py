"""How records come from the JVM to Python."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.spark_consumers.spark_process import SparkProcess

pytestmark = pytest.mark.services

START = """
import hashlib, json, random, sys
from itertools import groupby
from tests.spark_consumers.local_spark import spark
from spark_consumers.invalidate import LargeValueError, PackedRecords

COLUMNS = "topic string, partition int, offset long, value binary"
ANY = 1 << 40


def plain(record):
    topic, partition, offset, value = record
    return topic, partition, offset, None if value is None else hashlib.sha256(value).hexdigest()


def frame(records, tasks=1):
    rows = session.sparkContext.parallelize(records, tasks)
    return session.createDataFrame(rows, COLUMNS)
"""


def run(spark: SparkProcess, script: str) -> Any:
    """Return what a script prints as JSON that has a ``session``."""
    body = "".join(f"    {line}\n" for line in script.strip().splitlines())
    return json.loads(spark.run(f"{START}with spark() as session:\n{body}").splitlines()[-1])


def test_all_ways_have_each_record_once_and_in_order(spark_process: SparkProcess) -> None:
    """I1, I2: more records than a pack holds, or more bytes, with other topics and partitions between them."""
    seed = random.randrange(1 << 30)
    found = run(
        spark_process,
        f"""
chance = random.Random({seed})
records, offset = [], chance.randrange(1 << 62)
while len(records) < 21_000:
    topic, partition = chance.choice([("shop.orders", 0), ("shop.orders", 7), ("größe.orders", 7), ("", 0)])
    size = (0, 40, 3000)[len(records) // 7_000]
    for _ in range(chance.choice([1, 2, 5000])):
        value = None if chance.random() < 0.1 else bytearray(chance.randbytes(chance.randrange(size + 1)))
        offset += chance.randrange(1, 3)
        records.append((topic, partition, offset, value))
packed = PackedRecords(frame(records, tasks=3))
wanted = list(map(plain, records))
ways = [packed.together(ANY), packed.by_partition(ANY), packed.on_workers(lambda them: map(plain, them))]
print(json.dumps([*(list(map(plain, way)) == wanted for way in ways[:2]), ways[2] == wanted]))
""",
    )
    assert found == [True, True, True], f"seed {seed}"


def test_no_records_are_none(spark_process: SparkProcess) -> None:
    script = """
packed = PackedRecords(frame([], tasks=2))
print(json.dumps([list(packed.together(ANY)), list(packed.by_partition(ANY)), packed.on_workers(list)]))
"""
    assert run(spark_process, script) == [[], [], []]


@pytest.mark.parametrize("way", ["together", "by_partition"])
def test_a_value_that_is_too_large_does_not_come_to_the_driver(way: str, spark_process: SparkProcess) -> None:
    """I11: what came before it may be used, and nothing after it."""
    found = run(
        spark_process,
        f"""
records = [("shop.orders", 0, number, bytearray(size)) for number, size in enumerate([1000, 1001, 5])]
packed = PackedRecords(frame(records))
came = []
try:
    came += (offset for _, _, offset, _ in packed.{way}(1001))
    for record in packed.{way}(1000):
        came.append(record[2])
except LargeValueError:
    came.append("large")
sizes = [sum(map(len, packed._packs(most, together=True).collect())) for most in (1000, 1001)]
on_workers = packed.on_workers(lambda them: [len(value) for *_, value in them])
print(json.dumps([came, sizes[1] - sizes[0], on_workers]))
""",
    )
    assert found == [[0, 1, 2, 0, "large"], 1001, [1000, 1001, 5]]


def test_a_pack_is_bounded_in_bytes(spark_process: SparkProcess) -> None:
    """I11: a task has one in memory, of however many records its partition is."""
    script = """
records = [("shop.orders", 0, number, bytearray(200_000)) for number in range(40)]
packs = PackedRecords(frame(records))._packs(ANY, together=True).collect()
print(json.dumps([len(packs), max(map(len, packs))]))
"""
    count, largest = run(spark_process, script)
    assert (count, largest // 1000) == (7, 1200)
