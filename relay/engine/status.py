"""Takes a worker's status for whoever observes it.

Taking it copies references only, since checkpoints, plans and shards are never changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from relay.engine.reader_pool import OpenShard
from relay.engine.source_state import SourceState
from relay.kafka.assignment import Assignment
from relay.observe.status import Poll, SourceView, WorkerStatus


def take(
    group: Assignment,
    sources: Iterable[SourceState],
    fencing_since: float | None = None,
    unconfirmed_since: float | None = None,
) -> WorkerStatus:
    """For the worker's thread."""
    return WorkerStatus(
        group.group,
        group.joined,
        frozenset(group.owned),
        frozenset(group.gained),
        tuple(
            SourceView(
                stream=source.stream,
                plan=source.plan,
                checkpoints=dict(source.checkpoints),
                listed=dict(source.lineage.listed),
                listed_at=source.listings.listed_at,
                wanted_at=source.listings.wanted_at,
                resume_timestamp=source.resume_timestamp(),
                low_watermark=source.low_watermark(),
                open=_polls(source.open),
                segments=_polls(source.snapshots.open),
                snapshots=source.snapshots.stream,
                rows=source.snapshots.progress(),
            )
            for source in sources
        ),
        group.barrier_timeout,
        fencing_since,
        unconfirmed_since,
    )


def _polls(readings: Mapping[str, OpenShard]) -> dict[str, Poll]:
    return {name: Poll(each.polled, each.failures, each.error) for name, each in readings.items()}
