"""The cache key of a function's arguments, by a template; and the arguments that have a cache key."""

from __future__ import annotations

import inspect
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import date
from decimal import Decimal
from typing import Any, get_type_hints

from relay.cache.keys import key_text
from relay.config.template import Template
from relay.errors import ConfigError

_FROM_TEXT: Mapping[Any, Callable[[str], Any]] = {
    str: str,
    int: int,
    float: float,
    bool: "true".__eq__,
    bytes: b64decode,
    Decimal: Decimal,
    date: date.fromisoformat,
}


class FunctionKey:
    """A template with parameters of ``function`` as its columns. ValueError if it names another column."""

    def __init__(self, template: str, function: Callable[..., Any]) -> None:
        self._template = Template.parse(template)
        self._function = function
        self._signature = inspect.signature(function)
        if unknown := [column for column in self._template.columns if column not in self._signature.parameters]:
            raise ValueError(f"the cache key {template!r} names {unknown[0]!r}, which is no parameter of {function!r}")

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        """Return the cache key. ValueError if an argument has no text in a cache key, TypeError if one is missing."""
        given = self._signature.bind(*args, **kwargs)
        given.apply_defaults()
        return key_text(self._template.text, given.arguments)

    def arguments(self, key: str) -> dict[str, Any] | None:
        """Return the arguments that have this cache key; None if there are none, or several.

        Raises ``ConfigError`` if the annotation of a parameter does not say what its text stands for.
        """
        ways = list(self._ways(key))
        return ways[0] if len(ways) == 1 else None

    def _ways(self, key: str) -> Iterator[dict[str, Any]]:
        hints = get_type_hints(self._function)
        readers = {column: _FROM_TEXT.get(hints.get(column)) for column in self._template.columns}
        for texts in self._template.matches(key):
            arguments = {}
            with suppress(ValueError, ArithmeticError):
                for column, text in texts.items():
                    read = readers[column]
                    if read is None:
                        raise ConfigError(
                            f"a cache key of {self._function!r} cannot be read back: annotate its parameter {column} "
                            f"as one of {', '.join(kind.__name__ for kind in _FROM_TEXT)}"
                        )
                    arguments[column] = read(text)
                if self(**arguments) == key:
                    yield arguments
