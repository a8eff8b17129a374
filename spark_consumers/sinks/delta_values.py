"""The kinds of the columns of a copy in Delta, and the Spark expressions of their values and texts."""

from collections.abc import Mapping

import orjson
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from relay.types.columns import MAX_AVRO_PRECISION, ColumnKind, column_type
from spark_consumers.sinks import columns, delta
from spark_consumers.sinks.columns import CopiedColumn, Naming

VARIANT = "variant"
"""The kind of JSON that Spark has taken apart."""

OURS = {
    "_relay_token": "STRING",
    "_relay_deleted": "BOOLEAN",
    "_relay_event_id": "STRING",
    "_relay_incomplete": "BOOLEAN",
    "_relay_updated_at": "TIMESTAMP",
    "_relay_read_as_of": "BIGINT",
    "_relay_partition": "INT",
    "_relay_topic": "STRING",
    "_relay_offset": "BIGINT",
}
"""The columns of the relay. Users query them: add new ones at the end."""


KEY = "relay.key"
"""The property of a table that has the columns of its key in their order, a JSON list."""


def key_of(properties: Mapping[str, str]) -> list[str] | None:
    """Return the columns of a table's key, or None if it does not say what they are."""
    names: list[str] | None = orjson.loads(properties.get(KEY, "null"))
    return names


def naming(json: str) -> Naming:
    """Return what Delta makes of names and kinds. ``json``: the kind that holds JSON."""

    def stored_as(kind: str) -> str:
        """Return the kind that holds the values of a kind: numbers that Spark has no type for are text."""
        if kind == ColumnKind.JSON:
            return json
        return ColumnKind.STRING if kind == columns.NUMBER or column_type(kind).is_wide else kind

    return Naming(reserved=frozenset(OURS), shown=str, same=str.lower, kind=stored_as, digits=MAX_AVRO_PRECISION)


_PARSED_IN_FULL = {"maxStringLen": str((1 << 31) - 1), "mode": "FAILFAST"}


def from_json(text: Column, kind: str) -> Column:
    """Return the value of Spark's type ``kind`` that JSON has."""
    # I8: by default all of it is null if a text in it has more than 20 million characters, or if it is not JSON.
    return F.from_json(text, kind, _PARSED_IN_FULL)


def is_ansi(frame: DataFrame) -> bool:
    """Whether casts fail in the session of a frame; else they return null. Its user decides."""
    return str(frame.sparkSession.conf.get("spark.sql.ansi.enabled")) == "true"


def value_of(text: Column, kind: str, is_ansi: bool) -> Column:
    """Return a value of this kind, made of its text as the consumers write it."""
    if kind == ColumnKind.STRING:
        return text
    if kind == ColumnKind.BYTES:
        return F.unbase64(text)
    if kind == ColumnKind.SET:
        return from_json(text, delta.sql_type(kind))
    if kind == VARIANT:
        return F.parse_json(text)
    if is_ansi:
        return text.cast(delta.sql_type(kind))
    value = text.try_cast(delta.sql_type(kind))
    misfit = F.raise_error(F.concat(F.lit(f"{delta.MISFIT} {kind} is expected, not "), text))
    # I8: null would stand for what the source does not have. It takes 8 ms of planning, so not where a cast does it.
    return F.when(text.isNotNull() & value.isNull(), misfit).otherwise(value)


def text_of(value: Column, kind: str) -> Column:
    """Return the text of a value."""
    if kind == ColumnKind.BYTES:
        return F.translate(F.base64(value), "\r\n", "")
    if kind == ColumnKind.TIMESTAMP:
        return delta.iso_utc(value)
    return F.to_json(value) if kind in (ColumnKind.SET, VARIANT) else value.cast("string")


def from_image(column: CopiedColumn, is_ansi: bool) -> Column:
    """Return a column's value in a change whose image has ``fields``."""
    if not column.sources:
        return F.lit(None).cast(delta.sql_type(column.kind))
    text = F.lit(None).cast("string")
    for name, numbers in column.layouts.items():
        held = F.col("new") if name is None else F.try_element_at("fields", F.lit(name))
        # Evaluated only for those layouts: a field may have another type in others.
        text = F.when(F.col("layout").isin(numbers), held).otherwise(text)
    return value_of(text, column.kind, is_ansi)
