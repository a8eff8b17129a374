"""What prints to stdout for people."""

from __future__ import annotations

from rich.console import Console


class Output(Console):
    """A command whose reader has gone, as `head` does, ends with 0, as it does with ``--json``; rich would say 1."""

    def on_broken_pipe(self) -> None:
        raise
