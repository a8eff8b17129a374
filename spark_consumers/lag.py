"""How far a consumer of the cache is behind the commits of its changes, and an alarm once that is far."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from spark_consumers.running import log_event

_CALM = 60.0  # seconds without a late batch that end it, since the batches of one source may be late and others not


class LagAlarm:
    """Warns when changes begin to be applied later than half of ``tombstone_ttl`` (seconds) after their commit.

    Once until they no longer are, which it says, too.

    No stale value is stored then or later. But what was in the cache is served until its invalidation comes: see
    "Times" in ``relay/cache/README.md``. Used by one thread at a time.
    """

    def __init__(
        self, tombstone_ttl: float, *, log: Callable[..., None] = log_event, clock: Callable[[], float] = time.time
    ) -> None:
        self._tombstone_ttl = tombstone_ttl
        self._log = log
        self._clock = clock
        self._late_at: float | None = None  # the last late batch since the warning, or None if there was none

    def lag(self, oldest: int | None) -> dict[str, Any]:
        """Return the field of a batch line. ``oldest``: the first commit of the batch, in epoch seconds, if known."""
        if oldest is None:
            return {}
        now = self._clock()
        lag = max(0, round(now - oldest))
        if lag > self._tombstone_ttl / 2:
            is_first, self._late_at = self._late_at is None, now
            if is_first:
                said = (
                    f"changes are applied {lag} s after their commit, which is more than half of cache.tombstone_ttl "
                    f"({self._tombstone_ttl:g} s): until then the cache serves what they replaced. `relay status` "
                    "shows whether the relay is behind; if not, this consumer or the cache is too slow. Where such a "
                    "lag is expected, set tombstone_ttl to more than twice as much"
                )
                self._log("behind", "cache", lag=lag, tombstone_ttl=self._tombstone_ttl, error=said)
        elif self._late_at is not None and not 0 <= now - self._late_at < _CALM:  # the clock may have been set back
            self._late_at = None
            self._log("no longer behind", "cache", lag=lag, tombstone_ttl=self._tombstone_ttl)
        return {"lag": lag}
