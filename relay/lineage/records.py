"""The life of a shard, and the records about it in ``<name>.checkpoints``: plans, checkpoints and gaps.

The JSON written here is the format of the checkpoints topic. Change it only together with
``schemas/golden/checkpoints.json``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
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


def position_text(position: Position | Start) -> str:
    """Return a position or a start for people to read; empty for one that says nothing."""
    if "gtid" in position:
        # A transaction in progress follows the executed GTID set.
        rows = f" and {position['rows_done']} rows of {position['transaction']}" if position.get("rows_done") else ""
        return f"{position['gtid']}{rows}"
    if "stream" in position:
        return f"stream {position['stream']}"
    return str(position.get("sequence") or position.get("since") or position.get("type") or "")


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

    ``start``: where it begins, if its lineage says that and not the plan. ``closed``: nothing is added to it any more,
    because it has an end or children.
    """

    id: str
    parents: tuple[str, ...] = ()
    start: Start | None = None
    closed: bool = False

    @property
    def name(self) -> str:
        """The name that the source uses: resharding may give a later shard the name of an earlier one."""
        return self.id.partition(INCARNATION)[0]


@dataclass(frozen=True, slots=True)
class ReshardJournal:
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
    ``journal``: the reshard that ended the shard (``relay.stream.journals``). ``reached``: see ``Page``.
    ``gap``: the id of its last gap. ``updated_at``: seconds since the epoch. ``emptied``: when tables were last emptied
    or renamed, in seconds, for snapshots that run meanwhile (``relay.snapshots.emptied_tables``). ``unplanned``: by
    table that has published changes and that the plan lacks, its key columns and how many choose the partition, as
    ``key`` and ``hashed``: whoever owns the plan adds it.
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
    emptied: Mapping[str, float] = field(default_factory=dict)
    unplanned: Mapping[str, Any] = field(default_factory=dict)

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
                **({"emptied": self.emptied} if self.emptied else {}),
                **({"unplanned": self.unplanned} if self.unplanned else {}),
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
            progress=raw["progress"],
            journal=raw.get("journal"),
            reached=raw.get("reached"),
            emptied=raw.get("emptied", {}),
            unplanned=raw.get("unplanned", {}),
        )


def has_ended(checkpoints: Mapping[str, Checkpoint], shard: str) -> bool:
    """Whether ``shard`` is finished or gone according to ``checkpoints``."""
    checkpoint = checkpoints.get(shard)
    return checkpoint is not None and checkpoint.state.ended


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

    def __str__(self) -> str:
        place = f"stream {self.label}" if self.shard is None else f"shard {self.shard} of stream {self.label}"
        return f"{self.reason}, {place}, after {position_text(self.begin or {}) or 'its start'}"

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
