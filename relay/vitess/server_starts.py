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
from relay.vitess.start_at_time import ShardHistory
from relay.vitess.tablets import Tablets

log = logging.getLogger(__name__)

_TIMES_ASKED = 8  # each time another tablet may answer


class ServerStarts:
    """The starts that the streams of one shard have not passed. ``silence``: seconds without an answer."""

    def __init__(self, tablets: Tablets, *, silence: float) -> None:
        self._tablets = tablets
        self._history = ShardHistory(tablets, silence=silence)
        self._passed = 0
        self._has_warned = False

    def passed(self, timestamp: int) -> None:
        """The next stream begins with a transaction of ``timestamp``, in seconds."""
        self._passed = timestamp

    def next_after(self, executed: str) -> float:
        """Return the first second that a stream which is opened at ``executed`` must not go on in.

        Infinity if all starts are passed, or none is known, which is said once.
        """
        starts: set[int] = set()
        try:
            for _ in range(1 if self._tablets.kind == "PRIMARY" else _TIMES_ASKED):
                starts.add(self._tablets.started_at(executed.partition("/")[0]))
            if self._not_passed(starts):
                # Servers know only their last start, but begin a file at each.
                starts.update(self._history.files_after(gtid.parse(executed)))
        except RelayError as error:
            if not self._has_warned:
                self._has_warned = True
                log.warning(
                    "%s: when its servers were started is not fully known, and Vitess may leave out changes where a "
                    "stream reads across such a start: %s",
                    self._tablets.shard.qualified,
                    error,
                )
        return min(self._not_passed(starts), default=math.inf)

    def _not_passed(self, starts: set[int]) -> list[int]:
        # A start lies within its second, which may have changes from before and after it.
        return [end for start in starts for end in (start, start + 1) if end > self._passed]
