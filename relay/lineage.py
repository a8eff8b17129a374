"""The lineage of shards, the life of one shard, and the records of both in ``<name>.checkpoints``.

All sources share it: a DynamoDB shard that splits and a Vitess reshard journal are edges of the same graph, and a shard
is read only after all its parents have been read to their end (I2).

The JSON written here is the format of the checkpoints topic. Change it only together with
``schemas/golden/checkpoints.json``, and keep reading what older versions wrote.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import orjson

from relay.token import EventToken

Position = Mapping[str, Any]
"""Where a shard has been read up to, as JSON. Each source has a type that reads and writes its own."""

Start = Mapping[str, Any]
"""Where reading a shard begins, as JSON: a position, ``{"type": "trim_horizon"}``, ``{"since": seconds}`` and so on."""

PASSED = "passed"
"""The type of the start of a shard that is not read: it was read to its end before the relay began."""

PRUNE_AFTER = 48 * 3600
"""Seconds for which the record of an ended shard is kept: twice the retention of DynamoDB Streams."""

INCARNATION = "@"
"""Separates the name of a shard from a number, if an earlier shard had the same name."""

_VERSION = "v1"


def is_inside_transaction(position: Position | None) -> bool:
    """Whether part of a source transaction is on the topic at ``position``."""
    return position is not None and "transaction" in position


class ShardState(StrEnum):
    """Planned, reading, finished or gone; *pruned* is the absence of a record."""

    PLANNED = "planned"
    READING = "reading"
    FINISHED = "finished"
    GONE = "gone"

    @property
    def ended(self) -> bool:
        return self in (ShardState.FINISHED, ShardState.GONE)


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard as its source lists it.

    ``start``: where it begins, if its lineage says that and not the plan.
    """

    id: str
    parents: tuple[str, ...] = ()
    start: Start | None = None

    @property
    def name(self) -> str:
        """The name that the source uses: resharding may give a later shard the name of an earlier one."""
        return self.id.partition(INCARNATION)[0]


@dataclass(frozen=True, slots=True)
class Journal:
    """A reshard as the source announces it, with the source's names: some shards end, and others continue them.

    ``participants``: the shards that end; each of them has this journal at its end. ``targets``: where the shards that
    continue them begin.
    """

    id: str
    participants: tuple[str, ...]
    targets: Mapping[str, Start]


@dataclass(frozen=True, slots=True)
class StreamId:
    """One incarnation of a source: its configured name, and the label that its shards belong to."""

    source: str
    label: str

    @property
    def plan_key(self) -> bytes:
        """The key of the plan: the source's own key, without a shard."""
        return orjson.dumps([_VERSION, self.source, self.label])

    def checkpoint_key(self, shard: str) -> bytes:
        return orjson.dumps([_VERSION, self.source, self.label, shard])

    def qualified(self, shard: str) -> str:
        """The globally qualified shard name, as event tokens carry it."""
        return f"{self.source}/{self.label}/{shard}"


