"""Formats rows for PostgreSQL's COPY in Spark, since Python takes longer for it than PostgreSQL for the rest."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

_LINES = 500  # that come to Python as one text


def copied_lines(rows: DataFrame) -> Iterator[bytes]:
    """Yield lines of COPY's text format, whose columns are those of ``rows``."""
    line = F.concat_ws("\t", *(_field(F.col(name)) for name in rows.columns)).alias("line")
    # The higher bits are the number of the partition, so nothing is moved but whole texts.
    group = F.floor(F.monotonically_increasing_id() / _LINES).alias("group")
    texts = rows.select(line, group).groupBy("group").agg(F.array_join(F.collect_list("line"), "\n"))
    for _, text in texts.toLocalIterator():
        yield f"{text}\n".encode()


def _field(column: Column) -> Column:
    text = column.cast("string")
    for special, escaped in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        text = F.replace(text, F.lit(special), F.lit(escaped))
    return F.coalesce(text, F.lit("\\N"))
