"""A progress bar for each snapshot, while ``relay run`` is watched on a terminal."""

from __future__ import annotations

import logging
import os
import sys
from typing import IO, cast

from rich.console import Console
from rich.file_proxy import FileProxy
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from relay.process.supervisor import NUMBER


class SnapshotBars:
    """Shows what runs, and nothing while nothing does. Lines of the log go above the bars."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._handlers: list[tuple[logging.StreamHandler[IO[str]], IO[str]]] = []

    @classmethod
    def of_terminal(cls) -> SnapshotBars | None:
        """Return bars on stderr if that is a terminal, and this process has it alone."""
        if NUMBER in os.environ or not sys.stderr.isatty():
            return None
        return cls(Console(stderr=True))

    def show(self, source: str, progress: tuple[int, int] | None) -> None:
        """Show rows read and rows estimated of the snapshot of ``source``; None if none runs."""
        if progress is None:
            if source in self._tasks and self._progress is not None:
                self._progress.remove_task(self._tasks.pop(source))
                if not self._tasks:
                    self.close()
            return
        if self._progress is None:
            self._progress = self._begun()
        if source not in self._tasks:
            self._tasks[source] = self._progress.add_task(f"snapshot of {source}")
        read, rows = progress
        self._progress.update(self._tasks[source], completed=read, total=rows, refresh=True)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
            self._tasks.clear()
        for handler, stream in self._handlers:
            handler.setStream(stream)
        self._handlers.clear()

    def _begun(self) -> Progress:
        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rows, left:"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr:
                above = cast(IO[str], FileProxy(self._console, handler.stream))
                self._handlers.append((handler, handler.stream))
                handler.setStream(above)
        progress.start()
        return progress
