"""Writers of one value of each column type as Avro bytes. They raise ValueError for one that is not exact (I8).

``schemas/README.md`` lists the column types and the values that they take, the golden files the bytes.
"""

import math
import struct
from collections.abc import Callable
from datetime import datetime
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any

from relay.types.columns import EPOCH, FIRST_TIME, LAST_TIME, MICROSECOND, ColumnKind, ColumnType, column_type

Writer = Callable[[Any], bytes]

_FLOAT = struct.Struct("<f")

NULL = b"\x00"  # the first branch of our unions
PRESENT = b"\x02"  # the second branch


@lru_cache(maxsize=1 << 13, typed=True)  # lengths and times are often repeated
def long(value: int) -> bytes:
    """Return an Avro int or long: seven bits per byte, low bits first. Raises ValueError for more than 64 bits."""
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value} does not fit into 64 bits")
    number = value << 1 ^ value >> 63
    groups = []
    while number >= 0x80:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*groups, number))


def text(value: str) -> bytes:
    """Return an Avro string. Raises UnicodeEncodeError for a lone surrogate, which UTF-8 cannot encode."""
    return blob(value.encode())


def blob(value: bytes) -> bytes:
    return long(len(value)) + value


def writer(column: str) -> Writer:
    """Return the writer of a column type. Raises ValueError for an unknown type."""
    found = column_type(column)
    return WRITERS[found.kind](found)


def nullable(write: Writer) -> Writer:
    return lambda value: NULL if value is None else PRESENT + write(value)


def _refuse(value: Any, kind: str) -> ValueError:
    shown = repr(value)
    if len(shown) > 100:
        shown = shown[:100] + "..."
    return ValueError(f"{shown} ({type(value).__name__}) cannot be carried exactly as {kind}")


def write_string(value: Any) -> bytes:
    if not isinstance(value, str):
        raise _refuse(value, "string")
    return text(value)


def write_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise _refuse(value, "bytes")
    return blob(value)


def _boolean(value: Any) -> bytes:
    if not isinstance(value, bool):
        raise _refuse(value, "boolean")
    return b"\x01" if value else b"\x00"


def _exact(value: Any) -> Decimal | None:
    """Return an int or finite Decimal as Decimal, or None for anything else. True is not 1, and -0 is 0."""
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    if isinstance(value, Decimal) and value.is_finite():
        return value if value else Decimal(0)
    return None


def scaled(value: Any, kind: ColumnType) -> int:
    """Return a number times 10**scale. Raises ValueError if that is not an integer, or has too many digits."""
    exact = _exact(value)
    if exact is None:
        raise _refuse(value, str(kind))
    if not exact:
        return 0
    sign, digits, exponent = exact.as_tuple()
    significant = "".join(map(str, digits)).rstrip("0")
    # Check the sizes before computing any power of ten, so 1E+999999 is refused at once.
    shift = int(exponent) + len(digits) - len(significant) + kind.scale
    if shift < 0 or len(significant) + shift > kind.precision:
        raise _refuse(value, str(kind))
    whole = int(significant + "0" * shift)
    return -whole if sign else whole


def _integer(kind: ColumnType) -> Writer:
    least, greatest = kind.bounds

    def write(value: Any) -> bytes:
        number = value if type(value) is int else scaled(value, kind)
        if not least <= number <= greatest:
            raise _refuse(value, str(kind))
        return long(number)

    return write


def _double(value: Any) -> bytes:
    if isinstance(value, float):
        return struct.pack("<d", value)
    exact = _exact(value)
    if exact is not None and exact.adjusted() < 400:
        # A double represents its shortest decimal text, so no two numbers of the source become one.
        number = float(exact)
        if math.isfinite(number) and Decimal(repr(number)) == exact:
            return struct.pack("<d", number)
    raise _refuse(value, "double")


def _float(value: Any) -> bytes:
    if isinstance(value, float) and not math.isfinite(value):
        return _FLOAT.pack(value)
    exact = Decimal(repr(value)) if isinstance(value, float) else _exact(value)
    if exact is not None and exact.adjusted() < 40:
        try:
            raw = _FLOAT.pack(value)
        except OverflowError:
            raise _refuse(value, "float") from None
        (number,) = _FLOAT.unpack(raw)
        # A float arrives either widened to 64 bits, or as its shortest text, 3.99.
        widened = isinstance(value, float) and number == value
        if widened or Decimal(repr(shortest(raw))) == exact:
            return raw
    raise _refuse(value, "float")


def shortest(raw: bytes) -> float:
    """Return the double with the shortest text of a 32-bit float: 3.99, not 3.990000009536743."""
    (number,) = _FLOAT.unpack(raw)
    # Only subnormal floats have less than six digits.
    for digits in (6, 7, 8) if abs(number) > 1e-37 else range(1, 9):
        short = float(f"{number:.{digits}g}")
        try:
            if _FLOAT.pack(short) == raw:
                return short
        except OverflowError:
            continue  # rounded up past the largest float
    return float(f"{number:.9g}")


def unscaled(kind: ColumnType) -> Writer:
    """Return the writer of Avro decimals, also of those that are too wide for `decimal`."""

    def write(value: Any) -> bytes:
        number = scaled(value, kind)
        size = (number.bit_length() + 8) // 8
        return blob(number.to_bytes(size, "big", signed=True))

    return write


def _decimal_text(kind: ColumnType) -> Writer:
    """Return the writer for numbers as SQL prints them, with all decimals, so that equal numbers have equal texts."""

    exactly = Context(prec=kind.precision)
    return lambda value: text(f"{Decimal(scaled(value, kind)).scaleb(-kind.scale, exactly):f}")


def microseconds(value: Any) -> int:
    """Return the microseconds since the epoch of an aware datetime, or an int that already has this unit."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return (value - EPOCH) // MICROSECOND
    if isinstance(value, int) and not isinstance(value, bool) and FIRST_TIME <= value <= LAST_TIME:
        return value
    raise _refuse(value, "timestamp")


def _set(value: Any) -> bytes:
    # A Python set has no order, so it is refused.
    if not isinstance(value, (list, tuple)):
        raise _refuse(value, "set")
    if not value:
        return b"\x00"
    return long(len(value)) + b"".join(map(write_string, value)) + b"\x00"


WRITERS: dict[ColumnKind, Callable[[ColumnType], Writer]] = {
    ColumnKind.INT: _integer,
    ColumnKind.LONG: _integer,
    ColumnKind.DECIMAL: lambda kind: _decimal_text(kind) if kind.is_wide else unscaled(kind),
    ColumnKind.FLOAT: lambda _: _float,
    ColumnKind.DOUBLE: lambda _: _double,
    ColumnKind.STRING: lambda _: write_string,
    ColumnKind.BYTES: lambda _: write_bytes,
    ColumnKind.BOOLEAN: lambda _: _boolean,
    ColumnKind.TIMESTAMP: lambda _: lambda value: long(microseconds(value)),
    ColumnKind.SET: lambda _: _set,
    ColumnKind.JSON: lambda _: write_string,
    ColumnKind.REST: lambda _: write_string,
}
"""Makes the writer of a column type, by its kind."""
