"""When the database servers of a shard were started: one stream must not read across that.

After a start, a server numbers its tables anew in its binlog. Vitess' vstreamer.go keeps what it knows of a number for
as long as a stream goes on, and passes over the rows of a table whose number belonged to a table that it does not send:
of another database, or one of its own. A stream that is up to date ends with the server. One that reads what came
before a start has to be opened anew for what came after it (I1).
"""

from __future__ import annotations

import logging
import math

from relay import gtid
from relay.errors import RelayError, Unavailable
from relay.gtid import GtidSet
from relay.vitess.start_at_time import BinlogsHidden, ShardHistory
from relay.vitess.stream_end import StreamEnd
from relay.vitess.tablets import Tablets

log = logging.getLogger(__name__)

_TIMES_ASKED = 8  # each time another tablet may answer


class ServerStarts:
    """The starts that the streams of one shard have not passed. ``silence``: seconds without an answer."""

    def __init__(self, tablets: Tablets, *, silence: float) -> None:
        self._tablets = tablets
        self._history = ShardHistory(tablets, silence=silence)
        # Seconds: the streams have read up to there.
        self._passed = 0
        # The starts whose binlog files were listed, and what was executed before each file that was not passed.
        self._listed: set[int] = set()
        self._begins: set[GtidSet] = set()
        # Why they are not known now.
        self.unknown: str | None = None
        self._has_warned = False

    def passed(self, timestamp: int) -> None:
        """The next stream begins with a transaction of ``timestamp``, in seconds."""
        self._passed = max(self._passed, timestamp)

    def reached_head(self) -> None:
        """All files that there are begin before what was read."""
        self._begins.clear()

    def end_after(self, executed: str) -> StreamEnd:
        """Return where a stream that is opened at ``executed`` has to end: before any transaction if that is `unknown`.

        What tablets do not tell is warned of once.
        """
        at, starts, self.unknown = gtid.parse(executed), set[int](), None
        try:
            for _ in range(1 if self._tablets.kind == "PRIMARY" else _TIMES_ASKED):
                starts.add(self._tablets.started_at(at.flavour))
            # A server begins a file at each start. It knows the time of its last start only, and a replica executes
            # what has the times of its primary, so times alone do not tell.
            if starts - self._listed:
                self._list(at, several=len(starts) > 1)
        except Unavailable as error:
            if not isinstance(error, BinlogsHidden):
                self.unknown = str(error)
                return StreamEnd(0)
            self._warn(error)
        except RelayError as error:
            self._warn(error)
        self._listed |= starts
        self._begins = {begin for begin in self._begins if not at.contains(begin)}
        # A start lies within its second, which may have changes from before and after it.
        ends = (end for start in starts for end in (start, start + 1) if end > self._passed)
        return StreamEnd(min(ends, default=math.inf), _first(self._begins))

    def _list(self, at: GtidSet, *, several: bool) -> None:
        """Note the files of a tablet. Of ``several``, each statement of a listing may be answered by another one."""
        for _ in range(_TIMES_ASKED if several else 1):
            try:
                for begin in self._history.begins_after(at):
                    self._begins.add(begin)
            except BinlogsHidden:
                raise
            except Unavailable:
                if not several:
                    raise

    def _warn(self, error: RelayError) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s: when its servers were started is not fully known, and Vitess may leave out changes where a "
                "stream reads across such a start: %s",
                self._tablets.shard.qualified,
                error,
            )


def _first(begins: set[GtidSet]) -> list[GtidSet]:
    """Return those that contain no other: of the files of one tablet, the oldest."""
    found: list[GtidSet] = []
    for begin in begins:
        if not any(begin.contains(other) for other in found):
            found = [other for other in found if not other.contains(begin)] + [begin]
    return found