def parse_key(key: bytes) -> tuple[StreamId, str | None]:
    """Return the stream and the shard of a record's key; no shard for a plan. Raises ValueError for other keys."""
    parts = orjson.loads(key)
    if not isinstance(parts, list) or len(parts) not in (3, 4) or parts[0] != _VERSION:
        raise ValueError(f"not a checkpoint key: {key!r}")
    return StreamId(parts[1], parts[2]), parts[3] if len(parts) == 4 else None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far one shard is published: everything before ``position`` is on the topic (I4).

    ``position``: None until something was read. ``start``: where reading begins.
    ``progress``: seconds since the epoch up to which the shard has been read, not clamped; None if never.
    ``journal``: the reshard that ended the shard (``relay.engine.journals``). ``reached``: see ``Page``.
    ``gap``: the id of its last gap. ``updated_at``: seconds since the epoch.
    """

    state: ShardState
    position: Position | None = None
    token: EventToken | None = None
    parents: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    start: Start | None = None
    snapshot: Mapping[str, Any] | None = None
    gap: str | None = None
    config_hash: str = ""
    updated_at: float = 0.0
    progress: float | None = None
    journal: Mapping[str, Any] | None = None
    reached: float | None = None

    def to_json(self) -> bytes:
        return orjson.dumps(
            {
                "state": self.state.value,
                "position": self.position,
                "token": orjson.Fragment(self.token.to_json()) if self.token else None,
                "parents": list(self.parents),
                "children": list(self.children),
                "start": self.start,
                "snapshot": self.snapshot,
                "gap": self.gap,
                "config_hash": self.config_hash,
                "updated_at": self.updated_at,
                "progress": self.progress,
                **({"journal": self.journal} if self.journal is not None else {}),
                **({"reached": self.reached} if self.reached is not None else {}),
            }
        )

    @classmethod
    def from_json(cls, text: bytes) -> Checkpoint:
        """Read a checkpoint. ValueError or KeyError on anything else."""
        raw = orjson.loads(text)
        token = raw["token"]
        return cls(
            state=ShardState(raw["state"]),
            position=raw["position"],
            token=EventToken.from_json(orjson.dumps(token)) if token is not None else None,
            parents=tuple(raw["parents"]),
            children=tuple(raw["children"]),
            start=raw["start"],
            snapshot=raw["snapshot"],
            gap=raw["gap"],
            config_hash=raw["config_hash"],
            updated_at=raw["updated_at"],
            progress=raw.get("progress"),
            journal=raw.get("journal"),
            reached=raw.get("reached"),
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """Where reading a stream began, decided once before anything was read.

    ``requested``: the ``start`` of the config at that time. ``planned_at``: T0, seconds since the epoch.
    ``shards``: the start of each shard listed at T0; a shard that is not among them starts at its horizon.
    ``keys``: by table, its key columns as ``[name, type]``, hash columns first.
    ``gap``: the id of the gap that comes with the plan: between the previous stream of the source and this one, from a
    reset, or from a token whose shards have expired.
    ``floor``: seconds, the last timestamp published before: no token under this plan gets an earlier one.
    ``hashed``: by table, if the source has journals, how many of its key columns choose the partition.
    ``past``: the newest shard of each name before a reset.
    """

    requested: str
    planned_at: float
    shards: Mapping[str, Start]
    keys: Mapping[str, list[list[str]]]
    config_hash: str = ""
    gap: str | None = None
    floor: int = 0
    hashed: Mapping[str, int] = field(default_factory=dict)
    past: tuple[str, ...] = ()

    def start_of(self, shard: Shard) -> Start:
        return shard.start or self.shards.get(shard.id, {"type": "trim_horizon"})

    @property
    def passed(self) -> frozenset[str]:
        """The shards that are not read, because they were read before the relay began."""
        return frozenset(shard for shard, start in self.shards.items() if start.get("type") == PASSED)

    def to_json(self) -> bytes:
        return orjson.dumps(
            {
                "start": self.requested,
                "planned_at": self.planned_at,
                "shards": self.shards,
                "keys": self.keys,
                "config_hash": self.config_hash,
                **({"gap": self.gap, "floor": self.floor} if self.gap else {}),
                **({"hashed": self.hashed} if self.hashed else {}),
                **({"past": list(self.past)} if self.past else {}),
            }
        )

    @classmethod
    def from_json(cls, text: bytes) -> Plan:
        raw = orjson.loads(text)
        where = raw["start"], raw["planned_at"], raw["shards"], raw["keys"], raw["config_hash"]
        past = tuple(raw.get("past", ()))
        return cls(*where, raw.get("gap"), raw.get("floor", 0), raw.get("hashed", {}), past)


@dataclass(frozen=True, slots=True)
class Gap:
    """Changes that are lost, or may be: an event of its own (I9).

    ``begin``, ``end``: the positions around the lost changes, None where unknown. ``found_at``: seconds.
    """

    source: str
    label: str
    shard: str | None
    reason: str
    begin: Position | None
    end: Position | None
    found_at: float

    @property
    def id(self) -> str:
        """The id of a gap is the same however often the gap is met."""
        identity = [self.source, self.label, self.shard, self.reason, self.begin]
        return hashlib.blake2b(orjson.dumps(identity, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()

    def to_json(self) -> bytes:
        return orjson.dumps(
            {
                "id": self.id,
                "source": self.source,
                "stream": self.label,
                "shard": self.shard,
                "reason": self.reason,
                "from": self.begin,
                "to": self.end,
                "found_at": self.found_at,
            }
        )


def ready_shards(
    shards: Iterable[Shard], has_ended: Callable[[str], bool], parent_has_ended: Callable[[Shard, str], bool]
) -> Iterator[Shard]:
    """Yield the shards that may be read: they have not ended, and all their parents have (I2)."""
    for shard in shards:
        if not has_ended(shard.id) and all(parent_has_ended(shard, parent) for parent in shard.parents):
            yield shard


@dataclass
class Lineage:
    """The graph of the shards of one stream: which are listed, and which may be read now."""

    stream: StreamId
    # Shards of the newest complete listing, by id.
    listed: dict[str, Shard] = field(default_factory=dict)
    # Shards that somebody names and that are not listed: how many consecutive complete listings lacked them.
    absent: dict[str, int] = field(default_factory=dict)
    listings: int = 0
    _children: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def update(self, shards: Iterable[Shard], known: Iterable[str] = ()) -> None:
        """Apply one complete listing. ``known``: further shards whose absence matters."""
        self.listed = {shard.id: shard for shard in shards}
        self.listings += 1
        children: dict[str, list[str]] = {}
        for shard in self.listed.values():
            for parent in shard.parents:
                children.setdefault(parent, []).append(shard.id)
        self._children = {parent: tuple(sorted(found)) for parent, found in children.items()}
        missing = (children.keys() | set(known)) - self.listed.keys()
        self.absent = {shard: self.absent.get(shard, 0) + 1 for shard in missing}

    def is_gone(self, shard: str) -> bool:
        """Whether two consecutive complete listings lack ``shard``: a single one may be inconsistent."""
        return self.absent.get(shard, 0) >= 2

    def children(self, shard: str) -> tuple[str, ...]:
        return self._children.get(shard, ())

    def ready(
        self,
        checkpoints: Mapping[str, Checkpoint],
        planned: Collection[str],
        passed: Collection[str] = (),
    ) -> Iterator[Shard]:
        """Yield the shards that have not ended and whose parents all have (I2).

        ``planned``: the shards of the plan. ``passed``: those of them that ended before it, which no checkpoint may say
        yet.
        """

        def has_ended(shard: str) -> bool:
            checkpoint = checkpoints.get(shard)
            return shard in passed or (checkpoint is not None and checkpoint.state.ended)

        def parent_has_ended(shard: Shard, parent: str) -> bool:
            return parent in passed or self._has_ended(parent, shard.id, checkpoints, planned)

        return ready_shards(self.listed.values(), has_ended, parent_has_ended)

    def _has_ended(
        self, parent: str, child: str, checkpoints: Mapping[str, Checkpoint], planned: Collection[str]
    ) -> bool:
        checkpoint = checkpoints.get(parent)
        if checkpoint is not None:
            return checkpoint.state.ended
        # It can no longer be read. If that is a gap, the gap has to be recorded first.
        return self.is_gone(parent) and not self._was_missed(parent, child, checkpoints, planned)

    def _was_missed(
        self, parent: str, child: str, checkpoints: Mapping[str, Checkpoint], planned: Collection[str]
    ) -> bool:
        """Whether a parent that is gone and has no checkpoint had changes from after the plan.

        It did if it was listed then, or appeared and was trimmed while no relay ran. Otherwise it was trimmed before
        the plan, or was read and pruned, which happens long before a child that is being read ends.
        """
        checkpoint = checkpoints.get(child)
        if checkpoint is not None and checkpoint.state is not ShardState.PLANNED:
            return False
        return parent in planned or child not in planned

    def lost(
        self, checkpoints: Mapping[str, Checkpoint], planned: Collection[str], passed: Collection[str] = ()
    ) -> list[str]:
        """Return the shards that the source no longer has and that were not read to their end (I9)."""
        unfinished = {
            shard for shard, checkpoint in checkpoints.items() if not checkpoint.state.ended and self.is_gone(shard)
        }
        unseen = {
            parent
            for shard in self.listed.values()
            for parent in shard.parents
            if parent not in checkpoints
            and parent not in passed
            and self.is_gone(parent)
            and self._was_missed(parent, shard.id, checkpoints, planned)
        }
        return sorted(unfinished | unseen)

    def prunable(self, checkpoints: Mapping[str, Checkpoint], now: float) -> Iterator[str]:
        """Yield the ended shards to prune: ended long ago, no longer listed, and each child has its own record."""
        for shard, checkpoint in checkpoints.items():
            if (
                checkpoint.state.ended
                and self.is_gone(shard)
                and now - checkpoint.updated_at >= PRUNE_AFTER
                # A child that was not read yet needs the records of its parents, or they would count as lost.
                and all(
                    child in checkpoints and checkpoints[child].state is not ShardState.PLANNED
                    for child in (*checkpoint.children, *self.children(shard))
                )
            ):
                yield shard

    def floor(self, shard: Shard, checkpoints: Mapping[str, Checkpoint], lowest: int = 0) -> int:
        """Return the earliest timestamp for tokens of ``shard``, in seconds: the last one of it and its ancestors.

        A shard without changes inherits from its parents. ``lowest``: the floor of the stream.
        """
        own = checkpoints.get(shard.id)
        if own is not None and own.token is not None:
            return own.token.timestamp
        floor, seen, waiting = lowest, set[str](), list(shard.parents)
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            checkpoint = checkpoints.get(name)
            if checkpoint is not None and checkpoint.token is not None:
                floor = max(floor, checkpoint.token.timestamp)
            elif checkpoint is not None:
                waiting.extend(checkpoint.parents)
        return floor
