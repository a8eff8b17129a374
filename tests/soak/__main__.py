"""``make soak``: play a long run, print one line ``SOAK {json}``, and exit with code 4 if anything is wrong."""

from __future__ import annotations

import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.soak import PARTS, Soak

_SECONDS = 600.0


def _number(name: str, default: float) -> float:
    return float(os.environ.get(f"RELAY_SOAK_{name}") or default)


def main() -> int:
    """Read the settings from ``RELAY_SOAK_SECONDS`` and others: those of ``make soak``."""
    changes = _number("CHANGES", math.inf)
    seconds = _number("SECONDS", _SECONDS if changes == math.inf else math.inf)
    seed = int(_number("SEED", random.randrange(1 << 31)))
    parts = (os.environ.get("RELAY_SOAK_PARTS") or ",".join(PARTS)).split(",")
    if wrong := set(parts) - set(PARTS):
        print(f"PARTS: {', '.join(sorted(wrong))} is not one of {', '.join(PARTS)}", file=sys.stderr)
        return 2
    if set(parts) == {"consumers"}:
        print("PARTS: the consumers need a source, dynamodb or mysql", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="relay-soak-"))
    os.environ |= {"RELAY_STATE": str(folder / "state"), "SPARK_LOCAL_DIRS": str(folder / "spark")}
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "test")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "test")
    # The processes end with the run, also if that is stopped.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    begun = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - begun:8.1f} {line}", flush=True)

    say(f"seed {seed}, {','.join(parts)}, until {changes:,.0f} changes or {seconds:,.0f} s; in {folder}")
    network = _number("NETWORK", 0.0) != 0.0
    soak = Soak(
        folder,
        seed,
        parts,
        pause=_number("PAUSE", 1.6),
        rate=_number("RATE", 0.0) or None,
        network=network,
        brokers=int(_number("BROKERS", 1)),
        say=say,
    )
    totals = soak.play(seconds, changes)
    print(f"SOAK {totals.as_json()}", flush=True)
    if totals.problems:
        return 4  # the folder stays, for whoever looks for the cause
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
