"""The snapshot that begins again after a reset of its stream."""

from __future__ import annotations

from collections.abc import Iterable

from relay.records import CommittedStream, Gap, SnapshotControl, SnapshotRequest
from relay.snapshots.control import again_of, fulfilled_by, is_running, planned, repaired_by
from relay.stream import gap_decisions


def restarted(
    committed: CommittedStream, requests: Iterable[SnapshotRequest], reset: Gap, after: int
) -> SnapshotControl | None:
    """Return the control record that begins the unfinished snapshot of a stream again, after a reset.

    Copies wait for the end of a snapshot that has begun (I7), even of a table that will be read again, and only one
    that begins after a gap repairs it. None if nothing has to begin again: the only unfinished one has a request that
    begins another, and no person decided on one. ``requests``: all that wait. ``after``: seconds, the last
    timestamp published.
    """
    control = committed.control
    known = repaired_by(control)
    decided = gap_decisions.to_repair(committed) - known
    requested = fulfilled_by(control) & {request.id for request in requests}
    if not decided and not again_of(control) and (not is_running(control) or requested):
        return None
    return planned(control, {*known, *decided, reset.id}, after, reset.found_at)
