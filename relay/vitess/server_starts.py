"""When the database servers of a shard were started: one stream must not read across that.

After a start, a server renumbers its tables in its binlog. Vitess' vstreamer.go keeps what it knows of a number for
as long as it goes on, and passes over the rows of a table whose number belonged to a table that it does not send: one
of another database, or one of its own. A stream that is up to date ends with the server, or starts over there. One that
reads what came before a start has to be reopened for what came after it (I1).
"""

import logging
import math

from relay import gtid
from relay.errors import RelayError
from relay.gtid import GtidSet
from relay.vitess.start_at_time import ShardHistory
from relay.vitess.stream_end import StreamEnd
from relay.vitess.tablets import TIMES_ASKED, Tablets

log = logging.getLogger(__name__)

_REFUSALS = 5
"""How often changes have to come while tablets do not tell their starts, until they are read all the same."""


class ServerStarts:
    """The starts that the streams of one shard have not passed. ``silence``: seconds without an answer."""

    def __init__(self, tablets: Tablets, *, silence: float) -> None:
        self._tablets = tablets
        self._history = ShardHistory(tablets, silence=silence)
        # How many tablets there may be.
        self._times = 1 if tablets.kind == "PRIMARY" else TIMES_ASKED
        # Seconds: the streams have read up to there.
        self._passed = 0
        # The starts whose binlog files were listed, and what was executed before each file that was not passed.
        self._listed: set[int] = set()
        self._begins: set[GtidSet] = set()
        # Why the stream that is open reads nothing, and how often it could have.
        self._unknown: str | None = None
        self._refused = 0
        self._has_warned = False

    def passed(self, timestamp: int) -> str | None:
        """The stream has ended before a transaction of ``timestamp``, in seconds. Return why, if that is not known."""
        if self._unknown is not None:
            self._refused += 1
            return self._unknown
        self._passed = max(self._passed, timestamp)
        return None

    def end_after(self, executed: str, now: float) -> StreamEnd:
        """Return where a stream that is opened at ``executed`` has to end: before any transaction, if no tablet tells.

        One that goes on refusing is warned of. ``now``: seconds since the epoch.
        """
        at, starts, self._unknown = gtid.parse(executed), set[int](), None
        try:
            for _ in range(self._times):
                starts.add(self._tablets.started_at(at.flavour))
            # A server begins a file at each start. It knows the time of its last start only, and a replica executes
            # what has the times of its primary, so times alone do not tell.
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
                    "%s: when its servers were started is not fully known, and Vitess may leave out changes where a "
                    "stream reads across such a start: %s",
                    self._tablets.shard.qualified,
                    error,
                )
        self._begins = {begin for begin in self._begins if not at.contains(begin)}
        # A start lies within its second, which may have changes from before and after it.
        ends = (end for start in starts for end in (start, start + 1) if end > self._passed)
        return StreamEnd(min(ends, default=math.inf), _first(self._begins), now)

    def _list(self, at: GtidSet) -> None:
        """Note the binlog files after ``at``. With several tablets, each statement may be answered by another one."""
        fruitless = 0
        for _ in range(self._times):
            found = set(self._history.begins_after(at)) - self._begins
            self._begins |= found
            fruitless = 0 if found else fruitless + 1
            if fruitless == 2:
                return


def _first(begins: set[GtidSet]) -> list[GtidSet]:
    """Return the sets that contain no other: for the files of one tablet, the oldest."""
    found: list[GtidSet] = []
    for begin in begins:
        if not any(begin.contains(other) for other in found):
            found = [other for other in found if not other.contains(begin)] + [begin]
    return found
