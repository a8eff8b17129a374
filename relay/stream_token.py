"""Stream tokens: a reader's position in every shard of a DynamoDB stream, as JSON that people can read.

The format is from Bloop's "Streams" guide, "Pausing and Resuming", so either side reads the other's tokens::

    {"active": ["shardId-1"],
     "shards": [{"shard_id": "shardId-0"},
                {"shard_id": "shardId-1", "parent": "shardId-0",
                 "iterator_type": "after_sequence", "sequence_number": "800000000007366876936"}],
     "stream_arn": "arn:aws:dynamodb:...:table/users/stream/2016-10-23T07:26:33.312"}

``active`` are the shards being read: open ones, and closed ones whose children have not started. A shard of ``shards``
that is not active is finished, unless one of its ancestors is active: then it has not started. Keys without a value
are left out. A shard that is neither in the token nor an ancestor of an active one is read from its trim horizon, so a
token may leave out shards it does not know. Parents are read before their children, as in Bloop's "Stream Ordering
Guarantees".

The checkpoints of a relay are a token, too: ``active`` are the shards that have not ended, ``shards`` all of them, with
``Position("after_sequence", n)`` where records were read and no position where none was.

    >>> token = StreamToken.from_json({"stream_arn": "arn", "active": ["s-1"], "shards": [{"shard_id": "s-1"}]})
    >>> token.active, token.position("s-1")
    (('s-1',), None)
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from relay.errors import RelayError

IteratorType = Literal["trim_horizon", "latest", "at_sequence", "after_sequence"]

ITERATOR_TYPES: dict[str, str] = {
    "trim_horizon": "TRIM_HORIZON",
    "latest": "LATEST",
    "at_sequence": "AT_SEQUENCE_NUMBER",
    "after_sequence": "AFTER_SEQUENCE_NUMBER",
}
"""Where in a shard an iterator can start, and the ``ShardIteratorType`` of AWS' "GetShardIterator" API."""

_SEQUENCE_TYPES = ("at_sequence", "after_sequence")


class InvalidPosition(RelayError, ValueError):
    """The text is not a position in a stream: ``trim_horizon``, ``latest``, a time with its zone, or a token."""

    exit_code = 2


class InvalidStream(RelayError, ValueError):
    """The stream does not exist, the token belongs to another stream, or all of the token's shards have expired."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a shard: ``Position("trim_horizon")``, ``Position("after_sequence", "800000000007366876936")``.

    ``sequence``: the sequence number as DynamoDB gave it, for ``at_sequence`` and ``after_sequence`` only. Raises
    `InvalidPosition` for any other combination.
    """

    type: IteratorType
    sequence: str | None = None

    def __post_init__(self) -> None:
        if self.type not in list(ITERATOR_TYPES):  # a list: a token of others may have a value without a hash
            raise InvalidPosition(f"{self.type!r} is not an iterator type: use one of {', '.join(ITERATOR_TYPES)}")
        if self.type not in _SEQUENCE_TYPES:
            if self.sequence is not None:
                raise InvalidPosition(f"{self.type} takes no sequence number: remove {self.sequence!r}")
        elif not isinstance(self.sequence, str) or not self.sequence:
            raise InvalidPosition(f"{self.type} needs a sequence number as text, not {self.sequence!r}")

    def __str__(self) -> str:
        return self.type if self.sequence is None else f"{self.type} {self.sequence}"

    @property
    def exact(self) -> bool:
        """Whether an iterator that starts here returns the same first record at any later time (I4)."""
        return self.sequence is not None

    def to_json(self) -> dict[str, str]:
        """Return ``{"type": ..., "sequence": ...}``, the form in gaps and checkpoints."""
        return {"type": self.type} if self.sequence is None else {"type": self.type, "sequence": self.sequence}

    @classmethod
    def from_json(cls, position: Mapping[str, Any]) -> Self:
        """Read what ``to_json`` returns. Raises `InvalidPosition`."""
        return cls(position["type"], position.get("sequence"))


TRIM_HORIZON = Position("trim_horizon")
LATEST = Position("latest")


