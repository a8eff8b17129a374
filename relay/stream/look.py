"""When a source is looked at: as soon as something may have changed, and from time to time for what the clock decides.

The main loop looks a hundred times a second, and may have hundreds of sources.
"""

from __future__ import annotations

import random
from collections.abc import Callable

_EVERY, _EVERY_IDLE = 1.0, 5.0  # seconds


class Look:
    """Used by the worker's thread. ``version``: of everything committed that concerns the source.

    ``has_answers``: whether a call of the source has ended, or is due. ``next_answer``: the earliest time at which
    that, or anything else that a look decides, may change by itself. ``clock``: seconds that never go back.

    ``ask_at``: when to ask `begin` again, by the clock. It costs a few microseconds, and there may be hundreds of
    sources of which nothing is new.
    """

    def __init__(
        self,
        version: Callable[[], int],
        has_answers: Callable[[], bool],
        next_answer: Callable[[], float],
        *,
        clock: Callable[[], float],
    ) -> None:
        self.clock = clock
        self.ask_at = 0.0
        self._version = version
        self._has_answers = has_answers
        self._next_answer = next_answer
        # The versions when the look under way and the last complete one began.
        self._begun_at = self._ended_at = -1
        self._due = 0.0

    def soon(self) -> None:
        """The next look is due at once."""
        self._due = self.ask_at = 0.0

    def ask_soon(self) -> None:
        """Something may have changed."""
        self.ask_at = 0.0

    def begin(self) -> bool:
        """Whether a look is due. Cheap. `end` notes that it was complete: one that an error ends is repeated."""
        version = self._version()
        if version == self._ended_at and self.clock() < self._due and not self._has_answers():
            return False
        self._begun_at = version
        return True

    def end(self) -> None:
        self._ended_at = self._begun_at
        now, answer = self.clock(), self._next_answer()
        # At different times for each source: what is due by the clock may take long for hundreds of them.
        self._due = now + random.uniform(0.5, 1.0) * (_EVERY if answer <= now else _EVERY_IDLE)
        self.ask_at = 0.0 if self._version() != self._ended_at else min(self._due, answer)
