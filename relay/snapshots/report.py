"""Says how far a snapshot has read: to whoever shows it, or in the log from time to time."""

from __future__ import annotations

import logging
from collections.abc import Callable

from relay.records import SnapshotControl

log = logging.getLogger(__name__)

_LOG_EVERY = 10.0  # seconds
_SHOW_EVERY = 0.5

Show = Callable[[str, tuple[int, int] | None], None]
"""Called with the source, and the rows read and estimated of its running snapshot; None if none runs."""


class SnapshotReport:
    """That of the snapshots of one source. ``clock``: seconds since the epoch."""

    def __init__(self, source: str, clock: Callable[[], float]) -> None:
        self._source = source
        self._clock = clock
        self._said_at = 0.0

    def __repr__(self) -> str:
        return f"<SnapshotReport[{self._source}]>"

    def take(
        self, control: SnapshotControl | None, progress: Callable[[], tuple[int, int] | None], show: Show | None
    ) -> None:
        """Show or log ``progress``, if it is time to. ``control``: the record of the snapshot."""
        now = self._clock()
        if now - self._said_at < (_LOG_EVERY if show is None else _SHOW_EVERY):
            return
        done = progress()
        if show is not None:
            self._said_at = now
            show(self._source, done)
        elif done is not None and control is not None:
            self._said_at = now
            read, rows = done
            left = (now - control.updated_at) * (rows - read) / read if read else None
            log.info(
                "source %s: snapshot: %d of about %d rows, %s",
                self._source,
                read,
                rows,
                f"about {left:.0f} s left" if left is not None else "no estimate yet",
            )
