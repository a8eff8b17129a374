"""Key ranges and the shards that cover them, named and compared as Vitess does.

Names are read from configurations and journals, so what counts as one and the same range may only change with Vitess.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_RANGE = re.compile(r"((?:[0-9a-f]{2})*)-((?:[0-9a-f]{2})*)")
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keyspace ids from ``start`` up to but without ``end``; an empty ``end`` is the end of the key space.

    Bounds are padded with zero bytes wherever they are compared, so 80 and 8000 are one, and they are held without.
    ValueError if nothing lies between them.
    """

    start: bytes = b""
    end: bytes = b""

    def __post_init__(self) -> None:
        open_ended = not self.end
        object.__setattr__(self, "start", self.start.rstrip(b"\0"))
        object.__setattr__(self, "end", self.end.rstrip(b"\0"))
        if not open_ended and self.start >= self.end:
            raise ValueError(f"key range {self.start.hex()}-{self.end.hex() or '00'} is empty: it ends where it starts")

    @classmethod
    def parse(cls, text: str) -> KeyRange:
        """Read ``-``, ``-80``, ``40-80``, ``80-``, or ``0`` for everything. ValueError on anything else."""
        if text == "0":
            return cls()
        matched = _RANGE.fullmatch(text.lower())
        if not matched:
            raise ValueError(
                f"{text!r} is not a key range: write -, -80, 40-80 or 80-, with an even number of hex digits in a bound"
            )
        start, end = map(bytes.fromhex, matched.groups())
        try:
            return cls(start, end)
        except ValueError:
            raise ValueError(f"key range {text} is empty: its end is not after its start") from None

    @property
    def complete(self) -> bool:
        """Whether this is the whole key space."""
        return not self.start and not self.end

    def contains(self, keyspace_id: bytes) -> bool:
        keyspace_id = keyspace_id.rstrip(b"\0")
        return self.start <= keyspace_id and (not self.end or keyspace_id < self.end)

    def covers(self, other: KeyRange) -> bool:
        """Whether every keyspace id of ``other`` is in this one."""
        return self.start <= other.start and (not self.end or (bool(other.end) and other.end <= self.end))

    def intersects(self, other: KeyRange) -> bool:
        """Whether any keyspace id is in both."""
        return (not self.end or other.start < self.end) and (not other.end or self.start < other.end)

    def adjoins(self, other: KeyRange) -> bool:
        """Whether ``other`` begins where this one ends."""
        return bool(self.end) and self.end == other.start

    def __add__(self, other: KeyRange) -> KeyRange:
        """Join two ranges that adjoin, in either order. ValueError if they do not."""
        if self.adjoins(other):
            return KeyRange(self.start, other.end)
        if other.adjoins(self):
            return KeyRange(other.start, self.end)
        raise ValueError(f"key ranges {self} and {other} do not adjoin")

    def __str__(self) -> str:
        return f"{self.start.hex()}-{self.end.hex()}"


def shard_range(name: str) -> KeyRange:
    """Return the key range of a shard by its name; without a dash in it, it holds the whole key space.

    ValueError if it is no shard name.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a shard name")
    if "-" not in name:
        return KeyRange()
    try:
        return KeyRange.parse(name)
    except ValueError as error:
        raise ValueError(f"shard {name}: {error}") from None


def overlapping(shard: str, shards: Iterable[str]) -> list[str]:
    """Return those of ``shards``, in key order, that share keyspace ids with ``shard``; ``shard`` itself left out."""
    wanted = shard_range(shard)
    return _ordered(name for name in shards if name != shard and shard_range(name).intersects(wanted))


def shards_covering(keyrange: KeyRange, shard_names: Iterable[str]) -> list[str]:
    """Return the names, in key order, of the shards that together are exactly ``keyrange``.

    Shards outside of it are left out, but all of them must fit together: no keyspace id may be in two of those that
    share any with ``keyrange``. ValueError, with the shards that do not fit and ranges that would do, unless whole
    shards match.
    """
    names = _ordered(set(shard_names))
    inside = [name for name in names if shard_range(name).intersects(keyrange)]
    ranges = [shard_range(name) for name in inside]
    listed = ", ".join(names) or "none"
    for n in range(1, len(inside)):
        if ranges[n - 1].intersects(ranges[n]):
            raise ValueError(
                f"shards {inside[n - 1]} and {inside[n]} overlap, so which one holds a row of key range {keyrange} is "
                f"not known: list either of them (shards: {listed})"
            )
    holes = [str(hole) for hole in _holes(keyrange, ranges)]
    if holes:
        raise ValueError(
            f"key range {keyrange}: no shard holds {' nor '.join(holes)}{_instead(keyrange, ranges)} (shards: {listed})"
        )
    cut = [name for name, found in zip(inside, ranges, strict=True) if not keyrange.covers(found)]
    if cut:
        raise ValueError(
            f"key range {keyrange} takes only a part of {' and '.join(cut)}, and only whole shards can be read"
            f"{_instead(keyrange, ranges)} (shards: {listed})"
        )
    return inside


def _ordered(names: Iterable[str]) -> list[str]:
    def key(name: str) -> tuple[bytes, bool, bytes, str]:
        found = shard_range(name)
        return found.start, not found.end, found.end, name

    return sorted(names, key=key)


def _holes(keyrange: KeyRange, ranges: list[KeyRange]) -> list[KeyRange]:
    """Return what of ``keyrange`` is in none of ``ranges``, which are in order and do not overlap."""
    holes: list[KeyRange] = []
    at: bytes | None = keyrange.start  # None: the end of the key space
    for found in ranges:
        if at is not None and at < found.start:
            holes.append(KeyRange(at, found.start))
        at = found.end or None
    if at is not None and (not keyrange.end or at < keyrange.end):
        holes.append(KeyRange(at, keyrange.end))
    return holes


def _instead(keyrange: KeyRange, ranges: list[KeyRange]) -> str:
    """Say which unbroken ranges of whole shards touch ``keyrange``, and which lie within it."""
    wider = _joined(ranges)
    narrower = _joined([found for found in ranges if keyrange.covers(found)])
    offers = list(dict.fromkeys(str(found) for found in (*wider, *narrower)))
    return f"; ask for {' or '.join(offers)}" if offers else ""


def _joined(ranges: list[KeyRange]) -> list[KeyRange]:
    joined: list[KeyRange] = []
    for found in ranges:
        if joined and joined[-1].adjoins(found):
            joined[-1] += found
        else:
            joined.append(found)
    return joined
