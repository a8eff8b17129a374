"""A progress bar per snapshot, when ``relay run`` writes to a terminal."""

from __future__ import annotations

import logging
import os
import sys
from typing import IO, TYPE_CHECKING, cast

from relay.process.supervisor import WORKER_NUMBER

if TYPE_CHECKING:  # rich takes 30 ms to import, and most relays have no terminal
    from rich.console import Console
    from rich.progress import Progress, TaskID


class SnapshotBars:
    """Shows a bar while a snapshot runs, with log lines above it. Used by the worker's thread."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._handlers: list[tuple[logging.StreamHandler[IO[str]], IO[str]]] = []

    @classmethod
    def for_terminal(cls) -> SnapshotBars | None:
        """Return bars on stderr if it is a terminal that no other worker shares, otherwise None."""
        if WORKER_NUMBER in os.environ or not sys.stderr.isatty():
            return None
        from rich.console import Console

        return cls(Console(stderr=True))

    def show(self, source: str, progress: tuple[int, int] | None) -> None:
        """Show the rows that the snapshot of ``source`` has read, and their total; None if none is running."""
        if progress is None:
            if source in self._tasks and self._progress is not None:
                self._progress.remove_task(self._tasks.pop(source))
                if not self._tasks:
                    self.close()
            return
        if self._progress is None:
            self._progress = self._start()
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

    def _start(self) -> Progress:
        from rich.file_proxy import FileProxy
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
