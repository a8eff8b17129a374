"""How tests wait for what takes its time, and see what a process does meanwhile."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 600.0
"""Seconds to wait for what comes sooner or later, where no test says how soon: longer than the busiest host takes."""


def patience(timeout: float) -> float:
    """Return how long to wait on a host that may be busy for what takes at most ``timeout`` on a quiet one."""
    return max(60.0, timeout, min(5 * timeout, PATIENCE))


def wait_until(ask: Callable[[], T | None], timeout: float = 120.0) -> T:
    """Ask until there is an answer other than None and False, and return it. AssertionError if there is none.

    ``timeout``: seconds on a quiet host.
    """
    timeout = patience(timeout)
    deadline = time.monotonic() + timeout
    while True:
        asked = time.monotonic()
        answer = ask()
        if answer is not None and answer is not False:
            return answer
        now = time.monotonic()
        assert now < deadline, f"nothing within {timeout:.0f} s"
        # Whoever is waited for needs the CPU more than one who reads a whole topic to see how far it is.
        time.sleep(min(max(0.05, now - asked), 0.5))


def pause(pid: int) -> None:
    """Stop a process, and return once it has stopped: its threads run on for some milliseconds after the signal."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: is_paused(pid), 10)


def is_paused(pid: int) -> bool:
    """Whether all threads of a process are stopped."""
    stats = [task / "stat" for task in Path(f"/proc/{pid}/task").iterdir()]
    try:
        return {stat.read_text().rpartition(")")[2].split()[0] for stat in stats} == {"T"}
    except (FileNotFoundError, ProcessLookupError):
        return False  # a thread has just ended


def cpu_seconds(pid: int) -> float:
    """Return how much CPU a process has used; 0 where there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
