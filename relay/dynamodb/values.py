"""DynamoDB's typed values as the relay carries them: canonical keys, exact JSON images, typed rows.

Values are what botocore's client gives, or DynamoDB's JSON parsed as it stands: ``{"N": "1.50"}``, and
``{"B": ...}`` as bytes or base64 text. Key text is on the wire: other text for the same key would move it
to another partition.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import orjson

from relay.avro.rows import REST

_NUMBER = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{1,4}))?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def canonical_number(text: str) -> str:
    """Give the one text of a number: no exponent, no ``+``, no needless zeros, and -0 is 0.

    Works on the digits, so that nothing is rounded. ValueError if it is not a decimal number.
    """
    if text.isascii() and text.isdigit() and text[0] != "0":
        return text
    match = _NUMBER.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        raise ValueError(f"{text!r} is not a number")
    sign, whole, decimals, exponent = match[1], match[2], match[3] or "", int(match[4] or 0)
    point = len(whole) + exponent
    digits = whole + decimals
    if point < 0:
        digits, point = "0" * -point + digits, 0
    digits = digits.ljust(point, "0")
    whole, decimals = digits[:point].lstrip("0") or "0", digits[point:].rstrip("0")
    number = f"{whole}.{decimals}" if decimals else whole
    return f"-{number}" if sign == "-" and number != "0" else number


def key_value(value: Mapping[str, Any]) -> str | bytes:
    """Give a key attribute's value: S as it stands, N canonical, B as bytes. ValueError on any other type."""
    if len(value) == 1:
        if (text := value.get("S")) is not None:
            return str(text)
        if (number := value.get("N")) is not None:
            return canonical_number(number)
        if (raw := value.get("B")) is not None:
            return _binary(raw)
    raise ValueError(f"{value!r} cannot be a key: only S, N and B can")


def image_json(item: Mapping[str, Mapping[str, Any]]) -> str:
    """Give an item as DynamoDB's JSON: numbers byte for byte, binary in base64, sets in their order.

    ValueError if it holds what DynamoDB's JSON cannot.
    """
    try:
        return orjson.dumps(item, default=_base64).decode()
    except TypeError as fault:
        raise ValueError(f"an item cannot be written as JSON: {fault}") from fault


def typed_row(item: Mapping[str, Mapping[str, Any]], columns: Mapping[str, str]) -> dict[str, Any]:
    """Give an item as a row of declared columns, and `REST` with the JSON of all others.

    ``columns``: type by attribute name. A value that is not of its column's type is handed on as DynamoDB
    typed it, so that encoding the row refuses it with the column's name (I8).
    """
    row: dict[str, Any] = {}
    others = {name: value for name, value in item.items() if name not in columns}
    for name, kind in columns.items():
        value = item.get(name)
        if value is None:
            row[name] = None
        elif "NULL" in value:
            # A null attribute is not an absent one: the column is null for both, rest tells them apart.
            row[name] = None
            others[name] = value
        else:
            row[name] = _column_value(value, kind)
    row[REST] = image_json(others) if others else None
    return row


def _column_value(value: Mapping[str, Any], kind: str) -> Any:
    ((tag, raw),) = value.items()
    if kind == "timestamp":
        return _time(tag, raw) or value
    if tag == "N":
        return Decimal(raw)
    if tag == "B":
        return _binary(raw)
    if tag in ("S", "BOOL"):
        return raw
    return value


def _time(tag: str, raw: Any) -> datetime | None:
    """Read an ISO 8601 text with its offset, or a number of seconds since the epoch, as `ttl` attributes are.

    None for anything else, or past microseconds or the year 9999 (so for milliseconds, too).
    """
    try:
        if tag == "N":
            whole, _, decimals = canonical_number(raw).partition(".")
            if len(decimals) > 6:
                return None
            return _EPOCH + timedelta(microseconds=int(whole + decimals.ljust(6, "0")))
        if tag != "S" or re.search(r"[.,][0-9]{7}", raw):
            return None
        time = datetime.fromisoformat(raw)
    except (ValueError, OverflowError):
        return None
    return time if time.tzinfo is not None else None


def _binary(raw: Any) -> bytes:
    return b64decode(raw, validate=True) if isinstance(raw, str) else bytes(raw)


def _base64(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        return b64encode(value).decode()
    raise TypeError(f"{value!r} ({type(value).__name__}) is no DynamoDB value")
