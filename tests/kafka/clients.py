"""The clients of Kafka in this process."""

from __future__ import annotations

from pathlib import Path


def kafka_clients() -> set[str]:
    """Return the ids of the threads of this process that each run one client of Kafka."""
    return {task.name for task in Path("/proc/self/task").iterdir() if _name(task) == "rdk:main"}


def _name(task: Path) -> str | None:
    """Return the name of a thread, None for one that ended since it was listed."""
    try:
        return (task / "comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
