"""How many processes run the tests. Each starts services of its own, and keeps half a core busy."""

from __future__ import annotations

import os
from pathlib import Path

_GIGABYTES = 3.0  # that a process takes with all that it starts
_FEWEST = 3
_MOST = 8  # with more, all wait for the longest file


def processes(cores: float, memory: float) -> int:
    """Return how many suit so many cores and gigabytes of memory."""
    return max(_FEWEST, min(int(2 * cores), int(memory / _GIGABYTES), _MOST))


def of_this_machine(limits: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many suit this machine, or the container in which this is. ``limits``: the folder of its cgroup."""
    quota, period, *_ = [*_words(limits / "cpu.max"), "max", "max"]
    allowed, *_ = [*_words(limits / "memory.max"), "max"]
    cores: float = os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    if quota != "max":
        cores = min(cores, int(quota) / int(period))
    if allowed != "max":
        memory = min(memory, int(allowed) / 1e9)
    return processes(cores, memory)


def _words(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []
