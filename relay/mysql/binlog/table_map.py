"""Decodes TABLE_MAP events: the layout of a table when the rows after the event were written.

Names and types are in the event itself (``binlog_row_metadata=FULL``), as MySQL's ``Table_map_event`` describes.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from relay.mysql_dialect.catalog import NEW_TIMES
from relay.mysql_dialect.charsets import BINARY, charset

DECIMAL, TINY, SHORT, LONG, FLOAT, DOUBLE, NULL, TIMESTAMP, LONGLONG, INT24 = range(10)
DATE, TIME, DATETIME, YEAR, NEWDATE, VARCHAR, BIT, TIMESTAMP2, DATETIME2, TIME2 = range(10, 20)
BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141
VECTOR, JSON, NEWDECIMAL, ENUM, SET = 242, 245, 246, 247, 248
TINY_BLOB, MEDIUM_BLOB, LONG_BLOB, BLOB, VAR_STRING, STRING, GEOMETRY = range(249, 256)

_NUMERIC = frozenset({TINY, SHORT, INT24, LONG, LONGLONG, NEWDECIMAL, FLOAT, DOUBLE})
_TEXT = frozenset({STRING, VAR_STRING, VARCHAR, BLOB, VARCHAR_COMPRESSED, BLOB_COMPRESSED})
# Types with a sign bit in the metadata, and types with a character set there, by flavour.
_SIGNED = _NUMERIC | {YEAR}
_CHARACTER = {False: _TEXT | {VECTOR}, True: _TEXT | {GEOMETRY}}
_HASH = re.compile(r"DB_ROW_HASH_[0-9]+")
_SET_METADATA = "run `SET GLOBAL binlog_row_metadata = 'FULL'`"
_ONE_BYTE = frozenset({FLOAT, DOUBLE, BLOB, GEOMETRY, JSON, TIME2, DATETIME2, TIMESTAMP2, BLOB_COMPRESSED, VECTOR})
_TWO_BYTES = frozenset({VARCHAR, VAR_STRING, STRING, BIT, NEWDECIMAL, ENUM, SET, VARCHAR_COMPRESSED})


class BadTableMap(ValueError):
    """A TABLE_MAP event that cannot be read, or lacks metadata that its rows need."""


class UnfitColumn(BadTableMap):
    """A column is of a kind that cannot be relayed, whatever the server and its settings."""


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """A column as it is in the binlog.

    ``kind``: MySQL's type number; ENUM and SET have their own, not STRING. ``size``: bytes of a value of fixed size, or
    of the length before the value. ``width``: bytes that BINARY is padded to. ``decimals``: the decimals of a time or
    DECIMAL. ``bits``: the bits of a BIT. ``members``: the members of an ENUM or SET, in their character set.
    """

    name: str
    kind: int
    size: int = 0
    width: int = 0
    decimals: int = 0
    precision: int = 0
    unsigned: bool = False
    charset: str = ""
    members: tuple[bytes, ...] = ()
    bits: int = 0


@dataclass(frozen=True, slots=True)
class TableMap:
    """A decoded TABLE_MAP. ``hidden``: the places of columns that only the server uses."""

    database: str
    table: str
    columns: tuple[ColumnLayout, ...]
    primary: tuple[str, ...]
    hidden: frozenset[int] = frozenset()


def name_in(raw: bytes) -> tuple[str, str]:
    """Return database and table of a TABLE_MAP. ``raw``: the event without id and flags. Raises ``BadTableMap``."""
    try:
        end = 1 + raw[0]
        return raw[1:end].decode(), raw[end + 2 : end + 2 + raw[end + 1]].decode()
    except (IndexError, UnicodeDecodeError) as fault:
        raise BadTableMap(f"the names in a TABLE_MAP event are malformed: {fault!r}") from None


def packed(raw: bytes, at: int) -> tuple[int, int]:
    """Read a length-encoded integer at ``at``: the number, and its end."""
    first = raw[at]
    if first < 251:
        return first, at + 1
    if first == 251 or first == 255:
        raise BadTableMap(f"a length cannot begin with {first}")
    size = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(raw[at + 1 : at + 1 + size], "little"), at + 1 + size


def parse(raw: bytes, is_mariadb: bool) -> TableMap:
    """Read the body of a TABLE_MAP, without table id and flags. Raises ``BadTableMap``."""
    try:
        return _parse(raw, is_mariadb)
    except (IndexError, UnicodeDecodeError, KeyError) as fault:
        raise BadTableMap(f"the TABLE_MAP event is malformed: {fault!r}") from None


def _parse(raw: bytes, is_mariadb: bool) -> TableMap:
    database, table = name_in(raw)
    at = 1 + raw[0] + 1
    at += 1 + raw[at] + 1
    count, at = packed(raw, at)
    types = raw[at : at + count]
    size, at = packed(raw, at + count)
    shapes = list(_shapes(types, raw[at : at + size]))
    at += size + (count + 7) // 8  # skips the flags of nullable columns
    options: dict[int, bytes] = {}
    while at < len(raw):
        kind = raw[at]
        size, at = packed(raw, at + 1)
        options[kind] = raw[at : at + size]
        at += size
    names = [name.decode() for name in _strings(options.get(4, b""))]
    if len(names) != count:
        raise BadTableMap(f"its column names are not in the binlog: {_SET_METADATA}")
    kinds = [shape.kind for shape in shapes]
    unsigned = _unsigned(kinds, _SIGNED, options.get(1))
    charsets = _charsets(kinds, _CHARACTER[is_mariadb], options.get(2), options.get(3))
    charsets |= _charsets(kinds, frozenset({ENUM, SET}), options.get(10), options.get(11))
    members = _members(kinds, SET, options.get(5)) | _members(kinds, ENUM, options.get(6))
    columns = []
    for number, (name, shape) in enumerate(zip(names, shapes, strict=True)):
        if is_mariadb and shape.kind in (TIMESTAMP, DATETIME, TIME):  # I8: it does not log how many decimals they have
            raise UnfitColumn(f"its column {name} is in the format of MariaDB 5.3: {NEW_TIMES}")
        texts = members.get(number, ())
        set_ = charsets.get(number, "")
        if shape.kind in (ENUM, SET) and not (texts and set_):
            raise BadTableMap(f"the members of its column {name} are not in the binlog: {_SET_METADATA}")
        if shape.kind in _TEXT and not set_:
            raise BadTableMap(f"the character set of its column {name} is not in the binlog: {_SET_METADATA}")
        width, is_unsigned = shape.width if set_ in ("", BINARY) else 0, number in unsigned and shape.kind in _NUMERIC
        columns.append(replace(shape, name=name, width=width, unsigned=is_unsigned, charset=set_, members=texts))
    hidden = _hidden(columns) if is_mariadb else frozenset()
    return TableMap(database, table, tuple(columns), tuple(names[at] for at in _primary(options)), hidden)


def _hidden(columns: Sequence[ColumnLayout]) -> frozenset[int]:
    """Return the columns that MariaDB keeps behind all others, one for each unique index of long values."""
    are_hashes = [each.kind == LONGLONG and each.unsigned and _HASH.fullmatch(each.name) for each in columns]
    return frozenset(takewhile(lambda at: are_hashes[at], range(len(columns) - 1, 0, -1)))


def _shapes(types: bytes, metadata: bytes) -> Iterator[ColumnLayout]:
    at = 0
    for kind in types:
        one = two = 0
        if kind in _ONE_BYTE:
            one = metadata[at]
            at += 1
        elif kind in _TWO_BYTES:
            one, two = metadata[at], metadata[at + 1]
            at += 2
        yield _shape(kind, one, two)


def _shape(kind: int, one: int, two: int) -> ColumnLayout:
    if kind == STRING:  # two bits of the length are in the type, inverted
        two, kind = two | ((one & 0x30) ^ 0x30) << 4, one | 0x30
        if kind not in (ENUM, SET):
            return ColumnLayout("", STRING, 1 if two < 256 else 2, width=two)
    if kind in (VARCHAR, VAR_STRING, VARCHAR_COMPRESSED):
        return ColumnLayout("", kind, 1 if one | two << 8 < 256 else 2)
    if kind in (ENUM, SET):
        return ColumnLayout("", kind, two)
    if kind == BIT:
        return ColumnLayout("", kind, two + (one > 0), bits=8 * two + one)
    if kind == NEWDECIMAL:
        return ColumnLayout("", kind, decimals=two, precision=one)
    if kind in (TIME2, DATETIME2, TIMESTAMP2):
        return ColumnLayout("", kind, decimals=one)
    return ColumnLayout("", kind, one)


def _strings(raw: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(raw):
        size, at = packed(raw, at)
        yield raw[at : at + size]
        at += size


def _numbers(raw: bytes) -> Iterator[int]:
    at = 0
    while at < len(raw):
        number, at = packed(raw, at)
        yield number


def _unsigned(kinds: Sequence[int], signed: frozenset[int], bits: bytes | None) -> set[int]:
    numeric = [number for number, kind in enumerate(kinds) if kind in signed]
    if bits is None:
        if numeric:
            raise BadTableMap(f"the binlog does not say which of its columns are unsigned: {_SET_METADATA}")
        return set()
    return {number for nth, number in enumerate(numeric) if bits[nth >> 3] & 0x80 >> (nth & 7)}


def _charsets(
    kinds: Sequence[int], counted: frozenset[int], default: bytes | None, each: bytes | None
) -> dict[int, str]:
    columns = [number for number, kind in enumerate(kinds) if kind in counted]
    try:
        if each is not None:
            return {number: charset(id_) for number, id_ in zip(columns, _numbers(each), strict=True)}
        if default is None:
            return {}
        first, *rest = _numbers(default)
        others = dict(zip(rest[::2], rest[1::2], strict=True))
        return {number: charset(others.get(nth, first)) for nth, number in enumerate(columns)}
    except ValueError as fault:
        raise BadTableMap(str(fault)) from None


def _members(kinds: Sequence[int], of: int, raw: bytes | None) -> dict[int, tuple[bytes, ...]]:
    members: dict[int, tuple[bytes, ...]] = {}
    at = 0
    for number, kind in enumerate(kinds):
        if kind != of or raw is None:
            continue
        count, at = packed(raw, at)
        texts = []
        for _ in range(count):
            size, at = packed(raw, at)
            texts.append(raw[at : at + size])
            at += size
        members[number] = tuple(texts)
    return members


def _primary(options: dict[int, bytes]) -> list[int]:
    if 8 in options:
        return list(_numbers(options[8]))
    # The length of the indexed prefix follows each column.
    return list(_numbers(options.get(9, b"")))[::2]
