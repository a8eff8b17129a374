"""How tests wait for what takes its time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def patience(timeout: float) -> float:
    """Return how long to wait on a host that may be busy for what takes at most ``timeout`` on a quiet one."""
    return max(timeout, min(5 * timeout, 600.0))


def wait_until(ask: Callable[[], T | None], timeout: float = 120.0) -> T:
    """Ask until there is an answer other than None and False, and return it. AssertionError if there is none.

    ``timeout``: seconds on a quiet host.
    """
    timeout = patience(timeout)
    deadline = time.monotonic() + timeout
    while True:
        answer = ask()
        if answer is not None and answer is not False:
            return answer
        assert time.monotonic() < deadline, f"nothing within {timeout:.0f} s"
        time.sleep(0.05)
