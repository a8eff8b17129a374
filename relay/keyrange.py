"""Key ranges and the shards that cover them, written and compared as in Vitess' "Key Ranges" and "Shard" docs.

    >>> shards_covering(KeyRange.parse("-80"), ["-40", "40-80", "80-"])
    ['-40', '40-80']

Configs and Vitess' journals use these names, so which names mean the same range may change only with Vitess.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

_RANGE = re.compile(r"((?:[0-9a-f]{2})*)-((?:[0-9a-f]{2})*)")
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keyspace ids from ``start`` (included) to ``end`` (excluded). An empty ``end`` is the end of the key space.

    Bounds and keyspace ids compare as if padded with zero bytes: 80 and 8000 are the same bound, and are kept as 80.
    Raises ValueError for a range that is empty.
    """

    start: bytes = b""
    end: bytes = b""

    def __post_init__(self) -> None:
        open_ended = not self.end
        object.__setattr__(self, "start", self.start.rstrip(b"\0"))
        object.__setattr__(self, "end", self.end.rstrip(b"\0"))
        if not open_ended and self.start >= self.end:
            raise ValueError(
                f"key range {self.start.hex()}-{self.end.hex() or '00'} is empty: its end is not after its start"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``-80``, ``40-80``, ``80-``, or ``-`` and ``0`` for the complete key space.

        Bounds are hex digits, two for each byte, in either case. Raises ValueError for anything else.
        """
        if text == "0":
            return cls()
        matched = _RANGE.fullmatch(text.lower())
        if not matched:
            raise ValueError(
                f"{text!r} is not a key range: write -, -80, 40-80 or 80-, with an even number of hex digits per bound"
            )
        start, end = map(bytes.fromhex, matched.groups())
        try:
            return cls(start, end)
        except ValueError:
            raise ValueError(f"key range {text} is empty: its end is not after its start") from None

    @property
    def complete(self) -> bool:
        return not self.start and not self.end

    def contains(self, keyspace_id: bytes) -> bool:
        keyspace_id = keyspace_id.rstrip(b"\0")
        return self.start <= keyspace_id and (not self.end or keyspace_id < self.end)

    def covers(self, other: Self) -> bool:
        """Whether every keyspace id of ``other`` is in this one."""
        return self.start <= other.start and (not self.end or (bool(other.end) and other.end <= self.end))

    def intersects(self, other: Self) -> bool:
        """Whether the two ranges have a keyspace id in common."""
        return (not self.end or other.start < self.end) and (not other.end or self.start < other.end)

    def adjoins(self, other: Self) -> bool:
        """Whether ``other`` starts where this one ends."""
        return bool(self.end) and self.end == other.start

    def __add__(self, other: Self) -> Self:
        """Join two ranges that adjoin, in either order. Raises ValueError if they do not."""
        if self.adjoins(other):
            return type(self)(self.start, other.end)
        if other.adjoins(self):
            return type(self)(other.start, self.end)
        raise ValueError(f"key ranges {self} and {other} do not adjoin")

    def __str__(self) -> str:
        return f"{self.start.hex()}-{self.end.hex()}"


def shard_range(name: str) -> KeyRange:
    """Return the key range of a shard's name; without a dash it is complete. Raises ValueError for other texts."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a shard name: use letters, digits, '_', '.' and '-', as in -80 or 0")
    if "-" not in name:
        return KeyRange()
    try:
        return KeyRange.parse(name)
    except ValueError as error:
        raise ValueError(f"shard {name}: {error}") from None


def overlapping(shard: str, shards: Iterable[str]) -> list[str]:
    """Return the other shards of ``shards`` that have keyspace ids in common with ``shard``, in key order."""
    wanted = shard_range(shard)
    return _ordered(name for name in shards if name != shard and shard_range(name).intersects(wanted))


def shards_covering(keyrange: KeyRange, shard_names: Iterable[str]) -> list[str]:
    """Return the names, in key order, of the shards that together cover exactly ``keyrange``.

    Raises ValueError, naming the shards and the key ranges that would work, if a part of it is in no shard or in two,
    or if a shard is only partly in it.
    """
    names = _ordered(set(shard_names))
    inside = [name for name in names if shard_range(name).intersects(keyrange)]
    ranges = [shard_range(name) for name in inside]
    listed = ", ".join(names) or "none"
    for n in range(1, len(inside)):
        if ranges[n - 1].intersects(ranges[n]):
            raise ValueError(
                f"shards {inside[n - 1]} and {inside[n]} overlap, so a row of key range {keyrange} may be in either: "
                f"list only one of them (shards: {listed})"
            )
    holes = [str(hole) for hole in _holes(keyrange, ranges)]
    if holes:
        raise ValueError(
            f"key range {keyrange}: no shard holds {' or '.join(holes)}{_alternatives(keyrange, ranges)} "
            f"(shards: {listed})"
        )
    cut = [name for name, found in zip(inside, ranges, strict=True) if not keyrange.covers(found)]
    if cut:
        raise ValueError(
            f"key range {keyrange} covers only a part of {' and '.join(cut)}, and only complete shards can be read"
            f"{_alternatives(keyrange, ranges)} (shards: {listed})"
        )
    return inside


def _ordered(names: Iterable[str]) -> list[str]:
    def key(name: str) -> tuple[bytes, bool, bytes, str]:
        found = shard_range(name)
        return found.start, not found.end, found.end, name

    return sorted(names, key=key)


def _holes(keyrange: KeyRange, ranges: list[KeyRange]) -> list[KeyRange]:
    """Return the parts of ``keyrange`` that are in none of ``ranges``, which are in order and do not overlap."""
    holes: list[KeyRange] = []
    at: bytes | None = keyrange.start  # None means the end of the key space
    for found in ranges:
        if at is not None and at < found.start:
            holes.append(KeyRange(at, found.start))
        at = found.end or None
    if at is not None and (not keyrange.end or at < keyrange.end):
        holes.append(KeyRange(at, keyrange.end))
    return holes


def _alternatives(keyrange: KeyRange, ranges: list[KeyRange]) -> str:
    """List the contiguous ranges of complete shards around and inside ``keyrange``, as the end of a message."""
    wider = _joined(ranges)
    narrower = _joined([found for found in ranges if keyrange.covers(found)])
    offers = list(dict.fromkeys(str(found) for found in (*wider, *narrower)))
    return f"; use {' or '.join(offers)}" if offers else ""


def _joined(ranges: list[KeyRange]) -> list[KeyRange]:
    joined: list[KeyRange] = []
    for found in ranges:
        if joined and joined[-1].adjoins(found):
            joined[-1] += found
        else:
            joined.append(found)
    return joined
