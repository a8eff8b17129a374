"""The column types in Debezium's envelope: the schema of each, as Kafka Connect's Avro converters write it.

These are Debezium's default modes: ``time.precision.mode=adaptive_time_microseconds``,
``decimal.handling.mode=precise``, ``bigint.unsigned.handling.mode=long`` and ``binary.handling.mode=bytes``. The values
are in ``relay.avro.connect_values``.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from relay.types.columns import ColumnKind, column_type

_ILLEGAL = re.compile(r"[^A-Za-z0-9_]|^(?=[0-9])")
_TIME, _DATA = "io.debezium.time", "io.debezium.data"


def avro_name(name: str) -> str:
    """Return a name with ``_`` in place of what Avro does not allow, as Debezium's ``avro`` adjustment has it."""
    return _ILLEGAL.sub("_", name)


def one_name(columns: Iterable[str]) -> str:
    """Return which ``columns`` would have one name in Avro, and what to do; "" if each has its own."""
    found = {name: avro_name(name) for name in columns}
    if len(set(found.values())) == len(found):
        return ""
    twice = sorted(name for name in found if list(found.values()).count(found[name]) > 1)
    return (
        f"the columns {', '.join(twice)} have the same name in `envelope: debezium`, which writes `_` for what Avro "
        "does not allow: rename one of them, or use `envelope: change`"
    )


class Semantic(StrEnum):
    """How a value is written, where the kind of its column does not say it."""

    INT16 = "int16"
    UNSIGNED_LONG = "bigint unsigned"
    DECIMAL = "org.apache.kafka.connect.data.Decimal"
    DATE = f"{_TIME}.Date"
    TIMESTAMP = f"{_TIME}.Timestamp"
    MICRO_TIMESTAMP = f"{_TIME}.MicroTimestamp"
    MICRO_TIME = f"{_TIME}.MicroTime"
    ZONED_TIMESTAMP = f"{_TIME}.ZonedTimestamp"
    YEAR = f"{_TIME}.Year"
    JSON = f"{_DATA}.Json"
    ENUM = f"{_DATA}.Enum"
    ENUM_SET = f"{_DATA}.EnumSet"
    BIT = "bit(1)"
    BITS = f"{_DATA}.Bits"
    GEOMETRY = f"{_DATA}.geometry.Geometry"
    FLOAT_VECTOR = f"{_DATA}.FloatVector"


@dataclass(frozen=True, slots=True)
class ConnectType:
    """``semantic``: how a value is written; None: by the column's kind. ``has_zero``: 0 is the zero TIMESTAMP."""

    avro: Any
    semantic: Semantic | None = None
    has_zero: bool = False


# By the first word of a column's detail: of an SQL type that the kind of its column does not tell.
_DETAILED = {
    "tinyint": Semantic.INT16,
    "smallint": Semantic.INT16,
    "bigint unsigned": Semantic.UNSIGNED_LONG,
    "year": Semantic.YEAR,
    "time": Semantic.MICRO_TIME,
    "timestamp": Semantic.ZONED_TIMESTAMP,
    "enum": Semantic.ENUM,
    "set": Semantic.ENUM_SET,
    "geometry": Semantic.GEOMETRY,
    "vector": Semantic.FLOAT_VECTOR,
    "tinyint unsigned": Semantic.INT16,
}
# By what `SqlType.told` says, of columns without a detail.
_TOLD = {"date": Semantic.DATE, "json": Semantic.JSON}
_BY_KIND = {
    ColumnKind.DECIMAL: Semantic.DECIMAL,
    ColumnKind.TIMESTAMP: Semantic.ZONED_TIMESTAMP,
    ColumnKind.JSON: Semantic.JSON,
    ColumnKind.REST: Semantic.JSON,
}
_WITHOUT_NAME: dict[Semantic, Any] = {
    Semantic.INT16: {"type": "int", "connect.type": "int16"}, Semantic.UNSIGNED_LONG: "long", Semantic.BIT: "boolean"
}  # fmt: skip
_AVRO = {
    **dict.fromkeys((Semantic.DATE, Semantic.YEAR), "int"),
    **dict.fromkeys((Semantic.TIMESTAMP, Semantic.MICRO_TIMESTAMP, Semantic.MICRO_TIME), "long"),
    Semantic.BITS: "bytes",
}
_PARAMETERS = {Semantic.ENUM: "allowed", Semantic.ENUM_SET: "allowed", Semantic.BITS: "length"}
_DETAIL = re.compile(r"([a-z ]+)(?:\((.*)\))?", re.DOTALL)


def connect_type(kind: str, sql: str = "", detail: str = "") -> ConnectType:
    """Return the type of a column. ``kind``, ``sql``, ``detail``: see `Column`."""
    name, inside = "", ""
    if (match := _DETAIL.fullmatch(detail)) is not None:
        name, inside = match[1], match[2] or ""
    found = column_type(kind)
    semantic = _DETAILED.get(name) or _TOLD.get(sql) or _BY_KIND.get(found.kind)
    if name == "datetime":
        semantic = Semantic.TIMESTAMP if int(inside) <= 3 else Semantic.MICRO_TIMESTAMP
    elif name == "bit":
        semantic = Semantic.BIT if inside == "1" else Semantic.BITS
    match semantic:
        case None:
            return ConnectType(found.avro)
        case Semantic.INT16 | Semantic.UNSIGNED_LONG | Semantic.BIT:
            return ConnectType(_WITHOUT_NAME[semantic], semantic)
        case Semantic.DECIMAL:
            digits = {"scale": found.scale, "precision": found.precision}
            said = {"scale": str(found.scale), "connect.decimal.precision": str(found.precision)}
            return ConnectType({**_named("bytes", semantic, said), **digits, "logicalType": "decimal"}, semantic)
        case Semantic.ZONED_TIMESTAMP:
            return ConnectType(_named("string", semantic), semantic, has_zero=bool(detail))
        case Semantic.FLOAT_VECTOR:
            return ConnectType({**_named("array", semantic), "items": "float"}, semantic)
        case Semantic.GEOMETRY:
            fields = [{"name": "wkb", "type": "bytes"}, {"name": "srid", "type": ["null", "int"], "default": None}]
            record = {"name": "Geometry", "namespace": f"{_DATA}.geometry", "fields": fields}
            return ConnectType({**_named("record", semantic), **record, "connect.doc": "Geometry"}, semantic)
        case _:
            parameters = {_PARAMETERS[semantic]: inside} if semantic in _PARAMETERS else None
            return ConnectType(_named(_AVRO.get(semantic, "string"), semantic, parameters), semantic)


def _named(avro: str, semantic: Semantic, parameters: dict[str, str] | None = None) -> dict[str, Any]:
    said = {"connect.parameters": parameters} if parameters else {}
    return {"type": avro, "connect.version": 1, **said, "connect.name": str(semantic)}
