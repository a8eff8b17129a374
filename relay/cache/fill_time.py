"""How long a reader waits for a value that another one is loading: about as long as a load may take."""

from __future__ import annotations


class FillTime:
    """The time that loads take, from those seen so far. It is not locked.

    Smoothed mean and deviation, as TCP judges by them whether an answer is still to come (RFC 6298).
    """

    def __init__(self) -> None:
        self._mean = 0.0
        self._deviation = 0.0
        self._is_known = False

    def add(self, seconds: float) -> None:
        """Take the time of one load into account."""
        if not self._is_known:
            self._mean, self._deviation, self._is_known = seconds, seconds / 2, True
            return
        self._deviation += (abs(seconds - self._mean) - self._deviation) / 4
        self._mean += (seconds - self._mean) / 8

    def longest(self, bound: float) -> float:
        """Return how many seconds nearly every load takes at most; ``bound`` if that is less, or none is known."""
        return min(bound, self._mean + 4 * self._deviation) if self._is_known else bound
