"""Event tokens: where a change is in its shard, and which of two changes is newer.

The idea is from Vitess' "Update Stream" design, section "Event Token". Here positions decide before timestamps, and
UNKNOWN is an answer::

    >>> a = EventToken(1700000000, "shop/commerce/-80", "MariaDB/0-1-41")
    >>> b = EventToken(1700000000, "shop/commerce/-80", "MariaDB/0-1-42")
    >>> compare(a, b)
    <Order.OLDER: 'older'>

The JSON text and the rules of ``compare`` are contracts with everyone who stores tokens. The text changes only
together with the golden files, a rule only with a lineage in ``tests/lineages.py`` that shows why.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

import orjson

from relay.gtid import GtidError, GtidSet, parse

_LONGEST_CACHED = 16 * 1024  # characters; with 256 entries the cache stays below about 20 MB (I11)


class Order(StrEnum):
    """How old one token is compared to another. UNKNOWN is a result; never replace it by a guess (I5)."""

    OLDER = "older"
    EQUAL = "equal"
    NEWER = "newer"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class OriginToken:
    """Where a change was first made, if a reshard's replication applied it. The fields are as in `EventToken`."""

    timestamp: int
    shard: str
    position: str

    def to_json(self) -> str:
        """Return ``{"timestamp":...,"shard":...,"position":...}``, without spaces."""
        return orjson.dumps(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> OriginToken:
        """Read what ``to_json`` wrote. Raises ValueError for anything else."""
        return _origin(orjson.loads(text))


@dataclass(frozen=True, slots=True)
class EventToken:
    """A position in the stream of changes of one shard.

    ``timestamp``: seconds since the epoch, 0 if unknown. It never decreases along a lineage of shards.
    ``shard``: ``<source>/<keyspace or stream label>/<shard>``, so that it names one shard among all sources.
    ``position``: the shard's executed GTID set up to and including the change, ``MySQL56/<uuid>:1-57`` or
    ``MariaDB/0-1-57``; for DynamoDB Streams ``DynamoDB/<sequence number>``. Applications treat it as opaque.
    ``origin``: None unless a reshard's replication applied the change.
    """

    timestamp: int
    shard: str
    position: str
    origin: OriginToken | None = None

    def to_json(self) -> str:
        """Return ``{"timestamp":...,"shard":...,"position":...,"origin":...}``, in this order, without spaces."""
        return self.to_json_bytes().decode()

    def to_json_bytes(self) -> bytes:
        """Return ``to_json`` in UTF-8."""
        # Runs for every change. By hand it takes a third of the time of orjson.dumps(self).
        return b'{"timestamp":%d,"shard":%b,"position":%b,"origin":%b}' % (
            self.timestamp,
            orjson.dumps(self.shard),
            orjson.dumps(self.position),
            b"null" if self.origin is None else orjson.dumps(self.origin),
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> EventToken:
        """Read what ``to_json`` wrote. Raises ValueError for anything else."""
        raw = orjson.loads(text)
        origin = raw.pop("origin", None) if isinstance(raw, dict) else None
        plain = _origin(raw)
        return cls(plain.timestamp, plain.shard, plain.position, None if origin is None else _origin(origin))


def compare(
    a: EventToken | None, b: EventToken | None, *, timestamp_first: bool = False, positions_only: bool = False
) -> Order:
    """Return the order of ``a`` relative to ``b``; ``compare(b, a)`` is its mirror image.

    1. A token is None or has no timestamp, or the tokens are of two sources: UNKNOWN.
    2. Two tokens of one shard: their positions decide, sequence numbers as integers, GTID sets by inclusion. Positions
       that cannot be compared leave it to the timestamps. It is UNKNOWN if two MariaDB servers gave out the same
       sequence number, or if the positions are of two servers and contradict the timestamps.
    3. Two tokens of different shards that both have a position on a common shard, as ``shard`` or as ``origin``: these
       positions decide, or it is UNKNOWN.
    4. Two tokens of different shards, both without an origin: their timestamps decide. Otherwise UNKNOWN.

    Equal timestamps decide nothing: UNKNOWN. Never sort tokens: this is a partial order.

    ``positions_only``: no timestamp decides. Use it for tokens of two readers, such as a relay and the watcher of a
    replica: only one reader's timestamps never decrease along a lineage. ``timestamp_first``: the literal rule of
    Vitess' design, which ignores origins and lets a different timestamp decide before a position; it is wrong where a
    reshard is replicated back. Raises ValueError if both are set.
    """
    if timestamp_first and positions_only:
        raise ValueError("set timestamp_first or positions_only, not both")
    if a is None or b is None or a.timestamp <= 0 or b.timestamp <= 0:
        return Order.UNKNOWN
    if a.shard.partition("/")[0] != b.shard.partition("/")[0]:
        return Order.UNKNOWN
    same_shard = a.shard == b.shard and a.shard != ""  # two tokens without a shard need not be of the same shard
    if timestamp_first:
        if a.timestamp != b.timestamp or not same_shard:
            return _by_timestamp(a, b)
        return _by_position(a, b) or Order.UNKNOWN
    if same_shard:
        order = _by_position(a, b)
        return order if order is not None else Order.UNKNOWN if positions_only else _by_timestamp(a, b)
    if a.origin is None and b.origin is None:
        return Order.UNKNOWN if positions_only else _by_timestamp(a, b)
    both = [(x, y) for x in (a, a.origin) for y in (b, b.origin) if x is not None and y is not None]
    linked = [_by_position(x, y) for x, y in both if x.shard == y.shard != ""]  # the positions on a common shard
    # The timestamp of a replayed change may have been raised to the floor of its lineage, so against the shard it
    # came from only positions tell its age. Against any other shard nothing does: it may have come back from a child,
    # which had it from a child of its own, and then be younger than its timestamp (I5).
    decided = {order for order in linked if order is not None}
    return decided.pop() if len(decided) == 1 else Order.UNKNOWN


def _by_timestamp(a: EventToken, b: EventToken) -> Order:
    if a.timestamp == b.timestamp:
        return Order.UNKNOWN
    return Order.OLDER if a.timestamp < b.timestamp else Order.NEWER


def _by_position(a: EventToken | OriginToken, b: EventToken | OriginToken) -> Order | None:
    """Compare two positions of one shard. None: another rule may decide. UNKNOWN: no other rule may."""
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
        # Numbers of two servers are one sequence only if the failover between them lost nothing. The clock says
        # that it did: a lost tail and what replaced it carry the same numbers.
        return Order.UNKNOWN
    return Order.OLDER if before else Order.NEWER


def is_numbered(position: str) -> bool:
    """Whether a position is a DynamoDB sequence number, and not a set of executed transactions."""
    return position.startswith("DynamoDB/")


def check_position(text: str) -> None:
    """Raise ValueError for a position that cannot be compared with any other, so that its order is always UNKNOWN."""
    if not is_numbered(text):
        if "/" not in text:
            raise ValueError(f"{text!r} is not a position: it begins with DynamoDB/, MySQL56/ or MariaDB/")
        if not parse(text):
            raise ValueError(f"the position {text!r} contains no GTID")
    elif _parse_position(text) is None:
        raise ValueError(f"{text!r} is not a position: DynamoDB/ is followed by a sequence number")


def _position(text: str) -> GtidSet | int | None:
    """Return a GTID set, a DynamoDB sequence number, or None for a bad or empty position."""
    return _cached_position(text) if len(text) <= _LONGEST_CACHED else _parse_position(text)


def _parse_position(text: str) -> GtidSet | int | None:
    if is_numbered(text):
        number = text.partition("/")[2]
        # 256 digits are more than any real one has, and fewer than int() refuses.
        return int(number) if number.isascii() and number.isdigit() and len(number) <= 256 else None
    try:
        return parse(text) or None
    except GtidError:
        return None


_cached_position = lru_cache(maxsize=256)(_parse_position)


def _origin(raw: Any) -> OriginToken:
    """Check the three fields that both kinds of token have."""
    if not isinstance(raw, dict):
        raise ValueError(f"an event token must be a JSON object, not {type(raw).__name__}")
    names = ("timestamp", "shard", "position")
    if missing := set(names) - raw.keys():
        raise ValueError(f"the event token lacks {', '.join(sorted(missing))}")
    if unknown := raw.keys() - set(names):
        raise ValueError(f"the event token has unknown keys: {', '.join(sorted(unknown))}")
    timestamp, shard, position = (raw[name] for name in names)
    if type(timestamp) is not int or not 0 <= timestamp < 1 << 63:  # as long as in Avro
        raise ValueError(f"the timestamp of an event token must be whole seconds since the epoch, not {timestamp!r}")
    if not isinstance(shard, str) or not isinstance(position, str):
        raise ValueError(f"the shard and position of an event token must be strings, not {shard!r} and {position!r}")
    return OriginToken(timestamp, shard, position)
