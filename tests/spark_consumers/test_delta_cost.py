"""What Spark does for each batch of a copy in Delta beside writing it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_consumers.sinks.lake_table import rounded
from tests.spark_consumers.spark_process import SparkProcess

LONGS = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(LONGS, min_size=1))
def test_the_bounds_of_a_batch_contain_its_keys_and_are_values_of_their_type(keys: list[int]) -> None:
    least, greatest = rounded((min(keys), max(keys)), "long")
    assert -(2**63) <= least <= min(keys) <= max(keys) <= greatest < 2**63
    assert greatest - least < 2 * max(1, max(keys) - min(keys))
    if all(-(2**31) <= key < 2**31 for key in keys):
        least, greatest = rounded((min(keys), max(keys)), "int")
        assert -(2**31) <= least <= min(keys) <= max(keys) <= greatest < 2**31


def test_batches_of_random_keys_have_the_same_bounds() -> None:
    chance = random.Random(1)
    keys = [chance.sample(range(5_000, 900_000), 1000) for _ in range(100)]
    assert len({rounded((min(each), max(each)), "long") for each in keys}) == 1


@pytest.mark.services
def test_spark_compiles_nothing_for_a_batch_like_those_before(tmp_path: Path, spark_process: SparkProcess) -> None:
    """Its code has no values of a batch: it takes up to 50 ms of CPU to compile one of 30 classes."""
    assert json.loads(spark_process.run(COMPILED, str(tmp_path), compiled=True))[-2:] == [0, 0]


COMPILED = """
import json, random, sys
from tests.spark_consumers.local_spark import spark
from spark_consumers.copy import TableCopies
from spark_consumers.table_consumer import TableBatch
from tests.spark_consumers.batches import FOREVER, change, in_spark, layout
from tests.spark_consumers.targets import InDelta

LAYOUT = layout({"id": "long"}, {"id": "long", "note": "string"})
chance, counts = random.Random(1), []

with spark() as session:
    ours = InDelta(session, sys.argv[1])
    copies = TableCopies(lambda source, name: ours.table, FOREVER)
    compiled = session.sparkContext._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    for number in range(6):
        keys = chance.sample(range(1000), 100)
        changes = [change(100 * number + n, [str(key)], {"id": key, "note": "n"}) for n, key in enumerate(keys, 1)]
        plan = copies.plan(TableBatch(in_spark(session, changes).coalesce(1), [LAYOUT], {}, {}))
        before = compiled.getCount()
        assert plan.write([])["applied"] == 100
        counts.append(compiled.getCount() - before)
        plan.close()
    json.dump(counts, sys.stdout)
"""
