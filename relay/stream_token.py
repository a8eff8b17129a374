"""The token of a stream: where a reader stands in every shard, as JSON that people can read.

The format is Bloop's (seed 002, "Pausing and Resuming"), so tokens go to and fro::

    {"active": ["shardId-1"],
     "shards": [{"shard_id": "shardId-0"},
                {"shard_id": "shardId-1", "parent": "shardId-0",
                 "iterator_type": "after_sequence", "sequence_number": "800000000007366876936"}],
     "stream_arn": "arn:aws:dynamodb:...:table/users/stream/2016-10-23T07:26:33.312"}

``active`` are the shards not yet done with: open ones, and closed ones whose children have not begun. A shard of
``shards`` that is not active is finished, unless one of its ancestors is active: then it has yet to begin. Keys
without a value are left out. A shard that neither the token names nor the lineage of an active one implies is
read from its horizon, so a token may leave out what it knows nothing of.

So the checkpoints of a relay are a token: ``active``, the shards that have not ended; ``shards``, all of them, those
being read with ``Position("after_sequence", n)``, and no position where nothing was read yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

from relay.errors import RelayError

IteratorType = Literal["trim_horizon", "latest", "at_sequence", "after_sequence"]

ITERATOR_TYPES: dict[str, str] = {
    "trim_horizon": "TRIM_HORIZON",
    "latest": "LATEST",
    "at_sequence": "AT_SEQUENCE_NUMBER",
    "after_sequence": "AFTER_SEQUENCE_NUMBER",
}
"""Where in a shard an iterator can begin, and what the API of DynamoDB Streams calls it."""

_SEQUENCE_TYPES = ("at_sequence", "after_sequence")


class InvalidPosition(RelayError, ValueError):
    """Not a place in a stream: neither an end, an aware time, nor a token."""

    exit_code = 2


class InvalidStream(RelayError, ValueError):
    """There is no such stream, or the token is of another one, or all it names has expired."""

    exit_code = 3


def _is_iterator_type(value: object) -> TypeGuard[IteratorType]:
    return isinstance(value, str) and value in ITERATOR_TYPES


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a shard. ``sequence``: as DynamoDB gave it, for ``at_sequence`` and ``after_sequence`` only.

    Raises ``InvalidPosition`` for any other combination.
    """

    type: IteratorType
    sequence: str | None = None

    def __post_init__(self) -> None:
        if not _is_iterator_type(self.type):
            raise InvalidPosition(f"{self.type!r} is no iterator type: use one of {', '.join(ITERATOR_TYPES)}")
        if self.type not in _SEQUENCE_TYPES:
            if self.sequence is not None:
                raise InvalidPosition(f"{self.type} takes no sequence number, {self.sequence!r} was given")
        elif not isinstance(self.sequence, str) or not self.sequence:
            raise InvalidPosition(f"{self.type} needs a sequence number, as text, not {self.sequence!r}")

    def __str__(self) -> str:
        return self.type if self.sequence is None else f"{self.type} {self.sequence}"

    @property
    def exact(self) -> bool:
        """Whether an iterator made here at any later time begins with the same record (I4)."""
        return self.sequence is not None

    def to_json(self) -> dict[str, str]:
        """Give the form that gaps and checkpoints have: ``{"type": ..., "sequence": ...}``."""
        return {"type": self.type} if self.sequence is None else {"type": self.type, "sequence": self.sequence}


TRIM_HORIZON = Position("trim_horizon")
LATEST = Position("latest")


@dataclass(frozen=True, slots=True)
class ShardToken:
    """One shard of a token. ``position``: None where nothing was ever read or asked for."""

    shard_id: str
    parent: str | None = None
    position: Position | None = None

    def to_json(self) -> dict[str, str]:
        token = {"shard_id": self.shard_id}
        if self.parent is not None:
            token["parent"] = self.parent
        if self.position is not None:
            token["iterator_type"] = self.position.type
            if self.position.sequence is not None:
                token["sequence_number"] = self.position.sequence
        return token


