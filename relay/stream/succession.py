"""Which of its streams a source reads: the one to begin with, and then each that replaces the one before it."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import partial
from typing import Protocol

from relay.errors import StreamGone, Unavailable
from relay.process.slow_call import SlowCall
from relay.records import Lineage, Plan, ShardCheckpoint, StreamId
from relay.snapshots.lifecycle import Snapshots
from relay.source import Source
from relay.stream.discovery import JournaledShards, ListedShards
from relay.stream.planning import Planning

log = logging.getLogger(__name__)

_RETRY_AFTER = 5.0


class SucceededStream(Protocol):
    """What the succession needs to know about the stream that is being read: a ``SourceState``."""

    source: Source
    stream: StreamId
    planning: Planning
    lineage: Lineage
    discovery: ListedShards | JournaledShards
    snapshots: Snapshots | None

    @property
    def plan(self) -> Plan | None: ...
    @property
    def checkpoints(self) -> Mapping[str, ShardCheckpoint]: ...

    def switch_to(self, stream: StreamId) -> None:
        """Read ``stream``, which the source is connected to, from here on."""


class Succession:
    """Used by the worker's thread. While it connects, nothing else must be asked of the source.

    ``current``: always shows the stream that is being read.
    """

    def __init__(self, current: SucceededStream) -> None:
        self.clock = current.source.clock
        self._current = current
        # The stream before this one, once it was read to its end.
        self._drained: StreamId | None = None
        # Under way: the connection to another stream.
        self._connecting: SlowCall[StreamId] | None = None
        # When that was first tried.
        self._connecting_since: float | None = None
        self._retry_at = 0.0

    def choose(self) -> None:
        """Begin with the stream that was being read when the relay stopped, or else the one in which ``start`` is.

        Newer ones follow. Waits for the source: call it before this worker joins the group. Raises ``Unavailable``.
        """
        current = self._current
        if current.plan is not None:
            return
        before = current.planning.before(current.stream)
        label = before.label if before is not None else current.source.first()
        if label != current.stream.label:
            log.info("source %s: reading its previous stream %s to the end first", current.source.name, label)
            current.switch_to(current.source.connect(label))

    def join_planned(self) -> bool:
        """Switch to a stream that another worker has chosen meanwhile. Return whether it does."""
        if self._connecting is not None:
            return not self._connecting.done or self._switch()
        planning = self._current.planning
        before = planning.before(self._current.stream)
        if self._current.plan is not None or before is None or before == self._drained or self.is_waiting:
            return False
        if planning.is_making and not planning.is_made:
            return True  # the source is still being asked
        planning.drop()
        self._connect(before.label)
        return True

    def advance(self) -> bool:
        """Switch to the stream that has replaced this one, if this one is drained. Return whether it does."""
        if self._connecting is not None:
            return not self._connecting.done or self._switch()
        current, following = self._current, self._current.discovery.successor
        if following is None or current.plan is None:
            self._connecting_since = None  # the stream that could not be connected to is gone
            return False
        if self.is_waiting or not self._is_drained():
            return False
        self._drained = current.stream
        log.info("source %s: stream %s is drained", current.source.name, current.stream.label)
        self._connect(following)
        return True

    def _is_drained(self) -> bool:
        current = self._current
        if current.discovery.is_listing:
            return False
        ends = [
            checkpoint.updated_at if checkpoint is not None and checkpoint.state.ended else math.inf
            for checkpoint in map(current.checkpoints.get, {*current.lineage.listed, *current.checkpoints})
        ]
        # Two listings, both begun after the last end: a single one may lack a child.
        if current.lineage.listings < 2 or current.discovery.listed_before < max(ends, default=0.0):  # I1
            return False
        # The request of a snapshot that is due says which gaps that of the successor has to repair.
        return current.snapshots is None or not current.snapshots.is_due

    def _connect(self, label: str) -> None:
        if self._connecting_since is None:
            self._connecting_since = self.clock()
        source = self._current.source
        self._connecting = SlowCall(f"connect-{source.name}", partial(source.connect, label))

    def _switch(self) -> bool:
        """Switch to the stream that the source is connected to by now. Return whether it has switched."""
        assert self._connecting is not None
        connecting, self._connecting = self._connecting, None
        try:
            following = connecting.result()
        except Unavailable as error:
            self.retry_later(error)
            return False
        current = self._current
        log.info(
            "source %s: switching from stream %s to %s", current.source.name, current.stream.label, following.label
        )
        current.switch_to(following)
        self._connecting_since = None
        self._retry_at = 0.0
        return True

    @property
    def is_connecting(self) -> bool:
        """Whether the source is being connected to another stream, or is connected and has not switched yet."""
        return self._connecting is not None

    @property
    def is_connected(self) -> bool:
        """Whether it is connected to that stream by now, or that has failed."""
        return self._connecting is not None and self._connecting.done

    @property
    def held_up_since(self) -> float | None:
        """Since when this worker plans the source, or connects it to another stream; None if it does neither."""
        return self._current.planning.wanted_at if self._connecting_since is None else self._connecting_since

    @property
    def is_waiting(self) -> bool:
        """Whether a call failed a moment ago and is not due again yet."""
        return self.clock() < self._retry_at

    def retry_later(self, error: Unavailable) -> None:
        """Note that the new stream cannot be read yet; the other sources continue."""
        if isinstance(error, StreamGone):
            self._drained = None  # I10: go back to the stream before it, which another one may follow by now
        log.warning(
            "source %s: its new stream cannot be read yet; retrying in %d s: %s",
            self._current.source.name,
            _RETRY_AFTER,
            error,
        )
        self._retry_at = self.clock() + _RETRY_AFTER
