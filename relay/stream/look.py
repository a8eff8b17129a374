"""When a source is looked at: as soon as something may have changed, and from time to time for what the clock decides.

The main loop looks a hundred times a second, and may have hundreds of sources.
"""

import random
from collections.abc import Callable

from relay.records import CommittedRecords

_EVERY, _EVERY_IDLE = 1.0, 5.0  # seconds


class Look:
    """Used by the worker's thread. ``clock``: seconds that never go back.

    ``ask_at``: when to ask `begin` again, by the clock. It costs a few microseconds, and there may be hundreds of
    sources without anything new.
    """

    def __init__(self, source: str, view: CommittedRecords, *, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.ask_at = 0.0
        self._source = source
        self._view = view
        # The versions when the look under way and the last complete one began.
        self._begun_at = self._ended_at = -1
        self._due = 0.0

    def soon(self) -> None:
        self._due = self.ask_at = 0.0

    def ask_soon(self) -> None:
        """Something may have changed."""
        self.ask_at = 0.0

    def begin(self, *, has_answers: bool) -> bool:
        """Whether a look is due. Cheap. `end` notes that it was complete: one that an error ends is repeated.

        ``has_answers``: whether a call of the source has ended, or is due.
        """
        version = self._view.versions[self._source]
        if version == self._ended_at and self.clock() < self._due and not has_answers:
            return False
        self._begun_at = version
        return True

    def end(self, *, next_answer: float) -> None:
        """``next_answer``: the earliest time when what a look decides may change by itself."""
        self._ended_at = self._begun_at
        now = self.clock()
        # At different times for each source: what is due by the clock may take long for hundreds of them.
        self._due = now + random.uniform(0.5, 1.0) * (_EVERY if next_answer <= now else _EVERY_IDLE)
        self.ask_at = 0.0 if self._view.versions[self._source] != self._ended_at else min(self._due, next_answer)
