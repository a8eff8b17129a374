"""Decodes MySQL's binary JSON (``sql-common/json_binary.h``) to the text of its ``Json_wrapper::to_string``."""

import struct
from base64 import b64encode
from collections.abc import Callable
from decimal import Decimal

from relay.mysql.binlog import table_map, values

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = range(5)
_INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING = range(5, 13)
_OPAQUE = 15

_LITERALS = {0: "null", 1: "true", 2: "false"}
_NUMBERS = {kind: struct.Struct(f"<{form}") for kind, form in zip(range(_INT16, _DOUBLE), "hHiIqQ", strict=True)}
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_TO_ESCAPE = str.maketrans({chr(code): f"\\u{code:04x}" for code in range(32)} | _ESCAPES)
_BASE64_LINE = 76
_DEEPEST = 100  # the deepest level of a document, as in MySQL


def text(stored: bytes) -> str:
    """Return a document as MySQL prints it. Raises ``ValueError`` for malformed bytes."""
    if not stored:
        # The value of a column that became NOT NULL; MySQL reads it as null.
        return "null"
    parts: list[str] = []
    try:
        _value(stored[0], stored, 1, parts.append, 0)
    except (IndexError, struct.error) as fault:
        raise ValueError(f"truncated binary JSON: {fault}") from None
    return "".join(parts)


def _value(kind: int, data: bytes, at: int, add: Callable[[str], None], depth: int) -> None:
    if depth > _DEEPEST:
        raise ValueError(f"binary JSON with more than {_DEEPEST} levels")
    if kind in (_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY):
        _container(kind, data, at, add, depth)
    elif kind == _LITERAL:
        add(_literal(data[at]))
    elif kind in _NUMBERS:
        add(str(_NUMBERS[kind].unpack_from(data, at)[0]))
    elif kind == _DOUBLE:
        add(_double(struct.unpack_from("<d", data, at)[0]))
    elif kind == _STRING:
        add(_quoted(_sized(data, at).decode()))
    elif kind == _OPAQUE:
        add(_opaque(data[at], _sized(data, at + 1)))
    else:
        raise ValueError(f"binary JSON with the unknown type {kind}")


def _container(kind: int, data: bytes, base: int, add: Callable[[str], None], depth: int) -> None:
    large = kind in (_LARGE_OBJECT, _LARGE_ARRAY)
    is_object = kind in (_SMALL_OBJECT, _LARGE_OBJECT)
    width, number = (4, "<I") if large else (2, "<H")
    (count,) = struct.unpack_from(number, data, base)
    (size,) = struct.unpack_from(number, data, base + width)
    if base + size > len(data):
        raise ValueError("truncated binary JSON")
    at = base + 2 * width
    keys = at
    if is_object:
        at += count * (width + 2)
    add("{" if is_object else "[")
    for nth in range(count):
        if nth:
            add(", ")
        if is_object:
            (start,) = struct.unpack_from(number, data, keys)
            (length,) = struct.unpack_from("<H", data, keys + width)
            keys += width + 2
            add(_quoted(data[base + start : base + start + length].decode()) + ": ")
        element = data[at]
        # The entry itself contains a small value, instead of its offset.
        if element == _LITERAL:
            add(_literal(data[at + 1]))
        elif element in (_INT16, _UINT16) or (large and element in (_INT32, _UINT32)):
            _value(element, data, at + 1, add, depth + 1)
        else:
            (start,) = struct.unpack_from(number, data, at + 1)
            _value(element, data, base + start, add, depth + 1)
        at += 1 + width
    add("}" if is_object else "]")


def _literal(stored: int) -> str:
    if stored not in _LITERALS:
        raise ValueError(f"binary JSON with the unknown literal {stored}")
    return _LITERALS[stored]


def _sized(data: bytes, at: int) -> bytes:
    """Read bytes that follow their length, which has seven bits per byte, the lowest first."""
    length = shift = 0
    while True:
        byte = data[at]
        at += 1
        length |= (byte & 0x7F) << shift
        if not byte & 0x80:
            break
        shift += 7
        if shift > 28:
            raise ValueError("binary JSON with a length of more than five bytes")
    if at + length > len(data):
        raise ValueError("truncated binary JSON")
    return data[at : at + length]


def _quoted(value: str) -> str:
    return f'"{value.translate(_TO_ESCAPE)}"'


def _double(number: float) -> str:
    """Print as MySQL does: the shortest digits, an exponent beyond 15 places, and never as an integer."""
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    minus = "-" if sign else ""
    shown = "".join(map(str, digits))
    point = len(shown) + int(exponent)  # the place of the point, from the first digit
    if not number:
        return f"{minus}0.0"
    if not -15 < point <= 15:
        return f"{minus}{shown[0]}{'.' if shown[1:] else ''}{shown[1:]}e{point - 1}"
    if point <= 0:
        return f"{minus}0.{'0' * -point}{shown}"
    return f"{minus}{shown[:point].ljust(point, '0')}.{shown[point:] or '0'}"


def _opaque(kind: int, raw: bytes) -> str:
    if kind == table_map.NEWDECIMAL:
        precision, scale = raw[0], raw[1]
        return f"{values.decimal_reader(precision, scale)(raw[2:]):f}"
    if kind in (table_map.DATE, table_map.DATETIME, table_map.TIMESTAMP, table_map.TIME):
        return _quoted(_temporal(kind, int.from_bytes(raw[:8], "little", signed=True)))
    encoded = b64encode(raw).decode()
    lines = [encoded[at : at + _BASE64_LINE] for at in range(0, len(encoded), _BASE64_LINE)]
    return _quoted(f"base64:type{kind}:" + "\n".join(lines))


def _temporal(kind: int, stored: int) -> str:
    sign, stored = ("-", -stored) if stored < 0 else ("", stored)
    micros, whole = stored & 0xFFFFFF, stored >> 24
    if kind == table_map.TIME:
        return f"{sign}{whole >> 12 & 1023:02d}:{whole >> 6 & 63:02d}:{whole & 63:02d}.{micros:06d}"
    moment = values.moment(whole)
    return moment.partition(" ")[0] if kind == table_map.DATE else f"{moment}.{micros:06d}"
