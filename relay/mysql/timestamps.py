"""From times to positions: one for each second of the last minutes, one for each minute of the last days."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque

from relay.gtid import GtidSet

SECONDS = 600
"""Seconds, up to the newest time, for which every second has a position of its own."""

HOURS = 72
"""Hours for which every minute has one. Older times are dropped."""


class TimestampMap:
    """Where reading must begin to see everything since a time. Thread-safe.

    ``note`` each transaction in order. Only those with a later time than all before them are kept: what precedes such
    a transaction is older than it, whatever the clocks did. So a position found here is never after the first
    transaction of the wanted time, but may be some way before it. Bounded (I11).
    """

    def __init__(self, seconds: int = SECONDS, hours: int = HOURS) -> None:
        self._seconds = seconds
        self._minutes = hours * 60
        # Times and the executed sets before them, oldest first: one per minute, then one per second. A reader's thread
        # adds to them while other threads search; all of them hold the lock.
        self._old: deque[tuple[int, GtidSet]] = deque()
        self._new: deque[tuple[int, GtidSet]] = deque()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<TimestampMap[{len(self)} times]>"

    def __len__(self) -> int:
        return len(self._old) + len(self._new)

    def note(self, timestamp: int, before: GtidSet) -> None:
        """Add a transaction of ``timestamp`` seconds. ``before``: the executed set without it."""
        with self._lock:
            if self._new and timestamp <= self._new[-1][0]:
                return
            self._new.append((timestamp, before))
            while self._new[0][0] <= timestamp - self._seconds:
                aged = self._new.popleft()
                if not self._old or aged[0] // 60 != self._old[-1][0] // 60:
                    self._old.append(aged)
            while self._old and self._old[0][0] <= timestamp - self._minutes * 60:
                self._old.popleft()

    def find(self, timestamp: float) -> GtidSet | None:
        """Return where to begin in order to miss nothing since ``timestamp``, None if that is not known here."""
        with self._lock:
            for entries in (self._new, self._old):
                at = bisect_right(entries, timestamp, key=lambda entry: entry[0])
                if at:
                    return entries[at - 1][1]
        return None

    def clear(self) -> None:
        """Forget everything: what is noted from now on does not follow what was noted before."""
        with self._lock:
            self._old.clear()
            self._new.clear()
