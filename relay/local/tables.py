"""Reads the log and the copy back, as any user of Delta would, with Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from relay.config import Config
from relay.local.workload import HASH_KEY, RANGE_KEY, Item

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read_copy(config: Config, table: str) -> dict[Item, int]:
    """Return the version of every living row of the copy."""
    assert config.copy_ is not None
    path = f"{config.copy_.url.removeprefix('delta://')}/{config.sources[0].name}/{table}"
    rows = _spark().read.format("delta").load(path).where("not _relay_deleted")
    return {
        (row[HASH_KEY], row[RANGE_KEY]): int(orjson.loads(row["item"])["version"]["N"])
        for row in rows.select(HASH_KEY, RANGE_KEY, "item").collect()
    }


def read_log(config: Config) -> list[str]:
    """Return the event id of every row of the log."""
    assert config.log is not None
    return [row[0] for row in _spark().read.format("delta").load(config.log.path).select("event_id").collect()]


def _spark() -> SparkSession:
    from spark_consumers.session import open_session

    return open_session("relay demo", delta=True)
