"""The versions and files of a copy in Iceberg that its upkeep removes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.spark_consumers.spark_process import SparkProcess


@pytest.mark.services
def test_old_versions_expire_and_small_files_are_merged(tmp_path: Path, spark_process: SparkProcess) -> None:
    found = json.loads(spark_process.run(UPKEEP, str(tmp_path)))
    assert found["before"][0] >= 4
    assert found["before"][1] >= 4
    assert found["after"] in ([1, 1], [1, 2])  # the deletes of the last batch stay until the next time
    assert found["rows"] == [[1, "d"], [2, "b"]]
    assert found["parquet"] == found["after"][1], "nothing else is there"


UPKEEP = """
import json, sys, time
from pathlib import Path
from urllib.parse import urlsplit
from tests.spark_consumers.local_spark import spark
from tests.spark_consumers.scenarios import ORDERS, order
from tests.spark_consumers.targets import InIceberg
from spark_consumers.spark_internals import iceberg_table
from spark_consumers.sinks.upkeep import IcebergUpkeep
from tests.spark_consumers.lake_config import lake_config

with spark() as session:
    table = InIceberg(session, sys.argv[1])
    for number, note in enumerate("abcd", 1):
        table.play(ORDERS, order(number, 2 if note == "b" else 1, note))

    def look():
        counts = (session.sql(f"SELECT count(*) FROM {table.stored}.{kind}") for kind in ("snapshots", "files"))
        return [each.collect()[0][0] for each in counts]

    before = look()
    upkeep = IcebergUpkeep("lake", table.stored, lake_config(1.0, 1.0), clock=lambda: time.time() + 7200)
    assert upkeep.run(session)
    folder = Path(urlsplit(iceberg_table(session, table.stored).location()).path)
    parquet = len(list((folder / "data").rglob("*.parquet")))
    json.dump({"before": before, "after": look(), "rows": table.rows("id", "note"), "parquet": parquet}, sys.stdout)
"""
