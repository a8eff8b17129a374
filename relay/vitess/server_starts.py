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
from relay.errors import RelayError
from relay.gtid import GtidError, GtidSet
from relay.vitess.start_at_time import ShardHistory
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
        # The starts whose binlog files were listed, and what was executed before each file.
        self._listed: set[int] = set()
        self._begins: list[GtidSet] = []
        self._has_warned = False

    def passed(self, timestamp: int) -> None:
        """The next stream begins with a transaction of ``timestamp``, in seconds."""
        self._passed = max(self._passed, timestamp)

    def end_after(self, executed: str) -> StreamEnd:
        """Return where a stream that is opened at ``executed`` has to end. What is not known of it is said once."""
        at, starts = gtid.parse(executed), set[int]()
        try:
            for _ in range(1 if self._tablets.kind == "PRIMARY" else _TIMES_ASKED):
                starts.add(self._tablets.started_at(at.flavour))
            # A server begins a file at each start. It knows the time of its last start only, and a replica executes
            # what has the times of its primary, so times alone do not tell.
            for start in starts - self._listed:
                self._begins.extend(self._history.begins_after(at))
                self._listed.add(start)
        except (RelayError, GtidError) as error:
            if not self._has_warned:
                self._has_warned = True
                log.warning(
                    "%s: when its servers were started is not fully known, and Vitess may leave out changes where a "
                    "stream reads across such a start: %s",
                    self._tablets.shard.qualified,
                    error,
                )
        self._begins = [begin for begin in self._begins if not at.contains(begin)]
        # A start lies within its second, which may have changes from before and after it.
        ends = (end for start in starts for end in (start, start + 1) if end > self._passed)
        return StreamEnd(min(ends, default=math.inf), self._begins)
