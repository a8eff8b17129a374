"""I7: what SQL decides of a batch is what the rule makes of it, change by change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row

from spark_consumers.newest import BatchSummary, KeyBounds
from tests.spark_consumers.spark_process import SparkProcess


def bounds(least: str | None, greatest: str | None) -> Row:
    numbers = (None, None) if least is None or greatest is None else (int(least), int(greatest))
    is_number = least is not None
    return Row(least=least, greatest=greatest, lowest=numbers[0], highest=numbers[1], is_number=is_number)


def group(layout: int, *found: Row) -> Row:
    counts: dict[str, Any] = {"records": 3, "plain": 2, "items": 1, "of_table": 0}
    return Row(status="change", layout=layout, topic="shop.orders", bounds=list(found), **counts)


def test_a_table_has_bounds_of_its_own_key_columns_though_another_key_is_longer() -> None:
    none = bounds(None, None)
    batch = BatchSummary(
        {}, (group(0, bounds("9", "10"), none), group(1, bounds("2", "30"), none), group(2, none, none))
    )
    found = batch.table([0, 1])
    assert found.bounds == (KeyBounds(("2", "30"), (2, 30)),)
    assert (found.changes, found.items, found.others, found.is_by_item) == (4, 2, 2, True)


@pytest.mark.services
def test_random_histories_end_in_postgresql_as_by_the_rule(database_url: str, spark_process: SparkProcess) -> None:
    spark_process.run(IN_POSTGRES, database_url)


@pytest.mark.services
def test_random_histories_end_in_delta_as_by_the_rule(tmp_path: Path, spark_process: SparkProcess) -> None:
    spark_process.run(IN_DELTA, str(tmp_path))


IN_POSTGRES = """
import sys
from relay.demo.tables import spark
from tests.spark_consumers.histories import compare_with_the_rule
from tests.spark_consumers.targets import InPostgres

with spark() as session:
    for seed in range(3):
        table = InPostgres(sys.argv[1], playing=session)
        compare_with_the_rule(table, seed, keeps_nul=False, oddity=0 if seed == 0 else 12)
        with table.database.transaction() as connection:
            connection.execute(b"DROP SCHEMA shop CASCADE")
        table.database.close()
"""

IN_DELTA = """
import sys
from relay.demo.tables import spark
from tests.spark_consumers.histories import compare_with_the_rule
from tests.spark_consumers.targets import InDelta

with spark() as session:
    # In batches with a READ, all rows are decided by the rule itself.
    for oddity in (0, 12):
        compare_with_the_rule(InDelta(session, f"{sys.argv[1]}/{oddity}"), oddity, changes=50, oddity=oddity)
"""
