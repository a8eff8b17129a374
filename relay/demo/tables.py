"""Reads the log and the copy with Spark, as any user of Delta would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from relay.config import Config
from relay.demo.workload import HASH_KEY, RANGE_KEY, Item, version_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read_copy(session: SparkSession, config: Config, table: str) -> dict[Item, int]:
    """Return the version of every row of the copy that is not deleted."""
    assert config.copy_ is not None
    path = f"{config.copy_.url.removeprefix('delta://')}/{config.sources[0].name}/{table}"
    rows = session.read.format("delta").load(path).where("not _relay_deleted")
    # The rows of SQL tables have their columns, and those of DynamoDB are items.
    image = "item" if "item" in rows.columns else "version"
    return {
        (row[HASH_KEY], str(row[RANGE_KEY])): version_in(row["item"] if image == "item" else row.asDict())
        for row in rows.select(HASH_KEY, RANGE_KEY, image).collect()
    }


def read_log(session: SparkSession, config: Config) -> list[str]:
    """Return the event id of every row of the log."""
    assert config.log is not None
    return [row[0] for row in session.read.format("delta").load(config.log.path).select("event_id").collect()]


@contextmanager
def spark() -> Iterator[SparkSession]:
    """Open a session for this process, and end its JVM at the end."""
    from spark_consumers.session import close_session, open_session

    session = open_session("relay demo", delta=True)
    try:
        yield session
    finally:
        close_session(session)
