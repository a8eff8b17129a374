"""What is known about objects beside their values, in a slot which their ``vars`` do not show and which copies omit."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from relay.dynamodb.models.types import Wire

Seen = Mapping[str, Wire | None]
"""Attributes as the table had them, by name; None for a missing one."""

NONE: frozenset[str] = frozenset()


@lru_cache(maxsize=1024)
def columns(known: frozenset[str], *more: str) -> frozenset[str]:
    """Return the union, as one shared set: a new set per object would burden Python's garbage collector."""
    return known.union(more)


class Known:
    """What is known about one object.

    ``marked``: the columns, by Python name, that were set, deleted or loaded: a save writes these. ``seen``: the
    attributes right after the last operation on the item, or None if there was none, or it was a delete. ``left_out``:
    the columns that a search did not return. All are replaced, never changed, since objects share them.
    """

    __slots__ = ("left_out", "marked", "seen")

    def __init__(self, marked: frozenset[str]) -> None:
        self.marked = marked
        self.left_out = NONE
        self.seen: Seen | None = None


class Tracked:
    """The base class of objects about which something is known."""

    __slots__ = ("__dict__", "__known__", "__weakref__")

    def __getstate__(self) -> dict[str, Any]:
        return vars(self)


def know(of: object, marked: frozenset[str]) -> Known:
    """Start over with an object whose columns ``marked`` were set."""
    known = Known(marked)
    object.__setattr__(of, "__known__", known)
    return known


def known_of(of: object) -> Known:
    """Return what is known about an object. A copy, or one from a pickle, is new, and all of its columns were set."""
    try:
        known: Known = object.__getattribute__(of, "__known__")  # not by a `__getattr__` of the class
    except AttributeError:
        known = know(of, columns(NONE, *vars(of)))
    return known


def note(of: object, seen: Seen, read: frozenset[str], left_out: frozenset[str]) -> None:
    """Record that the columns ``read`` of an object were read from its item."""
    known = known_of(of)
    known.seen = seen
    known.marked = read if known.marked <= read else columns(known.marked, *read)
    known.left_out = left_out


def mark(of: object, column: str) -> None:
    known = known_of(of)
    if column not in known.marked:
        known.marked = columns(known.marked, column)
