"""The cache key for a function's arguments, by a template, and the arguments for a cache key."""

import inspect
import logging
from collections.abc import Callable, Collection, Mapping
from datetime import date, datetime
from decimal import Decimal
from math import isfinite
from types import MappingProxyType, NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from relay.cache.keys import key_text, text
from relay.config.template import Template
from relay.dynamodb.values import canonical_number
from relay.errors import ConfigError
from relay.process.seldom import Seldom
from relay.types.items import binary

_log = logging.getLogger(__name__)


def _finite(number: str) -> float:
    value = float(canonical_number(number))
    if not isfinite(value):
        raise ValueError(f"{number} is too large")
    return value


_FROM_TEXT: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "int": lambda number: int(canonical_number(number)),
    "float": _finite,
    "bool": lambda truth: bool(("false", "true").index(truth)),
    "bytes": binary,
    "Decimal": lambda number: Decimal(canonical_number(number)),
    "date": date.fromisoformat,
}
"""By the name of an annotation, the function that reads its values from text. Each raises ValueError for other text."""


class KeyedCall(NamedTuple):
    """A call of a function with a cache key. ``args``, ``kwargs``: as given, but texts are read as annotated.

    ``values``: the values of the key's columns. ``unread``: columns whose texts could not be read as a type.
    """

    key: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    values: Mapping[str, Any] = MappingProxyType({})
    unread: Collection[str] = ()


class FunctionKey:
    """The cache key of a function's arguments, by a template or a function. Raises ValueError for an unknown column."""

    def __init__(self, key: str | Callable[..., str], function: Callable[..., Any]) -> None:
        self._key = key
        self._function = function
        self._template = Template.parse(key if isinstance(key, str) else "")
        self._types: dict[str, str] = {}
        self._warning = Seldom()
        if isinstance(key, str):
            self._signature = inspect.signature(function)
            parameters, hints = self._signature.parameters, _hints(function)
            for column in self._template.columns:
                if column not in parameters:
                    raise ValueError(
                        f"the cache key {key!r} names {column!r}, which is not a parameter of {function!r}"
                    )
                self._types[column] = _type_name(hints.get(column, parameters[column].annotation))

    def call(self, *args: Any, **kwargs: Any) -> KeyedCall:
        """Return the call. Raises ValueError if an argument has no text in a cache key, TypeError if one is missing."""
        if not isinstance(self._key, str):
            return KeyedCall(self._key(*args, **kwargs), args, kwargs)
        given = self._signature.bind(*args, **kwargs)
        parameters = self._signature.parameters
        values = {column: given.arguments.get(column, parameters[column].default) for column in self._types}
        unread = []
        for column, kind in self._types.items():
            if kind == "str" or not isinstance(values[column], (str, bool, datetime) if kind else (str, bool)):
                continue
            try:
                # I6: `007` finds the item 7, whose changes invalidate the key of 7.
                values[column] = _FROM_TEXT[kind](str(text(values[column])))
            except (KeyError, ValueError):
                unread.append(column)
            else:
                if column in given.arguments:  # a default is the function's own value
                    given.arguments[column] = values[column]
        return KeyedCall(key_text(self._key, values), given.args, given.kwargs, values, unread)

    def is_canonical(self, call: KeyedCall, result: Any) -> bool:
        """Whether changes of the row in a result invalidate the key of the call, as far as the result shows."""
        for column, given in call.values.items():
            shown = _shown(result, column, given)
            # I6: a collation finds `ada` by `Ada`, and `007` finds the item 7, or will
            if (shown is None and column in call.unread) or shown not in (None, text(given)):
                if self._warning.is_due():
                    _log.warning(
                        "%s: a result is not stored, because it does not show the %s in its cache key %r, so its "
                        "changes may invalidate another key: annotate the parameter with its type, or pass the value "
                        "as the row has it",
                        getattr(self._function, "__qualname__", self._function),
                        column,
                        self._key,
                    )
                return False
        return True

    def arguments(self, key: str) -> dict[str, Any] | None:
        """Return the only arguments with this key, or None. Raises ``ConfigError`` if a key cannot give them."""
        name = getattr(self._function, "__name__", "")
        if not isinstance(self._key, str):
            raise ConfigError(
                f"{name} computes its cache keys with a function, so its arguments cannot be derived from a key: use a "
                "key template instead"
            )
        if unknown := [column for column, kind in self._types.items() if not kind]:
            raise ConfigError(
                f"the arguments of {name} cannot be derived from a cache key: annotate its parameter {unknown[0]} as "
                f"one of {', '.join(_FROM_TEXT)}"
            )
        calls = [self.call(**texts) for texts in self._template.matches(key)]
        ways = [call.values for call in calls if not call.unread and call.key == key]
        return dict(ways[0]) if len(ways) == 1 else None


def _shown(result: Any, column: str, given: Any) -> str | None:
    """Return the text of a column in a cache key by its value in a result, or None if the result does not show it."""
    try:
        shown = result.get(column) if isinstance(result, Mapping) else getattr(result, column, None)
        # Times and binary have only one text, but a result may show a different form, or none.
        if shown is None or isinstance(given, (bytes, datetime)) or callable(shown):
            return text(shown) if isinstance(given, datetime) and _is_date(shown) else None  # I6: that is not its key
        # A value as a driver returns it.
        return text(int(shown) if isinstance(shown, bool) and not isinstance(given, bool) else shown)
    except (ValueError, AttributeError):
        return None


def _is_date(shown: Any) -> bool:
    try:
        return not isinstance(shown, datetime) and date.fromisoformat(str(shown)).isoformat() == str(shown)
    except ValueError:
        return False


def _hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError, AttributeError):  # a name that is imported only for the type checker
        return {}


def _type_name(annotation: Any) -> str:
    """Return an annotation's name in ``_FROM_TEXT``; the annotation may be a text. Return "" for others."""
    if isinstance(annotation, str):
        return name if (name := annotation.removesuffix(" | None").rpartition(".")[2]) in _FROM_TEXT else ""
    while (supertype := getattr(annotation, "__supertype__", None)) is not None:
        annotation = supertype
    if get_origin(annotation) in (Union, UnionType):
        others = [each for each in get_args(annotation) if each is not NoneType]
        return _type_name(others[0]) if len(others) == 1 else ""
    return _type_name(getattr(annotation, "__name__", ""))
