"""Runs a relay that kills itself at a step of the first commit after it has logged a text: CONFIG STEP TEXT."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

from relay.config import load
from relay.engine.relaying import run


class Awaited(logging.Handler):
    """Notices when ``text`` is logged."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.is_logged = False

    def emit(self, record: logging.LogRecord) -> None:
        self.is_logged = self.is_logged or self.text in record.getMessage()


def main(path: str, step: str, text: str) -> None:
    awaited = Awaited(text)
    logging.basicConfig(level=logging.INFO, handlers=[awaited, logging.StreamHandler()])

    def probe(name: str) -> None:
        if awaited.is_logged and name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    run(load(Path(path)), probe=probe)


if __name__ == "__main__":
    main(*sys.argv[1:])
