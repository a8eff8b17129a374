"""Which of its streams a source reads: the first one, and then each one that replaces it."""

import logging
import math

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
    """Switches a source between its streams. While it connects, the source must not be called.

    A method that returns a stream has connected the source to it. ``committed``: the records of the one before.
    """

    def __init__(self, source: Source, planning: Planning) -> None:
        self.clock = source.clock
        self._source = source
        self._planning = planning
        self._drained: StreamId | None = None  # the previous stream, once it was read to its end
        self._connecting: SlowCall[StreamId] | None = None  # under way: the connection to another stream
        # When that was first tried.
        self._connecting_since: float | None = None
        self._retry_at = 0.0
        self.unchosen: Unavailable | None = None  # why the first stream could not be chosen yet

    def choose(self, committed: CommittedStream) -> StreamId | None:
        """Choose the stream read last or with ``start``, before joining the group. Raises ``Unavailable``."""
        if committed.plan is not None:
            return None
        before = self._planning.before(committed.stream)
        label = before.stream.label if before is not None else self._source.first()
        if label == committed.stream.label:
            return None
        log.info("source %s: reading its previous stream %s to the end first", self._source.name, label)
        return self._source.connect(label)

    def chosen_elsewhere(self, committed: CommittedStream) -> StreamId | None:
        """Return the stream that another worker has chosen in the meantime."""
        before = self._planning.before(committed.stream)
        if committed.plan is not None or before is None or before.stream == self._drained or self.is_waiting:
            return None
        return before.stream

    def join_planned(self, committed: CommittedStream) -> StreamId | None:
        """Connect to a stream that another worker has chosen, or that could not be chosen at the start."""
        if self._connecting is not None:
            return self._connected()
        if (chosen := self.chosen_elsewhere(committed)) is not None:
            self._planning.drop()
            self._connect(chosen.label)
        elif self.unchosen is not None and committed.plan is None and not self.is_waiting:
            self._connect(None)
        return None

    def advance(
        self, committed: CommittedStream, discovery: ListedShards | JournaledShards, snapshots: Snapshots | None
    ) -> StreamId | None:
        """Connect to the stream that has replaced this one, if this one is drained."""
        if self._connecting is not None:
            return self._connected()
        if discovery.successor is None or committed.plan is None:
            self._connecting_since = None  # the stream that could not be connected to is gone
        # The request for a due snapshot says which gaps the successor's snapshot has to repair.
        elif not self.is_waiting and _is_drained(committed, discovery) and (snapshots is None or not snapshots.is_due):
            self._drained = committed.stream
            log.info("source %s: stream %s is drained", self._source.name, committed.stream.label)
            self._connect(discovery.successor)
        return None

    def _connect(self, label: str | None) -> None:
        """Connect to the stream ``label``. None: the stream that contains ``start``."""
        if self._connecting_since is None:
            self._connecting_since = self.clock()

        def connect() -> StreamId:
            return self._source.connect(self._source.first() if label is None else label)

        self._connecting = SlowCall(f"connect-{self._source.name}", connect)

    def _connected(self) -> StreamId | None:
        """Return the stream that the source is now connected to."""
        if self._connecting is None or not self._connecting.done():
            return None
        connecting, self._connecting = self._connecting, None
        try:
            with fault_of(self._source.name):
                following = connecting.result()
        except Unavailable as error:
            self.retry_later(error)
            if self.unchosen is not None:
                self.unchosen = error
            return None
        said = "source %s: switching to stream %s"
        log.info(said, self._source.name, following.label, extra={"event": "new stream"})
        self._connecting_since = None
        self._retry_at = 0.0
        self.unchosen = None
        return following

    @property
    def is_connecting(self) -> bool:
        """Whether the source is being connected to another stream, or is connected but has not switched yet."""
        return self._connecting is not None

    @property
    def is_connected(self) -> bool:
        """Whether it is now connected to that stream, or that has failed."""
        return self._connecting is not None and self._connecting.done()

    @property
    def held_up_since(self) -> float | None:
        """Since when this worker has been planning the source or connecting it to another stream, or None."""
        return self._planning.wanted_at if self._connecting_since is None else self._connecting_since

    @property
    def is_waiting(self) -> bool:
        """Whether a call failed a moment ago and is not due again yet."""
        return self.clock() < self._retry_at

    def retry_later(self, error: Unavailable) -> None:
        """Note that the new stream cannot be read yet; the other sources go on."""
        if isinstance(error, StreamGone):
            self._drained = None  # I10: go back to the previous stream, which by now another stream may follow
        said = "source %s: its new stream cannot be read yet; retrying in %d s: %s"
        log.warning(said, self._source.name, _RETRY_AFTER, error)
        self._retry_at = self.clock() + _RETRY_AFTER


def _is_drained(committed: CommittedStream, discovery: ListedShards | JournaledShards) -> bool:
    if discovery.is_listing:
        return False
    lineage, checkpoints = discovery.lineage, committed.checkpoints
    ends = [
        checkpoint.updated_at if checkpoint is not None and checkpoint.state.ended else math.inf
        for checkpoint in map(checkpoints.get, {*lineage.listed, *checkpoints})
    ]
    # Two listings that both began after the last end: a single one may lack a child.
    return lineage.listings >= 2 and discovery.listed_before >= max(ends, default=0.0)  # I1
