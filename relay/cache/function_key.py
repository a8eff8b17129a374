"""The cache key of a function's arguments, by a template; and the arguments that have a cache key."""

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

_FROM_TEXT: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "int": lambda number: int(canonical_number(number)),
    "float": lambda number: _finite(number),
    "bool": lambda truth: bool(("false", "true").index(truth)),
    "bytes": binary,
    "Decimal": lambda number: Decimal(canonical_number(number)),
    "date": date.fromisoformat,
}
"""By the name of an annotation, what reads its values from texts. Each raises ValueError for another text."""


class KeyedCall(NamedTuple):
    """A call of a function with a cache key. ``args``, ``kwargs``: as given, with texts read as annotated.

    ``values``: the values of the key's columns. ``unread``: those whose texts could not be read as of a type.
    """

    key: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    values: Mapping[str, Any] = MappingProxyType({})
    unread: Collection[str] = ()


class FunctionKey:
    """The cache key of a function's arguments: a template with its parameters as columns, or a function that makes it.

    ValueError if a template names another column.
    """

    def __init__(self, key: str | Callable[..., str], function: Callable[..., Any]) -> None:
        self._key = key
        self._function = function
        self._template = Template.parse(key if isinstance(key, str) else "")
        self._types: dict[str, str] = {}
        self._warning = Seldom()
        if isinstance(key, str):
            self._signature = inspect.signature(function)
            parameters = self._signature.parameters
            if unknown := [column for column in self._template.columns if column not in parameters]:
                raise ValueError(
                    f"the cache key {key!r} names {unknown[0]!r}, which is not a parameter of {function!r}"
                )
            hints = _hints(function)
            self._types = {
                column: _type_name(hints.get(column, parameters[column].annotation))
                for column in self._template.columns
            }

    def call(self, *args: Any, **kwargs: Any) -> KeyedCall:
        """Return the call. ValueError if an argument has no text in a cache key, TypeError if one is missing."""
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
                if column in given.arguments:  # a default is the function's own
                    given.arguments[column] = values[column]
        return KeyedCall(key_text(self._key, values), given.args, given.kwargs, values, unread)

    def is_canonical(self, call: KeyedCall, result: Any) -> bool:
        """Whether changes of the row in a result invalidate the key of the call, as far as the result shows it."""
        for column, given in call.values.items():
            shown = _shown(result, column, given)
            # I6: a collation finds `ada` by `Ada`, and `007` finds the item 7, or will
            if (shown is None and column in call.unread) or shown not in (None, text(given)):
                if self._warning.is_due():
                    _log.warning(
                        "%s: a result is not stored, since it does not show the %s that its cache key %r was made of, "
                        "so its changes may invalidate another key: annotate the parameter with its type, or ask for "
                        "what the row has",
                        getattr(self._function, "__qualname__", self._function),
                        column,
                        self._key,
                    )
                return False
        return True

    def arguments(self, key: str) -> dict[str, Any] | None:
        """Return the arguments that have this cache key, or None if there are none, or several.

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
        ways = [call.values for call in calls if not call.unread and call.key == key]
        return dict(ways[0]) if len(ways) == 1 else None


def _shown(result: Any, column: str, given: Any) -> str | None:
    """Return the text of a column in a cache key as a result shows it, or None if it does not."""
    try:
        shown = result.get(column) if isinstance(result, Mapping) else getattr(result, column, None)
        # Times and binary have one text already, and a result may show another. If it has none, it may, too.
        if shown is None or isinstance(given, (bytes, datetime)) or callable(shown):
            return None
        # As a driver has it.
        return text(int(shown) if isinstance(shown, bool) and not isinstance(given, bool) else shown)
    except (ValueError, AttributeError):
        return None


def _hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError, AttributeError):  # a name that is only imported for the type checker
        return {}


def _type_name(annotation: Any) -> str:
    """Return the name in ``_FROM_TEXT`` of an annotation, which may be a text; empty for another one."""
    if isinstance(annotation, str):
        name = annotation.removesuffix(" | None").rpartition(".")[2]
        return name if name in _FROM_TEXT else ""
    while (supertype := getattr(annotation, "__supertype__", None)) is not None:
        annotation = supertype
    if get_origin(annotation) in (Union, UnionType):
        others = [each for each in get_args(annotation) if each is not NoneType]
        return _type_name(others[0]) if len(others) == 1 else ""
    name = getattr(annotation, "__name__", "")
    return name if name in _FROM_TEXT else ""


def _finite(number: str) -> float:
    value = float(canonical_number(number))
    if not isfinite(value):
        raise ValueError(f"{number} is too large")
    return value
