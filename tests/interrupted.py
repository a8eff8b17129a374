"""Signals whose handlers last longer than what they interrupt."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StillWaiting(Exception):
    """What was interrupted did not go on after its deadline."""


@contextmanager
def by_a_slow_handler(seconds: float = 0.3) -> Iterator[list[float]]:
    """Interrupt the body shortly after its begin with a handler that takes ``seconds``.

    Yields the times at which handlers ran. A body that then waits for ever gets ``StillWaiting``.
    """
    ran: list[float] = []

    def handle(signum: int, frame: FrameType | None) -> None:
        ran.append(time.monotonic())
        if len(ran) > 1:
            raise StillWaiting
        signal.setitimer(signal.ITIMER_REAL, 10.0)
        time.sleep(seconds)

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    try:
        yield ran
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
