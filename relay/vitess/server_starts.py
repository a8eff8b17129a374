"""When the database servers of a shard were started, and where a stream has to end, as it must not read across a start.

Otherwise Vitess' vstreamer.go passes over rows: a server renumbers its tables when it starts (I1, see README).
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

from relay import gtid
from relay.errors import RelayError
from relay.gtid import GtidSet
from relay.mysql_dialect.snapshot_times import latest_timestamp
from relay.vitess.client import events_of
from relay.vitess.position import VitessShard, position_in
from relay.vitess.start_at_time import ShardHistory
from relay.vitess.tablets import TIMES_ASKED, Tablets

log = logging.getLogger(__name__)

_REFUSALS = 5  # how often changes are refused while tablets do not say when servers started, before they are read
_BEHIND = 30.0  # seconds: if a transaction is read later than that, its server may have been started since


class ServerStarted(Exception):
    """The next transaction may have come after its server was started: read it with another stream.

    ``timestamp``: the second up to which the stream has passed all starts.
    """

    def __init__(self, timestamp: int) -> None:
        super().__init__(timestamp)
        self.timestamp = timestamp


@dataclass(slots=True)
class StreamEnd:
    """Where a stream ends. Starts after ``asked`` are not known: later transactions are read only without delay."""

    before: float = math.inf  # transactions of this second and later are not read
    begins: Sequence[GtidSet] = ()  # nothing is read after any of these
    asked: float = math.inf  # the second when tablets were asked for their starts
    is_reached: bool = False  # whether one of ``begins`` has been executed

    def check(self, timestamp: int, now: float) -> None:
        """Raise `ServerStarted` if another stream has to read a transaction of ``timestamp``."""
        is_late = timestamp >= self.asked and now - timestamp > _BEHIND
        if self.is_reached or timestamp >= self.before or is_late:
            passed = min(timestamp, latest_timestamp(now))  # the server's clock may be ahead
            raise ServerStarted(max(passed, int(self.before)) if timestamp >= self.before else passed)

    def latest(self, read: int, now: float) -> float:
        """Return the last second whose transactions this stream may read. ``read``: the second that it has reached."""
        return min(self.before, math.inf if now - read <= _BEHIND else self.asked) - 1

    def note(self, executed: str) -> None:
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


class ServerStarts:
    """The starts that the streams of one shard have not passed. ``silence``: the longest wait, in seconds."""

    def __init__(self, tablets: Tablets, *, silence: float) -> None:
        self._tablets = tablets
        self._history = ShardHistory(tablets, silence=silence)
        # How often to ask, as each answer may come from another tablet.
        self._times = 1 if tablets.kind == "PRIMARY" else TIMES_ASKED
        self._passed = 0  # the second up to which the streams have passed all starts
        # The starts whose binlog files were listed, and the executed set before each file that is still to be passed.
        self._listed: set[int] = set()
        self._begins: set[GtidSet] = set()
        # Why the open stream reads nothing, or None if it reads, and how often changes were refused.
        self._unknown: str | None = None
        self._refused = 0
        self._has_warned = False

    def passed(self, timestamp: int) -> str | None:
        """Note that a stream ended before ``timestamp``, in seconds. Return why it had to read nothing, or None."""
        if self._unknown is not None:
            self._refused += 1
            return self._unknown
        self._passed = max(self._passed, timestamp)
        return None

    def end_after(self, executed: str, now: float) -> StreamEnd:
        """Return where a stream from ``executed`` has to end: before its first transaction, if the tablets do not say.

        If they go on refusing, it may read, and a warning says so. ``now``: seconds since the epoch.
        """
        at, starts, self._unknown = gtid.parse(executed), set[int](), None
        try:
            for _ in range(self._times):
                starts.add(self._tablets.started_at(at.flavour))
            # A server begins a file at each start. Times alone do not tell: it knows only its last start, and a
            # replica executes transactions with the times of its primary.
            if starts - self._listed:
                self._list(at)
                self._listed |= starts
            self._refused = 0
        except RelayError as error:
            if self._refused < _REFUSALS:
                self._unknown = str(error)
                return StreamEnd(0)
            if not self._has_warned:
                self._has_warned = True
                log.warning(
                    "%s: the relay cannot find out when the database servers of the shard were started. It reads on, "
                    "but Vitess may leave out changes where a stream reads across a start: %s",
                    self._tablets.shard.qualified,
                    error,
                )
        self._begins = {begin for begin in self._begins if not at.contains(begin)}
        begins = self._begins
        # Of one tablet, the oldest. I1: unequal sets of MariaDB may contain each other.
        first = [each for each in begins if not any(each.contains(o) and not o.contains(each) for o in begins)]
        # A start lies within its second, which may have changes from before and after it.
        ends = (end for start in starts for end in (start, start + 1) if end > self._passed)
        return StreamEnd(min(ends, default=math.inf), first, now)

    def _list(self, at: GtidSet) -> None:
        """Note the binlog files after ``at``. With several tablets, another one may answer each time."""
        fruitless = 0
        for _ in range(self._times):
            found = self._history.begins_after(at) - self._begins
            self._begins |= found
            fruitless = 0 if found else fruitless + 1
            if fruitless == 2:
                return
