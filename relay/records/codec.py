"""A record as JSON: an object with the fields of a frozen dataclass, except fields that have their default.

A field is a text, a number, a boolean, an enum of texts, a dataclass, or a tuple or a mapping of these. ``Any`` is JSON
that its source reads. The types of the fields say what is read: another value is refused, another field ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from types import UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints

import orjson

_Read = Callable[[Any], Any]
_PLAIN = (str, int, float, bool)


class StoredRecord:
    """What has a key of its own in ``<name>.checkpoints``: a base of frozen dataclasses."""

    __slots__ = ()

    def to_json(self) -> bytes:
        return orjson.dumps(self, _given, orjson.OPT_PASSTHROUGH_DATACLASS)

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Read what `to_json` wrote. Raises ValueError, which names the field, for anything else."""
        read: Self = _read_fields(cls, orjson.loads(text))
        return read


def _given(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that do not have their default."""
    kind: Any = type(value)
    given = ((name, getattr(value, name), default) for name, default, _ in _layout(kind))
    return {name: part for name, part, default in given if part != default}


@cache
def _layout(kind: Any) -> list[tuple[str, Any, _Read]]:
    """Return the name of each field, its default, and what reads it."""
    types = get_type_hints(kind)
    made = {each.name: each.default_factory() for each in fields(kind) if each.default_factory is not MISSING}
    return [(each.name, made.get(each.name, each.default), _reader(types[each.name])) for each in fields(kind)]


@cache
def _reader(kind: Any) -> _Read:
    """Return what makes a value of the type ``kind`` of its JSON."""
    origin, of = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda raw: raw
    if origin is UnionType:  # with None
        some = _reader(of[0])
        return lambda raw: None if raw is None else some(raw)
    if origin is tuple and of[-1] is Ellipsis:
        each = _reader(of[0])
        return lambda raw: tuple(map(each, _typed(list, raw)))
    if origin is tuple:
        parts = [_reader(part) for part in of]
        return lambda raw: tuple(read(part) for read, part in zip(parts, _typed(list, raw), strict=True))
    if origin is Mapping:
        value = _reader(of[1])
        return lambda raw: {name: value(part) for name, part in _typed(dict, raw).items()}
    if is_dataclass(kind):
        return partial(_read_fields, kind)
    return partial(_typed, kind) if kind in _PLAIN else kind  # an enum


def _read_fields(kind: Any, raw: Any) -> Any:
    given, values = _typed(dict, raw), {}
    for name, default, read in _layout(kind):
        if name in given:
            try:
                values[name] = read(given[name])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        elif default is MISSING:
            raise ValueError(f"{name} is missing")
    return kind(**values)


def _typed(kind: type, raw: Any) -> Any:
    if type(raw) is not kind and not (kind is float and type(raw) is int):
        raise ValueError(f"{kind.__name__} expected, not {type(raw).__name__}")
    return raw
