"""The clock of a database, estimated from its answers. It dates changes, and so shows how far they are read."""

import time
from collections.abc import Callable
from typing import NamedTuple

_RECENT = 60.0  # seconds of a period, whose best answer counts until the end of the next one
_FORGOTTEN = 600.0  # seconds without an answer after which a server no longer counts, once another server answers


class _Heard(NamedTuple):
    """The most by which a server's clock was ahead of the monotonic clock, in the present period and before."""

    begun: float
    most: float
    before: float


class ServiceClock:
    """Returns a time, in seconds since the epoch, that every server that answers has reached. Threads may share it.

    After the first answer, setting this machine's clock changes nothing.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        # By server. If two threads note an answer at the same time, one of the two is dropped.
        self._heard: dict[str, _Heard] = {}
        self._ahead = time.time() - monotonic()

    @property
    def is_known(self) -> bool:
        return bool(self._heard)

    def __call__(self) -> float:
        return self._monotonic() + self._ahead

    def at(self, monotonic: float) -> float:
        """Return the time at a moment of the monotonic clock, by present knowledge."""
        return monotonic + self._ahead

    def note(self, now: float, server: str = "") -> None:
        """Note an answer of ``server`` that was given at ``now`` by its clock, or later."""
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
        # I1: the server that is least ahead counts, whichever one dates a change.
        self._ahead = min(max(each.most, each.before) for each in self._heard.values())
