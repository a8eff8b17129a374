"""Decides when to look at one of hundreds of sources: as soon as something may have changed, and now and then."""

import random
from collections.abc import Callable

from relay.records import CommittedRecords

_EVERY, _EVERY_IDLE = 1.0, 5.0  # seconds


class Look:
    """When to look at one source. ``ask_at``: the clock's time to ask `begin` again, which takes microseconds."""

    def __init__(self, source: str, view: CommittedRecords, *, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.ask_at = 0.0
        self._source = source
        self._view = view
        # The versions when the present look and the last complete one began.
        self._begun_at = self._ended_at = -1
        self._due = 0.0

    def soon(self) -> None:
        self._due = self.ask_at = 0.0

    def ask_soon(self) -> None:
        """Note that something may have changed."""
        self.ask_at = 0.0

    def begin(self, *, has_answers: bool) -> bool:
        """Whether a look is due, until `end` marks it as complete. ``has_answers``: a call has ended, or is due."""
        version = self._view.versions[self._source]
        if version == self._ended_at and self.clock() < self._due and not has_answers:
            return False
        self._begun_at = version
        return True

    def end(self, *, next_answer: float) -> None:
        """Mark the look as complete. ``next_answer``: the earliest time at which time alone may change its result."""
        self._ended_at = self._begun_at
        now = self.clock()
        # At different times for each source, because looks at hundreds of sources may take long.
        self._due = now + random.uniform(0.5, 1.0) * (_EVERY if next_answer <= now else _EVERY_IDLE)
        self.ask_at = 0.0 if self._view.versions[self._source] != self._ended_at else min(self._due, next_answer)
