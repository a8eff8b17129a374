"""Runs a relay that kills itself at a step of its commit path: CONFIG STEP NUMBER."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from relay.config import load
from relay.engine.relaying import run
from relay.errors import RelayError


def main(path: str, step: str, number: str) -> None:
    left = int(number)

    def probe(name: str) -> None:
        nonlocal left
        if name == step:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        run(load(Path(path)), probe=probe)
    except RelayError as error:  # as the command does: the network may fail while it starts
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main(*sys.argv[1:])
