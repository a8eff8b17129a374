"""From times to positions: the ageing map of seed 004, "Watching the Replication Stream", and what sets have in common.

May be changed here: for how long times are known, and how finely.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from relay.gtid import GtidSet, parse

SECONDS = 600
"""Seconds, up to the newest time, for which every second has a position of its own."""

HOURS = 72
"""Hours for which every minute has one. Nothing older is kept: three days."""


class TimestampMap:
    """Where reading has to begin to see everything from a time on. Bounded: one entry a second, later one a minute.

    ``note`` each transaction in order. Only those matter that carry a later time than all before them: what precedes
    such a transaction is older than it, whatever the clocks did. So a place found here is never past the first
    transaction of the wanted time, though it may be some way before it.
    """

    def __init__(self, seconds: int = SECONDS, hours: int = HOURS) -> None:
        self._seconds = seconds
        self._minutes = hours * 60
        # Times and the executed sets before them, oldest first: one a minute, then one a second.
        self._old: deque[tuple[int, GtidSet]] = deque()
        self._new: deque[tuple[int, GtidSet]] = deque()

    def __repr__(self) -> str:
        return f"<TimestampMap[{len(self)} times]>"

    def __len__(self) -> int:
        return len(self._old) + len(self._new)

    def note(self, timestamp: int, before: GtidSet) -> None:
        """Take in a transaction of ``timestamp`` seconds. ``before``: the executed set without it."""
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
        """Return where to begin in order to miss nothing from ``timestamp`` on; None if that is not known here."""
        for entries in (self._new, self._old):
            at = bisect_right(entries, timestamp, key=lambda entry: entry[0])
            if at:
                return entries[at - 1][1]
        return None

    def clear(self) -> None:
        """Forget everything: what is noted from now on does not follow what was noted before."""
        self._old.clear()
        self._new.clear()


def common(a: GtidSet, b: GtidSet) -> GtidSet:
    """Return what both sets of one flavour hold. MariaDB: where each domain stands that both have."""
    if a.contains(b) or b.contains(a):
        return b if a.contains(b) else a
    if a.flavour != "MariaDB":
        return a - (a - b)
    mine, theirs = _domains(a), _domains(b)
    lower = (min(mine[domain], theirs[domain], key=_sequence) for domain in mine.keys() & theirs.keys())
    return parse("MariaDB/" + ",".join(lower))


def _domains(gtids: GtidSet) -> dict[str, str]:
    return {gtid.partition("-")[0]: gtid for gtid in str(gtids).split(",") if gtid}


def _sequence(gtid: str) -> int:
    return int(gtid.rpartition("-")[2])
