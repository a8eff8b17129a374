"""The progress of a replay: a bar with the time left on a terminal, otherwise a line of JSON for each batch."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from spark_consumers.running import log_event


class ReplayProgress:
    """``total``: offsets to read; an earlier run has read ``done`` of them. A context manager."""

    def __init__(self, consumer: str, total: int, done: int) -> None:
        self._consumer = consumer
        self._total = total
        self._before = done
        self._began = time.monotonic()
        self._is_shown = sys.stderr.isatty()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("records, left:"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not self._is_shown,
        )
        self._task = self._bar.add_task(f"replay of the {consumer}", total=total, completed=done)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown:  # older versions print a line break even if they are disabled
            self._bar.stop()

    def show(self, done: int, counts: Mapping[str, int]) -> None:
        """Show that ``done`` offsets are read. ``counts``: what the last batch has done."""
        if self._is_shown:
            self._bar.update(self._task, completed=done)
            return
        seconds = time.monotonic() - self._began
        left = (self._total - done) * seconds / max(1, done - self._before)
        log_event("progress", self._consumer, done=done, total=self._total, seconds_left=round(left, 1), **counts)
