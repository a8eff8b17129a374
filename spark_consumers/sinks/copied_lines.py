"""Formats rows for PostgreSQL's COPY in Spark, since Python takes longer for it than PostgreSQL for the rest."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import or_

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
    escaped = text
    for special, replaced in _ESCAPED.items():
        escaped = F.replace(escaped, F.lit(special), F.lit(replaced))
    # Few texts have one, and Spark looks for it several times as fast as it replaces.
    has_special = reduce(or_, (F.contains(text, F.lit(special)) for special in _ESCAPED))
    return F.coalesce(F.when(has_special, escaped).otherwise(text), F.lit("\\N"))


_ESCAPED = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
"""What COPY's text format has for special characters; the backslash comes first."""
