"""Formats rows for PostgreSQL's COPY in Spark, since Python takes longer for it than PostgreSQL for the rest."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from relay.change import Operation

_LINES = 500  # that come to Python as one text


def copied_lines(newest: DataFrame, key_columns: int) -> Iterator[bytes]:
    """Yield lines of COPY's text format: the columns of a key, then the others of ``relay_newest``."""
    is_deleted = F.col("operation") == Operation.DELETE
    columns = [
        *(F.col("key_texts")[n] for n in range(key_columns)),
        F.col("layout"),
        F.when(~is_deleted, F.col("new")),
        F.col("stem"),
        F.col("first"),
        F.col("number"),
        F.col("changes"),
        F.col("token"),
        is_deleted,
        F.col("event_id"),
        F.col("topic"),
        F.col("partition"),
        F.col("offset"),
    ]
    line = F.concat_ws("\t", *map(_field, columns)).alias("line")
    # The higher bits are the number of the partition, so nothing is moved but whole texts.
    group = F.floor(F.monotonically_increasing_id() / _LINES).alias("group")
    texts = newest.select(line, group).groupBy("group").agg(F.array_join(F.collect_list("line"), "\n"))
    for _, text in texts.toLocalIterator():
        yield f"{text}\n".encode()


def _field(column: Column) -> Column:
    text = column.cast("string")
    for special, escaped in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        text = F.replace(text, F.lit(special), F.lit(escaped))
    return F.coalesce(text, F.lit("\\N"))
