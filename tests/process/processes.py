"""Whether a process has ended, seen from outside."""

from __future__ import annotations

import time

from relay.process.managed import started_at


def gone(pid: int, within: float = 60.0) -> bool:
    """Return whether the process has ended, after waiting up to ``within`` seconds. A zombie has ended."""
    deadline = time.monotonic() + within
    while started_at(pid) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
