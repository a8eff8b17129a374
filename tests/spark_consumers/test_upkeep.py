"""The upkeep of tables in a lake: when it is done, what it deletes, and what readers of earlier versions still have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable, QueryBuilder

from spark_consumers.sinks.upkeep import MAINTAINED_AT, IcebergUpkeep, TableUpkeep
from tests.spark_consumers.lake_config import lake_config
from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.topic import Topic, change

HOUR = 3600.0
NOW = 1_000_000.0


class Session:
    """A Spark session with one Delta table. ``statements``: what it was asked, by their first words."""

    def __init__(self, maintained_at: float | None) -> None:
        self.properties = {} if maintained_at is None else {MAINTAINED_AT: str(maintained_at)}
        self.statements: list[str] = []

    def sql(self, statement: str) -> Session:
        self.statements.append(statement.split()[0])
        return self

    def collect(self) -> list[dict[str, str]]:
        return [{"key": key, "value": value} for key, value in self.properties.items()]


@pytest.mark.parametrize(
    ("maintained_at", "expected"),
    [
        (None, ["SHOW", "ALTER"]),  # a new table
        (NOW - HOUR, ["SHOW", "ALTER", "OPTIMIZE", "VACUUM"]),
        (NOW - HOUR + 1, ["SHOW"]),
    ],
)
def test_a_table_is_maintained_once_in_an_interval(maintained_at: float | None, expected: list[str]) -> None:
    """A restart does not begin the interval anew."""
    session: Any = Session(maintained_at)
    upkeep = TableUpkeep("t", lake_config(HOUR, HOUR), clock=lambda: NOW)
    assert upkeep.run(session) is ("VACUUM" in expected)
    assert not upkeep.run(session)
    assert session.statements == expected


@pytest.mark.parametrize(
    ("maintained_at", "expected"), [(NOW - HOUR, ["SHOW", "ALTER", *["CALL"] * 3]), (NOW - HOUR + 1, ["SHOW"])]
)
def test_versions_expire_at_least_as_often_as_they_are_kept(maintained_at: float, expected: list[str]) -> None:
    session: Any = Session(maintained_at)
    upkeep = IcebergUpkeep("lake", "t", lake_config(24 * HOUR, HOUR), clock=lambda: NOW)
    assert upkeep.run(session) is ("CALL" in expected)
    assert session.statements == expected


def test_the_files_of_fifty_batches_are_merged_between_two_upkeeps() -> None:
    session: Any = Session(NOW)
    upkeep = IcebergUpkeep("lake", "t", lake_config(HOUR, HOUR), clock=lambda: NOW)
    for _ in range(100):
        upkeep.run(session)
    assert session.statements == ["SHOW", *["CALL"] * 4]


SCRIPT = """
import pathlib, sys
import spark_consumers
from relay.config import load
from tests.spark_consumers.local_spark import spark

path = pathlib.Path(sys.argv[1])
with spark():
    for consumer in ("log", "copy"):
        checkpoint = path.parent / "checkpoints" / consumer
        spark_consumers.run(consumer, load(path), until_caught_up=True, checkpoint=checkpoint)
"""


def look(folder: Path) -> tuple[int, int, str]:
    """Return how many files a table uses, how many others are there, and whether an earlier version can be read.

    The table under the name has a version for each batch, others have versions for their properties before the first.
    """
    earlier = 0 if folder.name == "orders" else 2
    used = {name.rpartition("/")[2] for name in DeltaTable(folder).file_uris()}
    there = {found.name for found in folder.rglob("*.parquet") if "_delta_log" not in found.parts}
    try:
        QueryBuilder().register("t", DeltaTable(folder, version=earlier)).execute("SELECT * FROM t").read_all()
    except Exception:
        return len(used), len(there - used), "gone"
    return len(used), len(there - used), "readable"


@pytest.mark.services
def test_files_that_no_kept_version_needs_are_deleted(
    tmp_path: Path, kafka: Any, redis_server: Any, unique: str, spark_process: SparkProcess
) -> None:
    topic = Topic(tmp_path, unique, kafka.bootstrap_servers, redis_server.url, spark_process)

    def consume(**upkeep: str) -> Any:
        raw = yaml.safe_load(topic.path.read_text())
        for section in ("log", "copy"):
            raw[section].update(upkeep)
        topic.path.write_text(yaml.safe_dump(raw))
        spark_process.run(SCRIPT, str(topic.path), log=tmp_path / "stderr")
        folders = ("log", "copy/orders/orders", "copy/orders/orders/_relay_rows")
        return {folder: look(tmp_path / folder) for folder in folders}

    topic.publish([change(f"c{number}", 1) for number in range(20)])
    consume()
    topic.publish([change(f"c{number}", 2) for number in range(20)])
    before = consume(maintain_every="1s")
    # The small files are merged, and all are kept for a week.
    for used, unused, earlier in before.values():
        assert (used, unused > 0, earlier) == (1, True, "readable")
    topic.publish([change("c0", 6)])
    after = consume(keep_versions="1s")
    # Those that were merged just now stay for that second.
    for used, _, earlier in after.values():
        assert (used, earlier) == (1, "gone")
