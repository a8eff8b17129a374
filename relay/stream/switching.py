"""Which of its streams a source reads: the one to begin with, and then each one that replaces the one before it."""

import logging
import math
from functools import partial

from relay.errors import StreamGone, Unavailable, fault_of
from relay.process.slow_call import SlowCall
from relay.records import CommittedStream, StreamId
from relay.snapshots.lifecycle import Snapshots
from relay.source import Source
from relay.stream.discovery import JournaledShards, ListedShards
from relay.stream.planning import Planning

log = logging.getLogger(__name__)

_RETRY_AFTER = 5.0


class Switching:
    """Used by the worker's thread. While it connects, nothing else must be asked of the source.

    A method that returns a stream has connected the source to it: it is read from here on. ``committed``, of each
    method: what is, of the one that was read until now.
    """

    def __init__(self, source: Source, planning: Planning) -> None:
        self.clock = source.clock
        self._source = source
        self._planning = planning
        # The stream before this one, once it was read to its end.
        self._drained: StreamId | None = None
        # Under way: the connection to another stream.
        self._connecting: SlowCall[StreamId] | None = None
        # When that was first tried.
        self._connecting_since: float | None = None
        self._retry_at = 0.0

    def choose(self, committed: CommittedStream) -> StreamId | None:
        """Begin with the stream that was being read when the relay stopped, or else the one in which ``start`` is.

        Newer ones follow. Waits for the source: call it before this worker joins the group. Raises ``Unavailable``.
        """
        if committed.plan is not None:
            return None
        before = self._planning.before(committed.stream)
        label = before.stream.label if before is not None else self._source.first()
        if label == committed.stream.label:
            return None
        log.info("source %s: reading its previous stream %s to the end first", self._source.name, label)
        return self._source.connect(label)

    def chosen_elsewhere(self, committed: CommittedStream) -> StreamId | None:
        """Return the stream to read that another worker has chosen meanwhile."""
        before = self._planning.before(committed.stream)
        if committed.plan is not None or before is None or before.stream == self._drained or self.is_waiting:
            return None
        return before.stream

    def join_planned(self, committed: CommittedStream) -> StreamId | None:
        """Connect to a stream that another worker has chosen meanwhile."""
        if self._connecting is not None:
            return self._connected()
        if (chosen := self.chosen_elsewhere(committed)) is not None:
            self._planning.drop()
            self._connect(chosen.label)
        return None

    def advance(
        self, committed: CommittedStream, discovery: ListedShards | JournaledShards, snapshots: Snapshots | None
    ) -> StreamId | None:
        """Connect to the stream that has replaced this one, if this one is drained."""
        if self._connecting is not None:
            return self._connected()
        if discovery.successor is None or committed.plan is None:
            self._connecting_since = None  # the stream that could not be connected to is gone
        # The request of a snapshot that is due says which gaps the successor's snapshot has to repair.
        elif not self.is_waiting and _is_drained(committed, discovery) and (snapshots is None or not snapshots.is_due):
            self._drained = committed.stream
            log.info("source %s: stream %s is drained", self._source.name, committed.stream.label)
            self._connect(discovery.successor)
        return None

    def _connect(self, label: str) -> None:
        if self._connecting_since is None:
            self._connecting_since = self.clock()
        self._connecting = SlowCall(f"connect-{self._source.name}", partial(self._source.connect, label))

    def _connected(self) -> StreamId | None:
        """Return the stream that the source is connected to by now."""
        if self._connecting is None or not self._connecting.done():
            return None
        connecting, self._connecting = self._connecting, None
        try:
            with fault_of(self._source.name):
                following = connecting.result()
        except Unavailable as error:
            self.retry_later(error)
            return None
        log.info("source %s: switching to stream %s", self._source.name, following.label)
        self._connecting_since = None
        self._retry_at = 0.0
        return following

    @property
    def is_connecting(self) -> bool:
        """Whether the source is being connected to another stream, or is connected and has not switched yet."""
        return self._connecting is not None

    @property
    def is_connected(self) -> bool:
        """Whether it is connected to that stream by now, or that has failed."""
        return self._connecting is not None and self._connecting.done()

    @property
    def held_up_since(self) -> float | None:
        """Since when this worker plans the source, or connects it to another stream, or None if it does neither."""
        return self._planning.wanted_at if self._connecting_since is None else self._connecting_since

    @property
    def is_waiting(self) -> bool:
        """Whether a call failed a moment ago and is not due again yet."""
        return self.clock() < self._retry_at

    def retry_later(self, error: Unavailable) -> None:
        """Note that the new stream cannot be read yet; the other sources continue."""
        if isinstance(error, StreamGone):
            self._drained = None  # I10: go back to the stream before it, which another one may follow by now
        log.warning(
            "source %s: its new stream cannot be read yet; retrying in %d s: %s", self._source.name, _RETRY_AFTER, error
        )
        self._retry_at = self.clock() + _RETRY_AFTER


def _is_drained(committed: CommittedStream, discovery: ListedShards | JournaledShards) -> bool:
    if discovery.is_listing:
        return False
    lineage, checkpoints = discovery.lineage, committed.checkpoints
    ends = [
        checkpoint.updated_at if checkpoint is not None and checkpoint.state.ended else math.inf
        for checkpoint in map(checkpoints.get, {*lineage.listed, *checkpoints})
    ]
    # Two listings, both begun after the last end: a single one may lack a child.
    return lineage.listings >= 2 and discovery.listed_before >= max(ends, default=0.0)  # I1
