"""DynamoDB's typed values as the relay carries them: canonical keys and exact JSON images.

Values are as in botocore's client, or as in DynamoDB's JSON: ``{"N": "1.50"}``, and ``{"B": ...}`` as bytes or base64
text. Key text is part of the wire format: another text for the same key would move it to another partition.
"""

import re
from base64 import b64encode
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import orjson

from relay.types.items import binary

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?", re.ASCII)


def canonical_number(text: str) -> str:
    """Return the canonical text of a number: no exponent, no ``+``, no needless zeros, and -0 is 0.

    Nothing is rounded. Raises ValueError if ``text`` is not a decimal number.
    """
    if text.isascii() and text.isdigit() and text[0] != "0":
        return text
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a number")
    number = Decimal(text)  # exact, whatever the context, and so is its format
    plain = f"{number:f}" if number else "0"
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def key_value(value: Mapping[str, Any]) -> str | bytes:
    """Return the value of a key attribute: S unchanged, N canonical, B as bytes. Raises ValueError on other types."""
    if len(value) == 1:
        if (text := value.get("S")) is not None:
            return str(text)
        if (number := value.get("N")) is not None:
            return canonical_number(number)
        if (raw := value.get("B")) is not None:
            return binary(raw)
    raise ValueError(f"{value!r} cannot be a key: only S, N and B can")


def key_attribute(kind: str, text: str) -> dict[str, Any]:
    """Return the value of a key attribute with this text in a cache key. Raises ValueError if there is none."""
    value = {kind: binary(text) if kind == "B" else text}
    canonical = key_value(value)
    # I6: a number or binary can have several texts, and changes invalidate only this one.
    if text != (canonical if isinstance(canonical, str) else b64encode(canonical).decode()):
        raise ValueError(f"{text!r} is not the canonical text of a key attribute")
    return value


def image_json(item: Mapping[str, Any]) -> str:
    """Return an item, or one typed value, as exact DynamoDB JSON. Raises ValueError if that cannot hold it."""
    try:
        return orjson.dumps(item, default=_base64).decode()
    except TypeError as fault:
        raise ValueError(f"an item cannot be written as JSON: {fault}") from fault


def canonical_item(attributes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return an item as JSON that is equal for equal items: sets are unordered, and numbers may have many texts.

    Raises ValueError, TypeError or AttributeError for anything that is not an item of typed values.
    """
    return {name: canonical_value(value) for name, value in attributes.items()}


def canonical_value(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a typed value as JSON that is equal for equal values. Raises as ``canonical_item`` does."""
    ((kind, raw),) = value.items()
    match kind:
        case "N":
            raw = canonical_number(raw)
        case "NS":
            raw = sorted(map(canonical_number, raw))
        case "SS":
            raw = sorted(raw)
        case "B":
            raw = b64encode(binary(raw)).decode()
        case "BS":
            raw = sorted([b64encode(binary(each)).decode() for each in raw])
        case "L":
            raw = [canonical_value(each) for each in raw]
        case "M":
            raw = canonical_item(raw)
    return {kind: raw}


def _base64(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        return b64encode(value).decode()
    raise TypeError(f"{value!r} ({type(value).__name__}) is not a DynamoDB value")
