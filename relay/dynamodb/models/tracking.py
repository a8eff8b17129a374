"""What is known of objects beside their values: which columns were set or loaded, and what the table had last.

It is kept outside of the objects, so that copies, pickles and comparisons of them are not affected, by the object's
identity, so that two objects that are equal do not share it, and goes with the object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import ref

from relay.dynamodb.models.types import Wire

Seen = Mapping[str, Wire | None]
"""Attributes as the table had them, by name; None for one that it did not have."""

_NONE: frozenset[str] = frozenset()


class Tracked(ref[Any]):
    """What is known of one object.

    ``marked``: the columns, by Python name, that were set, deleted or loaded: those that a save writes. ``seen``: the
    attributes right after the last operation on the item; None if there was none, or it was a delete. ``left_out``: the
    columns that a search did not return. All are replaced, never changed, since objects share them.
    """

    __slots__ = ("id", "left_out", "marked", "seen")

    id: int
    marked: frozenset[str]
    seen: Seen | None
    left_out: frozenset[str]

    def __new__(cls, of: Any) -> Tracked:
        return super().__new__(cls, of, _forget)

    def __init__(self, of: Any) -> None:
        self.id = id(of)
        self.marked = _NONE
        self.seen = None
        self.left_out = _NONE


_tracked: dict[int, Tracked] = {}


def _forget(gone: Tracked) -> None:
    _tracked.pop(gone.id, None)


def track(of: Any) -> Tracked:
    """Begin to track a new object."""
    tracked = _tracked[id(of)] = Tracked(of)
    return tracked


def tracked(of: Any) -> Tracked:
    """Return what is known of an object.

    A copy, or an object from a pickle, is new: it has not been seen in the table, and all of its columns were set.
    """
    found = _tracked.get(id(of))
    if found is None:
        found = track(of)
        found.marked = frozenset(vars(of))
    return found


def mark(of: Any, column: str) -> None:
    """Note that a column was set or deleted."""
    found = tracked(of)
    if column not in found.marked:
        found.marked |= {column}


def count() -> int:
    """Return how many objects are tracked."""
    return len(_tracked)
