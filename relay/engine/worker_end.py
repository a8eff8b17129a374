"""When a worker ends by itself: all is caught up, nothing is left that it can read, or a source is back (I12)."""

import math
import os
import time
from collections.abc import Mapping

from relay.engine.connected_sources import ConnectedSources
from relay.engine.publishing import Publishing
from relay.errors import RelayError
from relay.kafka.assignment import Assignment
from relay.process.supervisor import WORKER_NUMBER
from relay.stream.source_state import SourceState

_ASK_DONE_SHARE = 20
"""Finding out whether all is caught up may take one part in this many of the time between two questions."""


class WorkerEnd:
    """Used by the worker's thread. ``connections``: None if nothing but ``sources`` is to be relayed."""

    def __init__(
        self,
        sources: Mapping[str, SourceState],
        group: Assignment,
        publishing: Publishing,
        connections: ConnectedSources | None,
        *,
        until_caught_up: bool,
    ) -> None:
        # Whether all is caught up, and whether another source can be read.
        self.is_done = self.is_back = False
        self._sources = sources
        self._group = group
        self._publishing = publishing
        self._connections = connections
        self._ask_at = 0.0 if until_caught_up else math.inf

    def ask(self, *, has_pages: bool) -> None:
        """Find that out. ``has_pages``: some that were read are to be published. Raises why nothing is left to do."""
        self.is_back = self._connections is not None and self._connections.is_one_back()
        if all(source.refusal is not None for source in self._sources.values()):
            self._publishing.commit()
            raise next(source.refusal.error for source in self._sources.values() if source.refusal is not None)
        if (now := time.monotonic()) >= self._ask_at:
            self.is_done = self._is_everything_read(has_pages=has_pages)
            self._ask_at = now + _ASK_DONE_SHARE * (time.monotonic() - now)

    def _is_everything_read(self, *, has_pages: bool) -> bool:
        """Whether all is caught up. Raises what is set aside once nothing else is left."""
        refusals = [each for source in self._sources.values() for each in source.set_aside.refusals.values()]
        if self._connections is not None:
            if self._connections.is_connecting:
                return False
            refusals += self._connections.refusals.values()
        is_caught_up = all(source.is_caught_up() for source in self._sources.values())
        if is_caught_up and not refusals:
            return True
        if has_pages or not (refusals and (is_caught_up or self._is_stuck())):
            return False
        self._publishing.commit()
        error = min(refusals, key=lambda each: each.since).error
        # A supervisor starts a worker again that lacks something, but lets others finish after this.
        raise RelayError(str(error)) if WORKER_NUMBER in os.environ else error

    def _is_stuck(self) -> bool:
        """Whether nothing is left that this worker can read."""
        group = self._group
        return group.joined and not group.gained and all(each.is_stuck(group.owned) for each in self._sources.values())
