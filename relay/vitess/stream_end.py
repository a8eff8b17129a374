"""Where a stream has to end, because another one must read on: see `relay.vitess.server_starts`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from relay import gtid
from relay.gtid import GtidSet
from relay.vitess.client import events_of
from relay.vitess.position import position_in
from relay.vitess.shard import VitessShard

_BEHIND = 30.0
"""Seconds after which a transaction is read so late that its server may have been started since."""


class ServerStarted(Exception):
    """The next transaction may have come after its server was started: read it with another stream.

    ``timestamp``: seconds.
    """

    def __init__(self, timestamp: int) -> None:
        super().__init__(timestamp)
        self.timestamp = timestamp


@dataclass(slots=True)
class StreamEnd:
    """``before``: seconds, no transaction of that time or later is read. ``begins``: executed sets, none read after.

    ``asked``: seconds. What started later is not known, so no transaction of that time or later is read with delay.
    """

    before: float = math.inf
    begins: Sequence[GtidSet] = ()
    asked: float = math.inf
    is_reached: bool = False
    """Whether one of ``begins`` has been executed."""

    def is_passed(self, timestamp: int, now: float) -> bool:
        """Whether a transaction of ``timestamp`` is for another stream."""
        if self.is_reached or timestamp >= self.before:
            return True
        return timestamp >= self.asked and now - timestamp > _BEHIND

    def latest(self, read: int, now: float) -> float:
        """Return up to which second transactions are not for another one. ``read``: the second of the last one."""
        return min(self.before, math.inf if now - read <= _BEHIND else self.asked) - 1

    def passed_by(self, timestamp: int, latest: int) -> int:
        """Return up to which second a stream has passed starts that begins with a transaction of ``timestamp``.

        ``latest``: the latest that it may have. The clock of the server may be later still.
        """
        passed = min(timestamp, latest)
        return max(passed, int(self.before)) if timestamp >= self.before else passed

    def note(self, executed: str) -> None:
        """Note how far the stream was read."""
        if self.begins:
            self.is_reached = self._is_after(executed)

    def may_be_in(self, answers: bytes, shard: VitessShard) -> bool:
        """Whether one of ``begins`` is executed at the end of ``answers``. Raises `BrokenStream`."""
        if not self.begins:
            return False
        positions = [event.vgtid for event in events_of(answers) if event.HasField("vgtid")]
        return bool(positions) and self._is_after(position_in(positions[-1], shard)[1])

    def _is_after(self, executed: str) -> bool:
        done = gtid.parse(executed)
        return any(done.contains(begin) for begin in self.begins)