@dataclass(frozen=True, slots=True)
class Standing:
    """What a token says of each shard it means, by id.

    ``active``: being read. ``ahead``: below an active one, so it waits and keeps its place. ``finished``: read to its
    end, ancestors of the active ones included.
    """

    active: tuple[str, ...]
    ahead: frozenset[str]
    finished: frozenset[str]


@dataclass(frozen=True, slots=True)
class StreamToken:
    """A whole token, checked. ``stream_token.StreamToken.from_json(token).to_json()`` gives an equal one."""

    stream_arn: str
    active: tuple[str, ...]
    shards: tuple[ShardToken, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "active": list(self.active),
            "shards": [shard.to_json() for shard in self.shards],
            "stream_arn": self.stream_arn,
        }

    @classmethod
    def from_json(cls, token: object) -> StreamToken:
        """Check the shape of ``token``, a parsed JSON object; further keys are ignored.

        Raises ``InvalidPosition`` with the place that is wrong. Whether the stream still has these shards is
        found out by ``Stream.move_to``.
        """
        if not isinstance(token, Mapping):
            raise InvalidPosition(f"a stream token is an object, not {token!r}")
        arn, active, raw = (token.get(key) for key in ("stream_arn", "active", "shards"))
        if not isinstance(arn, str) or not arn:
            raise InvalidPosition(f"the token's stream_arn is {arn!r}, not a stream's ARN")
        if not _is_list(active) or not all(isinstance(shard, str) for shard in active):
            raise InvalidPosition(f"the token's active is {active!r}, not a list of shard ids")
        if not _is_list(raw):
            raise InvalidPosition(f"the token's shards are {raw!r}, not a list")
        shards = [_shard(entry) for entry in raw]
        if len({shard.shard_id for shard in shards}) < len(shards):
            raise InvalidPosition("the token lists a shard twice")
        # Once each: tokens of Bloop may name a shard twice after a resume (X2).
        return cls(arn, tuple(dict.fromkeys(active)), tuple(shards))

    def standing(self, parents: Mapping[str, str | None]) -> Standing:
        """Tell the shards apart, given the ``parents`` of those that are listed."""
        named = {shard.shard_id for shard in self.shards}
        begun = set(self.active)
        # Below another active shard: read before its parent's end (X1). It waits, and keeps its place (I2).
        ahead = {shard for shard in (*named, *self.active) if self.ancestors([shard], parents) & begun}
        active = tuple(shard for shard in self.active if shard not in ahead)
        finished = self.ancestors(active, parents) | (named - ahead - begun)
        return Standing(active, frozenset(ahead), frozenset(finished))

    def position(self, shard: str) -> Position | None:
        return next((entry.position for entry in self.shards if entry.shard_id == shard), None)

    def ancestors(self, shards: Iterable[str], parents: Mapping[str, str | None]) -> set[str]:
        """Return all ancestors of ``shards`` by the token's own links and by ``parents``, which go first."""
        links = {shard.shard_id: shard.parent for shard in self.shards} | dict(parents)
        found: set[str] = set()
        for shard in shards:
            parent = links.get(shard)
            while parent is not None and parent not in found:
                found.add(parent)
                parent = links.get(parent)
        return found


def _shard(entry: object) -> ShardToken:
    if not isinstance(entry, Mapping):
        raise InvalidPosition(f"a shard of the token is {entry!r}, not an object")
    shard, parent = entry.get("shard_id"), entry.get("parent")
    if not isinstance(shard, str) or not shard:
        raise InvalidPosition(f"a shard of the token has the shard_id {shard!r}")
    if parent is not None and not isinstance(parent, str):
        raise InvalidPosition(f"the token's shard {shard} has the parent {parent!r}")
    kind, sequence = entry.get("iterator_type"), entry.get("sequence_number")
    if kind is None:
        return ShardToken(shard, parent)
    try:
        return ShardToken(shard, parent, Position(kind, sequence))
    except InvalidPosition as error:
        raise InvalidPosition(f"the token's shard {shard}: {error}") from error


def _is_list(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    return isinstance(value, (list, tuple))