@dataclass(frozen=True, slots=True)
class ShardToken:
    """One shard of a token. ``parent``: a shard id, or None if unknown. ``position``: None if it was never read."""

    shard_id: str
    parent: str | None = None
    position: Position | None = None

    def to_json(self) -> dict[str, str]:
        """Return the shard's entry in ``shards``."""
        kind, sequence = (self.position.type, self.position.sequence) if self.position is not None else (None, None)
        token = {"shard_id": self.shard_id, "parent": self.parent, "iterator_type": kind, "sequence_number": sequence}
        return {key: value for key, value in token.items() if value is not None}


@dataclass(frozen=True, slots=True)
class StreamToken:
    """A checked token. ``StreamToken.from_json(token).to_json()`` equals ``token``, without unknown keys.

    ``active``: ids of the shards being read. ``shards``: all shards that the token knows, each once.
    """

    stream_arn: str
    active: tuple[str, ...]
    shards: tuple[ShardToken, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object, as in this module's description."""
        shards = [shard.to_json() for shard in self.shards]
        return {"active": list(self.active), "shards": shards, "stream_arn": self.stream_arn}

    @classmethod
    def from_json(cls, token: object) -> Self:
        """Check the shape of ``token``, a parsed JSON object. Ignores unknown keys.

        Raises `InvalidPosition`, naming the part that is wrong. Does not check whether the stream still has these
        shards: ``Stream.move_to`` does.
        """
        if not isinstance(token, Mapping):
            raise InvalidPosition(f"a stream token must be a JSON object, not {token!r}")
        if "stream_arn" not in token:
            raise InvalidPosition(
                "this is not a stream token, which has a 'stream_arn': `relay status CONFIG --token SOURCE` prints "
                "the token of a source. The token of a change says where one change is, not where to begin"
            )
        arn, active, raw = (token.get(key) for key in ("stream_arn", "active", "shards"))
        if not isinstance(arn, str) or not arn:
            raise InvalidPosition(f"'stream_arn' in the stream token must be a stream's ARN, not {arn!r}")
        if not isinstance(active, (list, tuple)) or not all(isinstance(shard, str) for shard in active):
            raise InvalidPosition(f"'active' in the stream token must be a list of shard ids, not {active!r}")
        if not isinstance(raw, (list, tuple)):
            raise InvalidPosition(f"'shards' in the stream token must be a list, not {raw!r}")
        shards = [_shard(entry) for entry in raw]
        counts = Counter(shard.shard_id for shard in shards)
        for shard, count in counts.most_common(1):
            if count > 1:
                raise InvalidPosition(f"'shards' in the stream token lists {shard} {count} times: keep one entry")
        # Each shard once: Bloop's tokens may list an active shard twice after a resume.
        return cls(arn, tuple(dict.fromkeys(active)), tuple(shards))

    def position(self, shard: str) -> Position | None:
        """Return the position in a shard, or None if the token has none."""
        return next((entry.position for entry in self.shards if entry.shard_id == shard), None)

    def links(self, parents: Mapping[str, str | None]) -> dict[str, str | None]:
        """Return the parent of each shard, from the token and from ``parents``, which take precedence."""
        return {shard.shard_id: shard.parent for shard in self.shards} | dict(parents)


def ancestors(shards: Iterable[str], links: Mapping[str, str | None]) -> set[str]:
    """Return all ancestors of ``shards``. ``links`` maps each shard to its parent."""
    found: set[str] = set()
    for shard in shards:
        parent = links.get(shard)
        while parent is not None and parent not in found:
            found.add(parent)
            parent = links.get(parent)
    return found


def _shard(entry: object) -> ShardToken:
    if not isinstance(entry, Mapping):
        raise InvalidPosition(f"an entry in 'shards' of the stream token is {entry!r}, not an object")
    shard, parent = entry.get("shard_id"), entry.get("parent")
    if not isinstance(shard, str) or not shard:
        raise InvalidPosition(f"an entry in 'shards' of the stream token has the shard_id {shard!r}, not a shard id")
    if parent is not None and not isinstance(parent, str):
        raise InvalidPosition(f"shard {shard} of the stream token has the parent {parent!r}, not a shard id")
    kind, sequence = entry.get("iterator_type"), entry.get("sequence_number")
    if kind is None:
        return ShardToken(shard, parent)
    try:
        return ShardToken(shard, parent, Position(kind, sequence))
    except InvalidPosition as error:
        raise InvalidPosition(f"shard {shard} of the stream token: {error}") from error
