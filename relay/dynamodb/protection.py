"""Replaces protected attributes of an item before it becomes a change, so that no later step sees the values."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from msgspec import Raw

from relay.change import Uncarriable
from relay.config.protection import MASK, ColumnRule, ColumnRules
from relay.dynamodb.values import canonical_value
from relay.errors import RelayError
from relay.types.items import binary

_NULL = {"NULL": True}


class ProtectedItems:
    """Makes the published images of items. Shared by the threads that read the table; immutable.

    ``publish``: makes the image of the rest; ValueError if it cannot be carried.
    """

    def __init__(self, rules: ColumnRules, publish: Callable[[Mapping[str, Any]], Any]) -> None:
        self._excluded = frozenset(name for name, rule in rules.items() if rule.kind == "exclude")
        self._replaced = {name: rule for name, rule in rules.items() if rule.kind != "exclude"}
        self._publish = publish

    def image(self, item: Any) -> Any:
        """Return the image of an item, given parsed or as JSON, or None if it is absent.

        `Uncarriable`, with the rest of the item, if that cannot be carried. Raises ``RelayError`` if it is not an item.
        """
        if item is None or (type(item) is Raw and not item):
            return None
        try:
            given = _parsed(bytes(item)) if type(item) is Raw else item
            left = {name: value for name, value in given.items() if name not in self._excluded}
            for name in self._replaced.keys() & left.keys():
                left[name] = _replacement(self._replaced[name], left[name])
        except (ValueError, TypeError, AttributeError):
            raise RelayError("an image is not an item of typed values, so nothing in it can be protected") from None
        try:
            return self._publish(left)
        except ValueError as error:
            return Uncarriable(left, str(error))


def _parsed(image: bytes) -> Any:
    try:
        return orjson.loads(image)
    except ValueError:
        # Bytes that are not UTF-8 become lone surrogates, which are allowed only in unpublished attributes.
        return json.loads(image.decode("utf-8", "surrogateescape"))


def _replacement(rule: ColumnRule, value: Any) -> Any:
    """Return the typed value that is published in place of ``value``. NULL stays NULL."""
    if value == _NULL:
        return value
    return {"S": MASK if rule.kind == "mask" else rule.hashed(_canonical(value))}


def _canonical(value: Mapping[str, Any]) -> bytes:
    """Return a value that is equal for equal values: the text of a scalar, or the JSON of any other value."""
    ((kind, raw),) = (plain := canonical_value(value)).items()
    match kind:
        case "S":
            return str(raw).encode("utf-8", "surrogatepass")
        case "N":
            return str(raw).encode()
        case "B":
            return binary(raw)
        case "BOOL":
            return b"true" if raw else b"false"
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()
