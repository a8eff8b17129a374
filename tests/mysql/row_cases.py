"""Column types of MySQL as a binlog has them: how a value is stored, and what it must be decoded to."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from tests.mysql import encoder
from tests.mysql.encoder import ColumnType, decimal, sized

LATIN1, UTF8MB4, BINARY = 8, 255, 63


@dataclass(frozen=True)
class Case:
    """A column type, the type that carries it, the values drawn for it, and what they must be decoded to."""

    type: ColumnType
    carried: str
    values: st.SearchStrategy[Any]
    read: Any = None

    def expected(self, value: Any) -> Any:
        return value if value is None or self.read is None else self.read(value)


def fixed(code: str, kind: int, unsigned: bool = False) -> ColumnType:
    return ColumnType(kind, b"", struct.Struct(f"<{code}").pack, unsigned)


def whole(bits: int, unsigned: bool) -> st.SearchStrategy[int]:
    return st.integers(0, 2**bits - 1) if unsigned else st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def text(longest: int, collation: int, alphabet: str | None = None) -> Case:
    code = "<B" if longest < 256 else "<H"
    python = {UTF8MB4: "utf-8", LATIN1: "cp1252", BINARY: "latin-1"}[collation]

    def encode(value: Any) -> bytes:
        raw = value if isinstance(value, bytes) else value.encode(python)
        return struct.pack(code, len(raw)) + raw

    kind = ColumnType(15, struct.pack("<H", longest), encode, collation=collation)
    if collation == BINARY:
        return Case(kind, "bytes", st.binary(max_size=min(longest, 300)))
    return Case(kind, "string", st.text(st.characters(codec=python), max_size=min(longest // 4, 70)))


def blob(size: int, kind: int = 252, collation: int | None = BINARY) -> Case:
    column = ColumnType(
        kind, bytes([size]), lambda value: len(value).to_bytes(size, "little") + value, collation=collation
    )
    return Case(column, "bytes", st.binary(max_size=255))


def packed_time(decimals: int, raw: int, size: int) -> bytes:
    return raw.to_bytes(size + (decimals + 1) // 2, "big")


def fraction(decimals: int, digits: int) -> int:
    return digits * 10 if decimals % 2 else digits


def datetime2(decimals: int) -> Case:
    def encode(value: tuple[int, ...]) -> bytes:
        year, month, day, hour, minute, second, part = value
        raw = (year * 13 + month) << 22 | day << 17 | hour << 12 | minute << 6 | second
        width = 8 * ((decimals + 1) // 2)
        return packed_time(decimals, (raw | 1 << 39) << width | fraction(decimals, part), 5)

    def read(value: tuple[int, ...]) -> str:
        shown = "{:04d}-{:02d}-{:02d} {:02d}:{:02d}:{:02d}".format(*value[:6])
        return f"{shown}.{value[6]:0{decimals}d}" if decimals else shown

    values = st.tuples(
        st.integers(0, 9999),
        st.integers(0, 12),
        st.integers(0, 31),
        st.integers(0, 23),
        st.integers(0, 59),
        st.integers(0, 59),
        st.integers(0, 10**decimals - 1),
    )
    return Case(ColumnType(18, bytes([decimals]), encode), "string", values, read)


def time2(decimals: int) -> Case:
    width = 8 * ((decimals + 1) // 2)

    def encode(value: tuple[bool, int, int, int, int]) -> bytes:
        negative, hour, minute, second, part = value
        raw = (hour << 12 | minute << 6 | second) << width | fraction(decimals, part)
        return packed_time(decimals, (0x800000 << width) + (-raw if negative else raw), 3)

    def read(value: tuple[bool, int, int, int, int]) -> str:
        negative, *clock, part = value
        sign = "-" if negative and any(value[1:]) else ""
        shown = sign + ":".join(f"{each:02d}" for each in clock)
        return f"{shown}.{part:0{decimals}d}" if decimals else shown

    values = st.tuples(
        st.booleans(), st.integers(0, 838), st.integers(0, 59), st.integers(0, 59), st.integers(0, 10**decimals - 1)
    )
    return Case(ColumnType(19, bytes([decimals]), encode), "string", values, read)


def timestamp2(decimals: int) -> Case:
    def encode(value: tuple[int, int]) -> bytes:
        width = 8 * ((decimals + 1) // 2)
        return packed_time(decimals, value[0] << width | fraction(decimals, value[1]), 4)

    values = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 10**decimals - 1))
    return Case(
        ColumnType(17, bytes([decimals]), encode),
        "timestamp",
        values,
        lambda value: value[0] * 1_000_000 + value[1] * 10 ** (6 - decimals),
    )


def decimals(precision: int, scale: int) -> Case:
    limit = 10**precision - 1
    values = st.integers(-limit, limit).map(lambda number: Decimal(number).scaleb(-scale, encoder._WIDE))
    return Case(decimal(precision, scale), f"decimal({precision},{scale})", values)


MEMBERS = ("small", "größer", "x,y", "")
CASES = [
    Case(fixed("b", 1), "int", whole(8, False)),
    Case(fixed("B", 1, True), "int", whole(8, True)),
    Case(fixed("h", 2), "int", whole(16, False)),
    Case(fixed("H", 2, True), "int", whole(16, True)),
    Case(ColumnType(9, b"", lambda value: value.to_bytes(3, "little", signed=True)), "int", whole(24, False)),
    Case(ColumnType(9, b"", lambda value: value.to_bytes(3, "little"), True), "int", whole(24, True)),
    Case(fixed("i", 3), "int", whole(32, False)),
    Case(fixed("I", 3, True), "long", whole(32, True)),
    Case(fixed("q", 8), "long", whole(64, False)),
    Case(fixed("Q", 8, True), "decimal(20,0)", whole(64, True)),
    Case(ColumnType(5, b"\x08", struct.Struct("<d").pack), "double", st.floats(allow_nan=False)),
    Case(ColumnType(13, b"", lambda value: bytes([value - 1900]), True), "int", st.integers(1901, 2155)),
    blob(4, kind=242),
    Case(ColumnType(16, b"\x01\x01", lambda value: value), "bytes", st.binary(min_size=2, max_size=2)),
    Case(
        ColumnType(10, b"", lambda value: (value[0] << 9 | value[1] << 5 | value[2]).to_bytes(3, "little")),
        "string",
        st.tuples(st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31)),
        lambda value: f"{value[0]:04d}-{value[1]:02d}-{value[2]:02d}",
    ),
    *(each(places) for each in (datetime2, time2, timestamp2) for places in range(7)),
    *(
        decimals(*each)
        for each in ((1, 0), (5, 5), (9, 0), (10, 2), (12, 2), (18, 9), (20, 10), (38, 19), (65, 30), (65, 0))
    ),
    text(255, UTF8MB4),
    text(256, UTF8MB4),
    text(100, LATIN1),
    text(20, BINARY),
    Case(
        ColumnType(254, b"\xfe\x08", lambda value: sized(value.rstrip(b"\0")), collation=BINARY),
        "bytes",
        st.binary(min_size=8, max_size=8),
    ),
    # CHAR(255) of utf8mb4: 1020 bytes, two bits of which are in the type.
    Case(
        ColumnType(254, b"\xce\xfc", lambda value: struct.pack("<H", len(value)) + value, collation=UTF8MB4),
        "string",
        st.text(st.characters(codec="ascii"), max_size=20).map(str.encode),
        bytes.decode,
    ),
    *(blob(size) for size in (1, 2, 3, 4)),
    blob(4, 255, None),
    Case(
        ColumnType(247, b"\x01", lambda value: bytes([value]), collation=UTF8MB4, members=MEMBERS),
        "string",
        st.integers(0, 4),
        lambda value: ("", *MEMBERS)[value],
    ),
    Case(
        ColumnType(248, b"\x01", lambda value: bytes([value]), collation=UTF8MB4, members=MEMBERS),
        "set",
        st.integers(0, 15),
        lambda value: [member for at, member in enumerate(MEMBERS) if value >> at & 1],
    ),
]

ANY_TABLE = st.lists(st.sampled_from(CASES), min_size=1, max_size=20)
