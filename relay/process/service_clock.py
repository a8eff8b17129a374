"""The clock of a database, as its answers tell it: what dates changes, and so what says how far they are read."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

_RECENT = 60.0
"""Seconds for which the best of the answers counts, and as long again: then what they say may be out of date."""

_FORGOTTEN = 600.0
"""Seconds after which a server no longer counts that others have answered since."""


class _Heard(NamedTuple):
    """What one server has said: the most by which its clock was ahead of the monotonic one, in this time and before."""

    begun: float
    most: float
    before: float


class ServiceClock:
    """Returns a time, in seconds since the epoch, that has come on every server that answers. Threads may share it.

    It is behind by what an answer takes, and by what its time is rounded down. The clock of this machine counts only
    until the first answer: between two answers the monotonic clock does, so a step of either clock changes nothing
    here, or is followed by the next answer.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        # By server. Of two threads that note at the same time, one is not heard.
        self._heard: dict[str, _Heard] = {}
        self._ahead = time.time() - monotonic()

    def __repr__(self) -> str:
        return f"<ServiceClock[{self():.1f} by {', '.join(sorted(self._heard)) or 'this machine'}]>"

    @property
    def is_known(self) -> bool:
        """Whether a server has said what time it is."""
        return bool(self._heard)

    def __call__(self) -> float:
        return self._monotonic() + self._ahead

    def at(self, monotonic: float) -> float:
        """Return what it was at that time of the monotonic clock, by what is known now."""
        return monotonic + self._ahead

    def note(self, now: float, server: str = "") -> None:
        """Note that ``server`` has given an answer that was made at ``now`` by its clock, or later."""
        at = self._monotonic()
        ahead = now - at
        heard = self._heard.get(server)
        if heard is None or at - heard.begun > 2 * _RECENT:
            heard = _Heard(at, ahead, ahead)
        elif at - heard.begun > _RECENT:
            heard = _Heard(at, ahead, heard.most)
        elif ahead > heard.most:
            heard = heard._replace(most=ahead)
        else:
            return
        self._heard = {
            name: each
            for name, each in {**self._heard, server: heard}.items()
            if at - each.begun < _FORGOTTEN or name == server
        }
        # I1: the least of the servers, whichever of them dates a change.
        self._ahead = min(max(each.most, each.before) for each in self._heard.values())
