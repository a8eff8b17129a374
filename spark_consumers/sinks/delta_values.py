"""The kinds of the columns of a copy in Delta, and the Spark expressions of their values and texts."""

from collections.abc import Mapping, Sequence

import orjson
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from relay.types.columns import MAX_AVRO_PRECISION, ColumnKind, column_type
from spark_consumers.records import Layout
from spark_consumers.sinks import columns, delta
from spark_consumers.sinks.columns import AS_TEXT, UNFIT, CopiedColumn, Naming

VARIANT = "variant"
"""The kind of JSON that Spark has taken apart."""

OURS = {
    UNFIT: "STRING",
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

_KEY_TEXTS = tuple(f"_relay_key_{n}" for n in range(16))  # no database has keys of more columns
HIDDEN = frozenset((*OURS, *_KEY_TEXTS))
"""All columns that no source has."""

KEY = "relay.key"
"""The property of a table that has the columns of its key in their order, a JSON list."""


def key_of(properties: Mapping[str, str]) -> list[str] | None:
    """Return the columns of a table's key, or None if it does not say what they are."""
    names: list[str] | None = orjson.loads(properties.get(KEY, "null"))
    return names


def stored_kinds(schema: StructType, key: Sequence[str] | None) -> dict[str, str]:
    """Return the kinds of the columns of a table that are not ours, by name. ``key``: the columns of its key."""
    found = {field.name: delta.kind_of(field.dataType) for field in schema}
    texts = {
        name: f"{found[name]}{AS_TEXT}" for text, name in zip(_KEY_TEXTS, key or (), strict=False) if text in found
    }
    return {name: kind for name, kind in (found | texts).items() if name not in HIDDEN}


def key_columns(keys: Sequence[CopiedColumn]) -> list[str]:
    """Return the columns that hold the parts of a key."""
    return [_KEY_TEXTS[n] if key.kind.endswith(AS_TEXT) else key.name for n, key in enumerate(keys)]


def shown_keys(keys: Sequence[CopiedColumn]) -> dict[str, str]:
    """Return, by column, the SQL of the times that the texts of a key of the row ``s`` are."""
    found = {}
    for n, key in enumerate(keys):
        if (time := key.kind.removesuffix(AS_TEXT)) != key.kind:
            cast = f"try_cast(s.k{n} AS {delta.sql_type(time)})"
            found[delta.quoted(key.name)] = f"CASE WHEN s.k{n} >= '{_FIRST}' THEN {cast} END"
    return found


def naming(json: str) -> Naming:
    """Return how Delta treats names and kinds. ``json``: the kind that holds JSON."""

    def stored_as(kind: str) -> str:
        """Return the kind that holds the values of a kind: numbers that Spark has no type for are text."""
        if kind == ColumnKind.JSON:
            return json
        return ColumnKind.STRING if kind == columns.NUMBER or column_type(kind).is_wide else kind

    return Naming(
        reserved=HIDDEN, shown=str, same=str.lower, kind=stored_as, digits=MAX_AVRO_PRECISION, times=delta.TIMES
    )


_FIRST = "0001"  # year: readers other than Spark have no earlier one
_ZERO = "1970-01-01T00:00:00.000000Z"  # SQL's zero TIMESTAMP: no other has this text
_WIDE = r"([0-9]\.?){39}"  # digits that Spark would round in a VARIANT
_PARSED_IN_FULL = {"maxStringLen": str((1 << 31) - 1), "mode": "FAILFAST"}


def from_json(text: Column, kind: str) -> Column:
    """Return the value of Spark's type ``kind`` that JSON has."""
    # I8: by default all of it is null if a text in it has more than 20 million characters, or if it is not JSON.
    return F.from_json(text, kind, _PARSED_IN_FULL)


def is_ansi(frame: DataFrame) -> bool:
    """Whether casts fail in the session of a frame; else they return null. Its user decides."""
    return str(frame.sparkSession.conf.get("spark.sql.ansi.enabled")) == "true"


def value_of(text: Column, kind: str, is_ansi: bool) -> Column:
    """Return a value of this kind, built from its text as the consumers write it."""
    if kind == ColumnKind.STRING or kind.endswith(AS_TEXT):
        return text
    if kind == ColumnKind.BYTES:
        return F.unbase64(text)
    if kind == ColumnKind.SET:
        return from_json(text, delta.sql_type(kind))
    if kind == VARIANT:
        return F.parse_json(text)
    if kind in delta.TIMES:
        return F.when(text >= F.lit(_FIRST), text.try_cast(delta.sql_type(kind)))
    if is_ansi:
        return text.cast(delta.sql_type(kind))
    value = text.try_cast(delta.sql_type(kind))
    misfit = F.raise_error(F.concat(F.lit(f"{delta.MISFIT} {kind} is expected, not "), text))
    # I8: null would stand for what the source does not have. It takes 8 ms of planning, so not where a cast does it.
    return F.when(text.isNotNull() & value.isNull(), misfit).otherwise(value)


def text_of(value: Column, kind: str) -> Column:
    if kind == ColumnKind.BYTES:
        return F.translate(F.base64(value), "\r\n", "")
    if kind == ColumnKind.TIMESTAMP:
        return delta.iso_utc(value)
    return F.to_json(value) if kind in (ColumnKind.SET, VARIANT) else value.cast("string")


def row_of(row: Sequence[CopiedColumn], layouts: Mapping[int, Layout], is_ansi: bool) -> dict[str, Column]:
    """Return, by column, the values in a change whose image has ``fields``; in ``UNFIT`` those that do not fit (I8)."""
    sql = {(field.name, field.sql) for each in layouts.values() for field in each.row or ()}
    found, misfits = {}, []
    for column in row:
        text = F.lit(None).cast("string")
        held = {}
        for name, numbers in column.layouts.items():
            # Evaluated only for those layouts: a field may have a different type in others.
            is_of = F.col("layout").isin(numbers)
            field = F.col("new") if name is None else F.try_element_at("fields", F.lit(name))
            held[name], text = F.when(is_of, field), F.when(is_of, field).otherwise(text)
        fits = None
        if column.kind == ColumnKind.TIMESTAMP and any((name, "timestamp") in sql for name in held):
            fits = text != _ZERO
        elif column.kind == VARIANT and any((name, "json") in sql for name in held):
            fits = ~text.rlike(_WIDE)
        value = value_of(text if fits is None else F.when(fits, text), column.kind, is_ansi)
        found[column.name] = value if held else F.lit(None).cast(delta.sql_type(column.kind))
        if fits is not None or column.kind in delta.TIMES:
            misfits += [F.when(value.isNull(), each).alias(str(name)) for name, each in held.items()]
    beside = F.nullif(F.to_json(F.struct(*misfits)), F.lit("{}")) if misfits else F.lit(None).cast("string")
    return {**found, UNFIT: beside}
