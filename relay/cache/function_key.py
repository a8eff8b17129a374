"""The cache key of a function's arguments, by a template; and the arguments that have a cache key."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from relay.cache.keys import key_text, text
from relay.config.template import Template
from relay.dynamodb.values import binary, canonical_number
from relay.errors import ConfigError

_FROM_TEXT: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "int": lambda number: int(canonical_number(number)),
    "float": lambda number: float(canonical_number(number)),
    "bool": lambda truth: bool(("false", "true").index(truth)),
    "bytes": binary,
    "Decimal": lambda number: Decimal(canonical_number(number)),
    "date": date.fromisoformat,
}
"""By the name of an annotation, what reads its values from texts. Each raises ValueError for another text."""


class KeyedCall(NamedTuple):
    """A call of a function with a cache key. ``given``: the arguments, in which texts are read as annotated.

    ``is_typed``: whether all of the key's could be.
    """

    key: str
    given: inspect.BoundArguments
    is_typed: bool


class FunctionKey:
    """The cache key of a function's arguments: a template with its parameters as columns, or a function that makes it.

    ValueError if a template names another column.
    """

    def __init__(self, key: str | Callable[..., str], function: Callable[..., Any]) -> None:
        self._key = key
        self._function = function
        self._signature = inspect.signature(function)
        self._template = Template.parse(key if isinstance(key, str) else "")
        columns, parameters = self._template.columns, self._signature.parameters
        if unknown := [column for column in columns if column not in parameters]:
            raise ValueError(f"the cache key {key!r} names {unknown[0]!r}, which is no parameter of {function!r}")
        self._types = {column: _type_name(parameters[column].annotation) for column in columns}

    def call(self, *args: Any, **kwargs: Any) -> KeyedCall:
        """Return the call. ValueError if an argument has no text in a cache key, TypeError if one is missing."""
        given = self._signature.bind(*args, **kwargs)
        given.apply_defaults()
        if not isinstance(self._key, str):
            return KeyedCall(self._key(*args, **kwargs), given, is_typed=True)
        is_typed = True
        for column, kind in self._types.items():
            value = given.arguments[column]
            if kind in ("", "str") or not isinstance(value, (str, bool, datetime)):
                continue
            try:
                # I6: `007` finds the item 7, whose changes invalidate the key of 7.
                given.arguments[column] = _FROM_TEXT[kind](str(text(value)))
            except ValueError:
                is_typed = False
        return KeyedCall(key_text(self._key, given.arguments), given, is_typed)

    def is_canonical(self, call: KeyedCall, result: Any) -> bool:
        """Whether changes of the row in a result invalidate the key of the call, as far as the result shows it."""
        row = result if isinstance(result, Mapping) else getattr(result, "__dict__", {})
        for column in self._types:
            shown, given = row.get(column), call.given.arguments[column]
            # Times and binary have one text already, and a result may show another.
            if shown is None or isinstance(given, (bytes, datetime)):
                continue
            try:
                if text(shown) != text(given):
                    return False  # I6: a collation finds `ada` by `Ada`
            except ValueError:
                return False
        return call.is_typed

    def arguments(self, key: str) -> dict[str, Any] | None:
        """Return the arguments that have this cache key; None if there are none, or several.

        Raises ``ConfigError`` if they cannot be read back from a key.
        """
        name = getattr(self._function, "__name__", "")
        if not isinstance(self._key, str):
            raise ConfigError(f"{name} makes its cache keys by a function, which cannot be read back")
        if unknown := [column for column, kind in self._types.items() if not kind]:
            raise ConfigError(
                f"a cache key of {name} cannot be read back: annotate its parameter {unknown[0]} as one of "
                f"{', '.join(_FROM_TEXT)}"
            )
        calls = [self.call(**texts) for texts in self._template.matches(key)]
        ways = [call.given.arguments for call in calls if call.is_typed and call.key == key]
        return {column: ways[0][column] for column in self._types} if len(ways) == 1 else None


def _type_name(annotation: Any) -> str:
    """Return the name in ``_FROM_TEXT`` of an annotation, which may be a text; empty for another one."""
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    name = name.removesuffix(" | None").rpartition(".")[2]
    return name if name in _FROM_TEXT else ""
