"""Warnings of what goes on and on, in a log that people read."""

from __future__ import annotations

import time
from collections.abc import Callable

_EVERY = 60.0  # seconds


class Seldom:
    """Whether a warning is due, as it is once a minute. Threads may share it: two at once may both be told yes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due_at = -float("inf")

    def is_due(self) -> bool:
        now = self._clock()
        if now < self._due_at:
            return False
        self._due_at = now + _EVERY
        return True
