"""The checkpoints of the open shards of a scripted source, beside which a test writes what is committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relay.records import CommittedRecords, CommittedStream, Lineage, Plan, StreamId
from relay.snapshots.lifecycle import Snapshots
from relay.stream.new_tables import NewTables
from relay.stream.shard_checkpoints import ShardCheckpoints
from tests.scripted_source import CLAIMS, ScriptedSource


def latest_of(
    stream: StreamId,
    plan: Plan | None,
    clock: Callable[[], float],
    *,
    has_journals: bool = True,
    snapshots: Snapshots | None = None,
) -> tuple[ShardCheckpoints, CommittedStream]:
    """Return those of ``stream``, whose ``plan`` is committed, and what is committed of it."""
    source: Any = ScriptedSource(stream.source)
    source.clock, source.has_journals = clock, has_journals
    view = CommittedRecords()
    committed = view.of(stream)
    committed.plan = plan
    new_tables = NewTables(source, committed, CLAIMS)
    return ShardCheckpoints(source, Lineage(committed), new_tables, snapshots), committed
