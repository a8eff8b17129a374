"""Event tokens, and the four-valued order of two of them.

The JSON text and the rules of ``compare`` are contracts with everyone who stores tokens: change the text only
together with the golden files, and a rule only with a lineage in ``tests/lineages.py`` that shows why.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

import orjson

from relay.gtid import GtidError, GtidSet, parse

_LONGEST_CACHED = 16 * 1024  # characters; with the number of entries this bounds the cache to some 20 MB (I11)


class Order(StrEnum):
    """Where one token stands relative to another. There is no default: UNKNOWN is a result (I5)."""

    OLDER = "older"
    EQUAL = "equal"
    NEWER = "newer"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class OriginToken:
    """Where a change was first made, when a reshard's replication applied it to another shard.

    ``timestamp``: seconds since the epoch. ``shard`` and ``position``: as in EventToken.
    """

    timestamp: int
    shard: str
    position: str

    def to_json(self) -> str:
        return orjson.dumps(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> OriginToken:
        """Read what ``to_json`` wrote. ValueError on anything else."""
        return _origin(orjson.loads(text))


@dataclass(frozen=True, slots=True)
class EventToken:
    """A position in the stream of changes of one shard (seed 004, "Event Token").

    ``timestamp``: seconds since the epoch, never going back along a lineage; 0 if not known.
    ``shard``: ``<source>/<keyspace or stream label>/<shard>``.
    ``position``: the executed set with its flavour in front, or ``DynamoDB/<sequence number>``.
    """

    timestamp: int
    shard: str
    position: str
    origin: OriginToken | None = None

    def to_json(self) -> str:
        """Return the token with the keys in the order of the fields and no spaces."""
        return self.to_json_bytes().decode()

    def to_json_bytes(self) -> bytes:
        # Once for every change: a third of the time that orjson takes for the whole.
        return b'{"timestamp":%d,"shard":%b,"position":%b,"origin":%b}' % (
            self.timestamp,
            orjson.dumps(self.shard),
            orjson.dumps(self.position),
            b"null" if self.origin is None else orjson.dumps(self.origin),
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> EventToken:
        """Read what ``to_json`` wrote. ValueError on anything else."""
        raw = orjson.loads(text)
        origin = raw.pop("origin", None) if isinstance(raw, dict) else None
        plain = _origin(raw)
        return cls(plain.timestamp, plain.shard, plain.position, None if origin is None else _origin(origin))


def compare(
    a: EventToken | None, b: EventToken | None, *, timestamp_first: bool = False, positions_only: bool = False
) -> Order:
    """Return where ``a`` stands relative to ``b``; ``compare(b, a)`` is the mirror image.

    Timestamps are true only among the tokens of one reader, which lets none go back along a lineage. For tokens of
    two readers, such as a relay and the watcher of a replica, ``positions_only`` leaves what they would decide unknown.
    ``timestamp_first``: the literal rule of seed 004, "Event Token", without origins; it lies where a reshard is
    replicated back. ValueError if both are asked for.
    """
    if timestamp_first and positions_only:
        raise ValueError("timestamp_first and positions_only contradict each other")
    if a is None or b is None or a.timestamp <= 0 or b.timestamp <= 0:
        return Order.UNKNOWN
    if a.shard.partition("/")[0] != b.shard.partition("/")[0]:
        return Order.UNKNOWN
    same_shard = a.shard == b.shard and a.shard != ""  # two tokens without a shard need not share one
    if timestamp_first:
        if a.timestamp != b.timestamp or not same_shard:
            return _by_timestamp(a, b)
        return _by_position(a, b) or Order.UNKNOWN
    if same_shard:
        order = _by_position(a, b)
        return order if order is not None else Order.UNKNOWN if positions_only else _by_timestamp(a, b)
    linked = [_by_position(*pair) for pair in _on_one_shard(a, b)]
    if not linked and a.origin is None and b.origin is None and not positions_only:
        return _by_timestamp(a, b)
    # A replayed change has the time of its replay as soon as that was held up to the floor of its lineage,
    # so next to the shard it came from only positions can tell its age. Next to any other shard nothing can: it may
    # have come back from a child, which had it from a child of its own, and then be younger than its time (I5).
    decided = {order for order in linked if order is not None}
    return decided.pop() if len(decided) == 1 else Order.UNKNOWN


def _on_one_shard(a: EventToken, b: EventToken) -> Iterator[tuple[EventToken | OriginToken, EventToken | OriginToken]]:
    """Yield what the two tokens, which are of different shards, say about one and the same shard."""
    if b.origin is not None and b.origin.shard == a.shard != "":
        yield a, b.origin
    if a.origin is not None and a.origin.shard == b.shard != "":
        yield a.origin, b
    if a.origin is not None and b.origin is not None and a.origin.shard == b.origin.shard != "":
        yield a.origin, b.origin


def _by_timestamp(a: EventToken, b: EventToken) -> Order:
    if a.timestamp == b.timestamp:
        return Order.UNKNOWN
    return Order.OLDER if a.timestamp < b.timestamp else Order.NEWER


def _by_position(a: EventToken | OriginToken, b: EventToken | OriginToken) -> Order | None:
    """Compare two positions of one shard; None if they cannot be, UNKNOWN if nothing else can decide either."""
    x, y = _position(a.position), _position(b.position)
    if isinstance(x, int) and isinstance(y, int):
        return Order.EQUAL if x == y else Order.OLDER if x < y else Order.NEWER
    if not isinstance(x, GtidSet) or not isinstance(y, GtidSet):
        return None
    if x.diverges(y):
        return Order.UNKNOWN
    before, after = y.contains(x), x.contains(y)
    if before and after:
        return Order.EQUAL
    if not before and not after:
        return None
    earlier, later = (a, b) if before else (b, a)
    if earlier.timestamp > later.timestamp > 0 and not x.same_servers(y):
        # Numbers of two servers are one sequence only if the failover between them lost nothing, and the
        # clock says that it did: a lost tail and what took its place carry the same numbers.
        return Order.UNKNOWN
    return Order.OLDER if before else Order.NEWER


def _position(text: str) -> GtidSet | int | None:
    """Return what can be compared: a set, a DynamoDB sequence number, or None for bad and empty positions."""
    return _cached_position(text) if len(text) <= _LONGEST_CACHED else _parse_position(text)


def _parse_position(text: str) -> GtidSet | int | None:
    flavour, _, number = text.partition("/")
    if flavour == "DynamoDB":
        # Longer than any real one, and short enough for int() to take.
        return int(number) if number.isascii() and number.isdigit() and len(number) <= 256 else None
    try:
        return parse(text) or None
    except GtidError:
        return None


_cached_position = lru_cache(maxsize=256)(_parse_position)


def _origin(raw: Any) -> OriginToken:
    """Check the three fields that both kinds of token have."""
    if not isinstance(raw, dict):
        raise ValueError(f"a token is a JSON object, not {type(raw).__name__}")
    names = ("timestamp", "shard", "position")
    if wrong := set(names) ^ raw.keys():
        raise ValueError(f"missing or unknown in a token: {', '.join(sorted(wrong))}")
    timestamp, shard, position = (raw[name] for name in names)
    if type(timestamp) is not int or timestamp < 0:
        raise ValueError(f"the timestamp of a token is whole seconds since the epoch, not {timestamp!r}")
    if not isinstance(shard, str) or not isinstance(position, str):
        raise ValueError("the shard and position of a token are strings")
    return OriginToken(timestamp, shard, position)
