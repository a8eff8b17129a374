"""Encodes binlog events as a MySQL 8 server does: types, metadata, framing.

Written from MySQL's documentation of the formats ("Binlog Event", ``binlog_event.h``), not from the decoders.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any


def packed(number: int) -> bytes:
    if number < 251:
        return bytes([number])
    if number < 1 << 16:
        return b"\xfc" + struct.pack("<H", number)
    return b"\xfd" + number.to_bytes(3, "little") if number < 1 << 24 else b"\xfe" + struct.pack("<Q", number)


def sized(raw: bytes) -> bytes:
    return packed(len(raw)) + raw


@dataclass(frozen=True)
class ColumnType:
    """``meta``: of the TABLE_MAP. ``encode``: a value, as it is stored. ``collation``: None for what has none."""

    kind: int
    meta: bytes
    encode: Callable[[Any], bytes]
    unsigned: bool = False
    collation: int | None = None
    members: tuple[str, ...] = ()


_WIDE = Context(prec=80)
NUMERIC = {1, 2, 9, 3, 8, 246, 4, 5, 13}


def table_map(
    table_id: int,
    database: str,
    table: str,
    columns: Sequence[tuple[str, ColumnType]],
    primary: Sequence[int] = (0,),
    *,
    with_names: bool = True,
) -> bytes:
    types = [column for _, column in columns]
    body = table_id.to_bytes(6, "little") + b"\x01\x00"
    for name in (database, table):
        raw = name.encode()
        body += bytes([len(raw)]) + raw + b"\0"
    kinds = bytes(254 if each.kind in (247, 248) else each.kind for each in types)
    meta = b"".join(bytes([each.kind]) + each.meta if each.kind in (247, 248) else each.meta for each in types)
    body += packed(len(types)) + kinds + sized(meta) + b"\xff" * ((len(types) + 7) // 8)

    numbers = [each.unsigned for each in types if each.kind in NUMERIC]
    if numbers:
        bits = bytearray((len(numbers) + 7) // 8)
        for at, unsigned in enumerate(numbers):
            bits[at >> 3] |= (0x80 >> (at & 7)) if unsigned else 0
        body += b"\x01" + sized(bytes(bits))
    text = [each.collation for each in types if each.collation is not None and each.kind not in (247, 248)]
    if text:
        default, others = text[0], [(at, each) for at, each in enumerate(text) if each != text[0]]
        body += b"\x02" + sized(packed(default) + b"".join(packed(at) + packed(each) for at, each in others))
    if with_names:
        body += b"\x04" + sized(b"".join(sized(name.encode()) for name, _ in columns))
    for option, kind in ((5, 248), (6, 247)):
        of = [each.members for each in types if each.kind == kind]
        if of:
            body += bytes([option]) + sized(
                b"".join(packed(len(each)) + b"".join(sized(member.encode()) for member in each) for each in of)
            )
    if primary:
        body += b"\x08" + sized(b"".join(map(packed, primary)))
    choices = [each.collation for each in types if each.kind in (247, 248)]
    if choices:
        body += b"\x0b" + sized(b"".join(packed(each or 0) for each in choices))
    return body


def image(columns: Sequence[tuple[str, ColumnType]], row: Sequence[Any]) -> bytes:
    nulls = (1 << 8 * ((len(row) + 7) // 8)) - (1 << len(row))  # MySQL sets the bits past the last column
    values = b""
    for at, ((_, column), value) in enumerate(zip(columns, row, strict=True)):
        if value is None:
            nulls |= 1 << at
        else:
            values += column.encode(value)
    return nulls.to_bytes((len(row) + 7) // 8, "little") + values


def rows(
    table_id: int, columns: Sequence[tuple[str, ColumnType]], images: Sequence[Sequence[Any]], bitmaps: int = 1
) -> bytes:
    """Return the body of a second-version row event. ``bitmaps``: 2 for updates, whose images come in pairs."""
    present = ((1 << len(columns)) - 1).to_bytes((len(columns) + 7) // 8, "little")
    body = table_id.to_bytes(6, "little") + b"\x01\x00" + b"\x02\x00" + packed(len(columns)) + present * bitmaps
    return body + b"".join(image(columns, row) for row in images)


def event(kind: int, body: bytes, timestamp: int = 1_700_000_000, position: int = 1000, *, flags: int = 0) -> bytes:
    """Return an event with its header and checksum."""
    size = 19 + len(body) + 4
    whole = struct.pack("<IBIIIH", timestamp, kind, 1, size, position, flags) + body
    return whole + struct.pack("<I", zlib.crc32(whole))


def bare(kind: int, body: bytes, timestamp: int = 1_700_000_000) -> bytes:
    """Return an event as it is inside a compressed transaction: without a checksum."""
    return struct.pack("<IBIIIH", timestamp, kind, 1, 19 + len(body), 0, 0) + body


def format_description(has_checksums: bool = True) -> bytes:
    body = struct.pack("<H50sIB", 4, b"8.0.36", 0, 19) + bytes(40) + bytes([has_checksums])
    whole = struct.pack("<IBIIIH", 1_600_000_000, 15, 1, 19 + len(body) + 4, 126, 0) + body
    return whole + struct.pack("<I", zlib.crc32(whole))


def rotate(name: str, position: int = 4) -> bytes:
    return event(4, struct.pack("<Q", position) + name.encode(), 0, 0, flags=0x20)


def gtid(server: str, number: int, *, immediate: int = 0, original: int | None = None) -> bytes:
    body = b"\x01" + uuid.UUID(server).bytes + struct.pack("<q", number) + b"\x02" + bytes(16)
    if immediate:
        flag = 0 if original is None else 1 << 55
        body += (immediate | flag).to_bytes(7, "little")
        if original is not None:
            body += original.to_bytes(7, "little")
        body += packed(300) + struct.pack("<I", 80036)
    return body


def query(sql: bytes, database: str = "shop", *, mode: int = 0, charset: int = 255) -> bytes:
    status = b"\x00" + bytes(4) + b"\x01" + struct.pack("<Q", mode) + b"\x06\x03std"
    status += b"\x04" + struct.pack("<HHH", charset, charset, charset) + b"\x0c\x01shop\x00"
    name = database.encode()
    return struct.pack("<IIBHH", 7, 0, len(name), 0, len(status)) + status + name + b"\0" + sql


def previous_gtids(*sets: tuple[str, int, int]) -> bytes:
    body = struct.pack("<Q", len(sets))
    for server, first, last in sets:
        body += uuid.UUID(server).bytes + struct.pack("<QQQ", 1, first, last + 1)
    return body


def decimal(precision: int, scale: int) -> ColumnType:
    sizes = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)

    def encode(value: Decimal) -> bytes:
        digits = str(int(value.copy_abs().scaleb(scale, _WIDE))).rjust(precision, "0")
        whole, part = digits[: precision - scale], digits[precision - scale :]
        groups = [whole[: len(whole) % 9]] + [whole[at : at + 9] for at in range(len(whole) % 9, len(whole), 9)]
        groups += [part[at : at + 9] for at in range(0, len(part), 9)]
        raw = bytearray(b"".join(int(each).to_bytes(sizes[len(each)], "big") for each in groups if each))
        if value < 0:
            raw = bytearray(byte ^ 0xFF for byte in raw)
        raw[0] ^= 0x80
        return bytes(raw)

    return ColumnType(246, bytes([precision, scale]), encode)
