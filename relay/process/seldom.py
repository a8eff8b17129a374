"""Limits how often something happens, such as a warning in a log that people read."""

import time
from collections.abc import Callable

_EVERY = 60.0  # seconds between two warnings


class Seldom:
    """Tells whether something is due, once in ``every`` seconds; of two threads that ask at once, both may hear yes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, every: float = _EVERY) -> None:
        self._clock = clock
        self._every = every
        self._due_at = -float("inf")

    def is_due(self) -> bool:
        now = self._clock()
        if now < self._due_at:
            return False
        self._due_at = now + self._every
        return True
