"""When a source is looked at: as soon as something may have changed, and from time to time for what the clock decides.

The main loop looks a hundred times a second, and may have hundreds of sources.
"""

from __future__ import annotations

import random
from collections.abc import Callable

_EVERY = 1.0  # seconds


class Look:
    """Used by the worker's thread. ``version``: of everything committed that concerns the source.

    ``has_answers``: whether a call of the source has ended, or is due. ``clock``: seconds that never go back.
    """

    def __init__(
        self, version: Callable[[], int], has_answers: Callable[[], bool], *, clock: Callable[[], float]
    ) -> None:
        self.clock = clock
        self._version = version
        self._has_answers = has_answers
        # The versions when the look under way and the last complete one began.
        self._begun_at = self._ended_at = -1
        self._due = 0.0

    def soon(self) -> None:
        """The next look is due at once."""
        self._due = 0.0

    def begin(self) -> bool:
        """Whether a look is due. Cheap. `end` notes that it was complete: one that an error ends is repeated."""
        version = self._version()
        if version == self._ended_at and self.clock() < self._due and not self._has_answers():
            return False
        self._begun_at = version
        return True

    def end(self) -> None:
        self._ended_at = self._begun_at
        # At different times for each source: what is due by the clock may take long for hundreds of them.
        self._due = self.clock() + random.uniform(0.5, 1.0) * _EVERY
