"""Decodes single values that are neither plain numbers nor plain text. ``relay.types.sql`` lists the results.

The formats are described in "Date and Time Data Type Representation" of MySQL's internals manual, in ``decimal2bin`` of
its ``strings/decimal.c``, and for compressed columns in ``Field_longstr::compress`` of MariaDB's ``sql/field.cc``.
"""

import zlib
from collections.abc import Callable
from decimal import Decimal
from functools import cache, lru_cache
from typing import Any

from relay.avro.columns import shortest
from relay.mysql_dialect.printed import REMEMBERED


def _digit_groups(precision: int, scale: int) -> list[tuple[int, int]]:
    """Return the bytes and digits of each group of a DECIMAL: nine digits in four bytes, fewer at both ends."""
    whole = precision - scale
    digits = [whole % 9, *[9] * (whole // 9 + scale // 9), scale % 9]
    return [(min((each + 1) // 2, 4), each) for each in digits]


def decimal_size(precision: int, scale: int) -> int:
    return sum(size for size, _ in _digit_groups(precision, scale))


def decimal_reader(precision: int, scale: int) -> Callable[[bytes], Decimal]:
    shift = 8 * decimal_size(precision, scale)
    top = 1 << (shift - 1)
    mask = 2 * top - 1
    exponent = f"E-{scale}" if scale else ""
    steps = []
    for width, digits in _digit_groups(precision, scale):
        shift -= 8 * width
        steps.append((shift, (1 << 8 * width) - 1, 10**digits))

    def read(stored: bytes) -> Decimal:
        raw = int.from_bytes(stored, "big") ^ top
        sign = ""
        if raw & top:
            raw ^= mask
            sign = "-"
        number = 0
        for shift, bits, power in steps:
            group = raw >> shift & bits
            if group >= power:
                raise ValueError(f"{stored.hex()} is not a DECIMAL({precision},{scale})")
            number = number * power + group
        return Decimal(f"{sign}{number}{exponent}" if number else f"0{exponent}")

    return read


def year(stored: bytes) -> int:
    return 1900 + stored[0] if stored[0] else 0


@lru_cache(REMEMBERED)
def date(stored: bytes) -> str:
    raw = int.from_bytes(stored, "little")
    return f"{raw >> 9:04d}-{raw >> 5 & 15:02d}-{raw & 31:02d}"


def _fraction(stored: bytes, decimals: int) -> int:
    """Return the digits after the point as a number of ``decimals`` digits."""
    raw = int.from_bytes(stored, "big")
    return raw // 10 if decimals % 2 else raw


def fraction_size(decimals: int) -> int:
    return (decimals + 1) // 2


def moment(packed: int) -> str:
    month = packed >> 22
    day = f"{month // 13:04d}-{month % 13:02d}-{packed >> 17 & 31:02d}"
    return f"{day} {packed >> 12 & 31:02d}:{packed >> 6 & 63:02d}:{packed & 63:02d}"


def datetime_reader(decimals: int) -> Callable[[bytes], str]:
    def read(stored: bytes) -> str:
        raw = int.from_bytes(stored[:5], "big")
        if not raw & 0x8000000000:
            raise ValueError(f"{stored.hex()} is not a DATETIME")
        text = moment(raw & 0x7FFFFFFFFF)
        return f"{text}.{_fraction(stored[5:], decimals):0{decimals}d}" if decimals else text

    return read


def time_reader(decimals: int) -> Callable[[bytes], str]:
    width = 8 * fraction_size(decimals)
    zero = 0x800000 << width

    def read(stored: bytes) -> str:
        raw = int.from_bytes(stored, "big") - zero
        sign, raw = ("-", -raw) if raw < 0 else ("", raw)
        whole = raw >> width
        text = f"{sign}{whole >> 12 & 1023:02d}:{whole >> 6 & 63:02d}:{whole & 63:02d}"
        if not decimals:
            return text
        part = raw & (1 << width) - 1
        return f"{text}.{part // 10 if decimals % 2 else part:0{decimals}d}"

    return read


def timestamp_reader(decimals: int) -> Callable[[bytes], int]:
    """Return the reader of a TIMESTAMP of MySQL 5.6.4 and later, in microseconds since the epoch."""
    power: int = 10 ** (6 - decimals)

    def read(stored: bytes) -> int:
        return int.from_bytes(stored[:4], "big") * 1_000_000 + _fraction(stored[4:], decimals) * power

    return read


def decompressed(stored: bytes) -> bytes:
    """Return the value of one of MariaDB's compressed columns."""
    if not stored or stored[0] == 0:
        return stored[1:]
    method, size = stored[0] >> 4, stored[0] & 7
    if method != 8 or not 1 <= size <= 4:
        raise ValueError(f"a compressed value begins with the unknown byte {stored[0]:#x}")
    length = int.from_bytes(stored[1 : 1 + size], "big")
    # Bit 3: without zlib's header and checksum.
    value = zlib.decompress(stored[1 + size :], -15 if stored[0] & 8 else 15, length)
    if len(value) != length:
        raise ValueError(f"a compressed value has {len(value)} bytes, and its header says {length}")
    return value


float_of = lru_cache(REMEMBERED)(shortest)


@cache
def remembering(reader: Callable[..., Callable[[bytes], Any]], *arguments: int) -> Callable[[bytes], Any]:
    """Return the reader of a type, shared by all tables, which remembers values that it has read."""
    return lru_cache(REMEMBERED)(reader(*arguments))
