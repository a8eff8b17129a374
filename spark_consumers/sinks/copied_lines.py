"""Makes lines of PostgreSQL's COPY of changes, by the Java class beside this package.

In Spark's SQL it takes several times as long as PostgreSQL does for all the rest, and Python takes as long again.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark import RDD
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from relay.change import REDRIVEN
from spark_consumers.java_classes import new_instance
from spark_consumers.plain_tokens import PLAIN_TOKEN

PLAIN_COLUMNS = {
    "_relay_partition": "integer",
    "_relay_offset": "bigint",
    "is_plain": "boolean",
    "stem": "text",
    "number": "text",
    "layout": "integer",
    "image": "text",
    "_relay_token": "text",
    "_relay_deleted": "boolean",
    "_relay_event_id": "text",
    "_relay_topic": "text",
}
"""What follows the parts of the key in a line, in its order. All but the first two are only there if it is plain."""


def copied_lines(changes: DataFrame, keys: int) -> Iterator[bytes]:
    """Yield texts of many lines, one for each change of one item. ``keys``: the number of parts that its key has."""
    session = changes.sparkSession
    is_redriven = F.try_element_at("attributes", F.lit(REDRIVEN)).isNotNull()
    read = changes.select(
        *("key_texts", "layout", "operation", "new", "token", "event_id", "topic", "partition", "offset"),
        F.coalesce(is_redriven, F.lit(False)).alias("redriven"),
    )
    context = session.sparkContext
    lines = new_instance(context, "PlainLines", PLAIN_TOKEN, keys, using=["PlainToken"])
    rows = read._jdf.queryExecution().toRdd().toJavaRDD()
    texts: RDD[bytes] = RDD(rows.mapPartitions(lines), context, NoOpSerializer())
    return texts.toLocalIterator()
