"""What is known of objects beside their values: which columns were set or loaded, and what the table had last.

It is kept outside of the objects, so that copies, pickles and comparisons of them are not affected, by the object's
identity, so that two objects that are equal do not share it, and goes with the object.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from weakref import ref

from relay.dynamodb.models.types import Wire

Seen = Mapping[str, Wire | None]
"""Attributes as the table had them, by name; None for a missing one."""

NONE: frozenset[str] = frozenset()


@lru_cache(maxsize=1024)
def columns(known: frozenset[str], *more: str) -> frozenset[str]:
    """Return both together, the same set each time: a set for each object is work for Python's garbage collector."""
    return known.union(more)


class Tracked(ref[Any]):
    """What is known of one object.

    ``marked``: the columns, by Python name, that were set, deleted or loaded: a save writes these. ``seen``: the
    attributes right after the last operation on the item, or None if there was none, or it was a delete. ``left_out``:
    the columns that a search did not return. All are replaced, never changed, since objects share them.
    """

    __slots__ = ("id", "left_out", "marked", "seen")

    id: int
    marked: frozenset[str]
    left_out: frozenset[str]
    seen: Seen | None

    def __new__(cls, of: Any) -> Tracked:
        return super().__new__(cls, of, _forget)

    def __init__(self, of: Any) -> None:
        self.id = id(of)
        self.marked = NONE
        self.left_out = NONE
        self.seen = None


_tracked: dict[int, Tracked] = {}


def _forget(gone: Tracked) -> None:
    _tracked.pop(gone.id, None)


def track(of: Any) -> Tracked:
    tracked = _tracked[id(of)] = Tracked(of)
    return tracked


def tracked(of: Any) -> Tracked:
    """Return what is known of an object.

    A copy, or an object from a pickle, is new: it has not been seen in the table, and all of its columns were set.
    """
    found = _tracked.get(id(of))
    if found is None:
        found = track(of)
        found.marked = columns(NONE, *vars(of))
    return found


def note(of: Any, seen: Seen, read: frozenset[str], left_out: frozenset[str]) -> None:
    """Note what was read of an object's item: the columns ``read``."""
    known = _tracked.get(id(of)) or tracked(of)
    known.seen = seen
    known.marked = read if known.marked <= read else columns(known.marked, *read)
    known.left_out = left_out


def mark(of: Any, column: str) -> None:
    found = tracked(of)
    if column not in found.marked:
        found.marked = columns(found.marked, column)
