"""Writers of one value of each type in Debezium's envelope as Avro bytes, exactly or not at all (I8).

They take the values of ``relay.types.sql``. A zero date, or one with a zero in it, is null, as Debezium documents;
anything else that a type cannot carry is refused, even where Debezium writes another value.
"""

import re
from collections.abc import Callable
from datetime import date
from functools import lru_cache
from typing import Any

from relay.avro import columns
from relay.avro.columns import NULL, PRESENT, Writer, blob, long, text
from relay.types.columns import EPOCH, MICROSECOND, column_type
from relay.types.connect import ConnectType, Semantic

_FIRST_DAY = date(1970, 1, 1).toordinal()
_CYCLE = 400, 146_097  # years of the calendar, and their days
_DATE = re.compile(r"(\d{4,})-(\d\d)-(\d\d)")
_TIME = re.compile(r"(-?)(\d{2,}):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_INT16 = range(-(1 << 15), 1 << 15)
_LARGEST_LONG = (1 << 63) - 1
_REMEMBERED = 1 << 13


class ZeroDate(ValueError):
    """A date with a zero in it has no day. In a column that may be null, it is null."""


@lru_cache(_REMEMBERED)
def _days(value: str) -> int:
    """Return the days since the epoch of a date as SQL prints it."""
    match = _DATE.fullmatch(value)
    if match is None:
        raise ValueError(f"{value!r} is not a date")
    year, month, day = map(int, match.groups())
    if not month or not day:
        raise ZeroDate(f"{value!r} is not a day")
    if year:
        return date(year, month, day).toordinal() - _FIRST_DAY
    return date(_CYCLE[0], month, day).toordinal() - _CYCLE[1] - _FIRST_DAY


@lru_cache(_REMEMBERED)
def _time(value: str) -> int:
    """Return the microseconds of a time as SQL prints it."""
    match = _TIME.fullmatch(value)
    if match is None:
        raise ValueError(f"{value!r} is not a time")
    sign, hours, minutes, seconds, fraction = match.groups()
    size = (int(hours) * 3600 + int(minutes) * 60 + int(seconds)) * 1_000_000 + int((fraction or "").ljust(6, "0"))
    return -size if sign else size


def _micro_timestamp(value: str) -> int:
    day, _, time = value.partition(" ")
    return _days(day) * 86_400_000_000 + _time(time)


def _zoned(value: Any) -> bytes:
    shown = (EPOCH + columns.microseconds(value) * MICROSECOND).replace(tzinfo=None).isoformat()
    return text(f"{shown.rstrip('0') if '.' in shown else shown}Z")


def _timestamp(value: Any) -> bytes:
    if not columns.microseconds(value):
        raise ZeroDate("the zero TIMESTAMP is not a time")
    return _zoned(value)


def _int16(value: Any) -> bytes:
    if value not in _INT16:
        raise ValueError(f"{value!r} does not fit into 16 bits")
    return long(value)


def _unsigned(value: Any) -> bytes:
    if value > _LARGEST_LONG:
        raise ValueError(f"{value} does not fit into a signed long, in which Debezium has a BIGINT UNSIGNED")
    return long(int(value))


def _geometry(value: bytes) -> bytes:
    srid = int.from_bytes(value[:4], "little")
    return blob(value[4:]) + (PRESENT + long(srid) if srid else NULL)


def _vector(value: bytes) -> bytes:
    count, rest = divmod(len(value), 4)
    if rest:
        raise ValueError(f"a vector of {len(value)} bytes")
    return (long(count) + value if count else b"") + b"\x00"


def _milliseconds(value: str) -> bytes:
    whole, rest = divmod(_micro_timestamp(value), 1000)
    if rest:
        raise ValueError(f"{value!r} has more than three decimals")
    return long(whole)


_WRITERS: dict[Semantic, Callable[[Any], bytes]] = {
    Semantic.INT16: _int16,
    Semantic.UNSIGNED_LONG: _unsigned,
    Semantic.DATE: lambda value: long(_days(value)),
    Semantic.TIMESTAMP: _milliseconds,
    Semantic.MICRO_TIMESTAMP: lambda value: long(_micro_timestamp(value)),
    Semantic.MICRO_TIME: lambda value: long(_time(value)),
    Semantic.YEAR: columns.writer("int"),
    Semantic.JSON: columns.write_string,
    Semantic.ENUM: columns.write_string,
    Semantic.ENUM_SET: lambda value: text(",".join(value)),
    Semantic.BIT: lambda value: b"\x01" if value[-1] & 1 else b"\x00",
    Semantic.BITS: lambda value: blob(value[::-1]),
    Semantic.GEOMETRY: _geometry,
    Semantic.FLOAT_VECTOR: _vector,
}


def required(kind: str, connect: ConnectType) -> Writer:
    """Return the writer of a column that is never null. ``kind``: the `Column.type`."""
    if connect.semantic is None:
        return columns.writer(kind)
    if connect.semantic is Semantic.DECIMAL:
        return columns.unscaled(column_type(kind))
    if connect.semantic is Semantic.ZONED_TIMESTAMP:
        return _timestamp if connect.has_zero else _zoned
    return _WRITERS[connect.semantic]


def optional(kind: str, connect: ConnectType) -> Writer:
    """Return the writer of a column that may be null, and is null for a zero date."""
    write = required(kind, connect)

    def nullable(value: Any) -> bytes:
        if value is None:
            return NULL
        try:
            return PRESENT + write(value)
        except ZeroDate:
            return NULL

    return nullable
