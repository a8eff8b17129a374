"""Makes rows for PostgreSQL's COPY of the newest changes of items, by the Java class beside this package.

In Spark's SQL it takes several times as long as PostgreSQL does for all the rest, and Python takes as long again. They
are binary, as "COPY" in PostgreSQL's documentation describes it, since to escape texts takes as long as all else here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.serializers import NoOpSerializer

from spark_consumers.java_classes import new_instance

COPIED_COLUMNS = {
    "_relay_partition": "integer",
    "_relay_offset": "bigint",
    "_relay_topic": "text",
    "_relay_token": "text",
    "_relay_deleted": "boolean",
    "_relay_event_id": "text",
    "layout": "integer",
    "image": "text",
    "stem": "text",
    "first": "text",
    "number": "text",
    "changes": "integer",
    "first_offset": "bigint",
    "as_of": "bigint",
}
"""What follows the parts of the key in a row, in its order, which is that of the rows of `PlainItems`."""

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)  # no flags, no extension
_TRAILER = b"\xff\xff"


def copied_rows(context: SparkContext, rows: Any, keys: int) -> Iterator[bytes]:
    """Yield what COPY reads, one row for each of ``rows`` of `PlainItems`. ``keys``: how many parts a key has."""
    several: RDD[bytes] = RDD(rows.mapPartitions(new_instance(context, "CopiedRows", keys)), context, NoOpSerializer())
    yield _HEADER
    yield from several.toLocalIterator()
    yield _TRAILER
