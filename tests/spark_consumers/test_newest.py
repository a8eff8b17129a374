"""I7: what SQL decides of a batch is what the rule makes of it, change by change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark_consumers.spark_process import SparkProcess

pytestmark = pytest.mark.services


def test_random_histories_end_in_postgresql_as_by_the_rule(database_url: str, spark_process: SparkProcess) -> None:
    spark_process.run(IN_POSTGRES, database_url)


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
    compare_with_the_rule(InDelta(session, sys.argv[1]), 1, changes=70)
"""
