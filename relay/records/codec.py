"""A record as JSON: an object with the fields of a frozen dataclass, but for those that have their default.

A field is a text, a number, a boolean, an enum of texts, a dataclass, or a tuple or a mapping of these. ``Any`` is JSON
that its source reads. The types of the fields say what is read, and all else is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from types import UnionType
from typing import Any, NamedTuple, Self, get_args, get_origin, get_type_hints

import orjson

_Read = Callable[[Any], Any]
_PLAIN: Mapping[Any, tuple[type, ...]] = {str: (str,), int: (int,), float: (float, int), bool: (bool,)}


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


class _Field(NamedTuple):
    name: str
    default: Any
    read: _Read


def _given(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that do not have their default."""
    kind: Any = type(value)
    given = ((name, getattr(value, name), default) for name, default, _ in _layout(kind))
    return {name: part for name, part, default in given if part != default}


@cache
def _layout(kind: Any) -> tuple[_Field, ...]:
    types = get_type_hints(kind)
    return tuple(
        _Field(
            each.name,
            each.default if each.default_factory is MISSING else each.default_factory(),
            _reader(types[each.name]),
        )
        for each in fields(kind)
    )


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
        return lambda raw: tuple(map(each, _typed(raw, list)))
    if origin is tuple:
        parts = [_reader(part) for part in of]
        return lambda raw: tuple(read(part) for read, part in zip(parts, _typed(raw, list), strict=True))
    if origin is Mapping:
        value = _reader(of[1])
        return lambda raw: {name: value(part) for name, part in _typed(raw, dict).items()}
    if is_dataclass(kind):
        return partial(_read_fields, kind)
    return partial(_typed_as, _PLAIN[kind]) if kind in _PLAIN else kind  # an enum


def _read_fields(kind: Any, raw: Any) -> Any:
    given, values = _typed(raw, dict), {}
    for name, default, read in _layout(kind):
        if name in given:
            try:
                values[name] = read(given[name])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        elif default is MISSING:
            raise ValueError(f"{name} is missing")
    return kind(**values)


def _typed_as(kinds: tuple[type, ...], raw: Any) -> Any:
    return _typed(raw, *kinds)


def _typed(raw: Any, *kinds: type) -> Any:
    if type(raw) not in kinds:
        raise ValueError(f"{kinds[0].__name__} expected, not {type(raw).__name__}")
    return raw
