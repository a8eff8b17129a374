"""Runs a relay whose wall clock is ahead by the seconds in a file: FILE CONFIG [--until-caught-up]."""

from __future__ import annotations

import sys
import time
from pathlib import Path


def main(file: str, config: str, *options: str) -> None:
    read_clock, ahead = time.time, Path(file)
    # Before anything of the relay is imported, which keeps the function.
    time.time = lambda: read_clock() + float(ahead.read_text())

    from relay.cli import app

    app(["run", config, *options])


if __name__ == "__main__":
    main(*sys.argv[1:])
