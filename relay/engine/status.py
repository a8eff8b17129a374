"""Takes a snapshot of a worker's status for observers, by reference: checkpoints, plans and shards are immutable."""

import math
import time
from collections.abc import Iterable, Mapping, Set

from relay.engine.same_sources import SameSources
from relay.kafka.assignment import Assignment
from relay.observe.status import LatestListing, Poll, SourceView, WorkerStatus
from relay.reading.reader_pool import OpenShard
from relay.reading.set_aside import Refusal
from relay.snapshots.control import repaired_by
from relay.stream.gap_decisions import all_pending_gaps
from relay.stream.source_state import SourceState


def take(
    group: Assignment,
    sources: Iterable[SourceState],
    same_sources: SameSources,
    absent: Iterable[Refusal] = (),
    read_delay: float = 0.0,
    topics: Mapping[tuple[str, str], str] | None = None,
    debezium: Set[str] = frozenset(),
) -> WorkerStatus:
    """Return the status. ``absent``: sources that are not read. ``debezium``: those that never have snapshots."""
    return WorkerStatus(
        group.group,
        group.joined,
        frozenset(group.owned),
        frozenset(group.gained),
        tuple(
            SourceView(
                stream=source.stream,
                plan=source.plan,
                checkpoints=dict(source.committed.checkpoints),
                listing=LatestListing(
                    dict(source.lineage.listed),
                    _here(source, source.discovery.listed_at) or 0.0,
                    _here(source, source.discovery.wanted_at) or 0.0,
                    source.discovery.took,
                ),
                low_watermark=source.low_watermark(),
                open=polls(source.shards.open),
                segments=polls(source.snapshots.open) if source.snapshots is not None else {},
                rows=source.snapshots.progress() if source.snapshots is not None else None,
                held_up_since=_here(source, source.switching.held_up_since),
                pending_gaps=tuple(
                    pending.gap.published()
                    for pending in all_pending_gaps(group.view, source.stream.source)
                    if pending.decision is None
                ),
                set_aside=tuple(
                    (each.name, each.since, str(each.error)) for each in source.set_aside.refusals.values()
                ),
                has_snapshots=source.snapshots is not None and source.source.name not in debezium,
                repaired=frozenset(repaired_by(source.committed.control)),
                left_out=source.source.left_out,
                altered=tuple(group.view.altered_tables(source.stream.source)),
            )
            for source in sources
        ),
        group.barrier_timeout,
        read_delay,
        group.view.topic,
        group.view.freshness.read_at,
        same_sources.differences,
        tuple((each.name or "", each.since, _why(each)) for each in absent),
        topics or {},
    )


def _why(absent: Refusal) -> str:
    return f"{absent.error}{'; after a repair, send SIGHUP or restart' if absent.again_at == math.inf else ''}"


def _here(source: SourceState, seconds: float | None) -> float | None:
    """Convert a time by the source's clock to this machine's clock, by which ages are shown. None stays None."""
    return seconds + time.time() - source.source.clock() if seconds else None


def polls(shards: Mapping[str, OpenShard]) -> dict[str, Poll]:
    return {
        name: Poll(each.polled, each.failures, each.error, each.wait, each.read_at if each.running else None)
        for name, each in shards.items()
    }
