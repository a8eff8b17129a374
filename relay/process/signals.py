"""Handlers of SIGTERM, SIGINT and SIGHUP for commands that must stop cleanly or reload their config."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Self


class Signals:
    """Calls ``stop`` on SIGTERM and SIGINT, or ends the process while ``stop`` is not set. SIGHUP calls ``reload``.

    Python runs signal handlers in the main thread, between two of its instructions, so ``stop`` and ``reload`` must be
    quick and take no locks.
    """

    def __init__(self) -> None:
        self.stop: Callable[[int], None] | None = None
        self.reload: Callable[[], None] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._before[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for signum, before in self._before.items():
            signal.signal(signum, before)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGHUP:
            if self.reload is not None:
                self.reload()
        elif self.stop is not None:
            self.stop(signum)
        elif signum == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SystemExit(0)  # nothing has started yet, so this is a clean stop
