"""Which of the requests for snapshots of one source is served next, and when the snapshot that runs is stopped."""

from __future__ import annotations

import logging
from collections.abc import Set

from relay.records import CommittedRecords, SnapshotControl, SnapshotRequest
from relay.snapshots.control import fulfilled_by, is_running, is_stopped, repaired_by, requested
from relay.snapshots.requests import requests_of
from relay.source import Source

log = logging.getLogger(__name__)


class RequestedSnapshots:
    """Used by the worker's thread. ``control``, of each method: the control record of the newest snapshot."""

    def __init__(self, source: Source, view: CommittedRecords) -> None:
        self._source = source
        self._view = view
        # Requests of tables that the source does not have: each is warned of once.
        self._unknown: set[str] = set()

    def __repr__(self) -> str:
        return f"<RequestedSnapshots[{self._source.name}: {len(self._requests())} requests]>"

    def is_stopped(self, control: SnapshotControl | None) -> bool:
        """Whether a person has stopped the snapshot that runs."""
        return is_stopped(control, self._requests())

    def fulfilled(self, control: SnapshotControl | None) -> list[bytes]:
        """Return the keys of the requests whose snapshot has finished."""
        done = set() if is_running(control) else fulfilled_by(control)
        return [request.key for request in self._requests() if request.id in done]

    def waiting(self, control: SnapshotControl | None) -> list[SnapshotRequest]:
        """Return the requests that wait for a snapshot, the oldest first."""
        requests, mine = self._requests(), fulfilled_by(control)
        waiting = [each for each in requests if each.id not in mine and not each.stopped and self._is_known(each)]
        if is_stopped(control, requests):
            # After any other one, copies would wait for the end of the one that is stopped (I7).
            return [each for each in waiting if not each.tables]
        return waiting

    def next(self, control: SnapshotControl | None) -> SnapshotRequest | None:
        """Return the request whose snapshot begins now, None if none does."""
        waiting = self.waiting(control)
        if not waiting or (is_running(control) and not self.is_stopped(control)) or self.fulfilled(control):
            return None
        return waiting[0]

    def begin(
        self, control: SnapshotControl | None, request: SnapshotRequest, gaps: Set[str], last: int, now: float
    ) -> SnapshotControl:
        """Return the control record of the snapshot of ``request``.

        ``gaps``: all known ones. ``last``: seconds, the newest timestamp that may have been published.
        """
        ids = [each.id for each in self._requests() if self._fulfils(request, each)]
        after = last if gaps - repaired_by(control) else 0
        log.info("source %s: a snapshot of %s was requested", self._source.name, request.subject)
        return requested(control, request.tables, ids, gaps, after, now)

    def _fulfils(self, request: SnapshotRequest, other: SnapshotRequest) -> bool:
        """Whether the snapshot of ``request``, which has yet to begin, is one that ``other`` asks for."""
        if not request.tables:
            return self._is_known(other)
        return bool(other.tables) and set(other.tables) <= set(request.tables) and not other.stopped

    def _requests(self) -> list[SnapshotRequest]:
        return requests_of(self._view, self._source.name)

    def _is_known(self, request: SnapshotRequest) -> bool:
        """Whether the source has the tables of ``request``, as far as this worker knows."""
        unknown = set(request.tables) - {table.table for table in self._source.tables()}
        if unknown and request.id not in self._unknown:
            self._unknown.add(request.id)
            log.warning(
                "source %s: the requested snapshot %s waits, because this worker does not read table %s: restart the "
                "relay with a config that has it, or withdraw the request with `relay snapshot CONFIG %s --stop`",
                self._source.name,
                request.id,
                ", ".join(sorted(unknown)),
                self._source.name,
            )
        return not unknown
