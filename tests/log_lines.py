"""The lines that consumers log as JSON."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any


def log_lines(log: Path | str, event: str | None = None) -> list[dict[str, Any]]:
    """Return the lines of a log, or of its text, with that event or all. Leaves out what Java and Python print.

    Also leaves out a last line that is still being written.
    """
    text = log if isinstance(log, str) else log.read_text()
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.startswith("{") and line[-1] == "\n"]
    return [line for line in lines if event in (None, line["event"])]


def rows_applied(log: Path) -> Counter[str]:
    """Return how many rows each consumer has applied."""
    return sum((Counter({batch["consumer"]: batch["rows"]}) for batch in log_lines(log, "batch")), Counter())
