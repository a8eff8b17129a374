"""Plays every interleaving of the large scenarios, or of those whose names contain the arguments: ``make model``."""

from __future__ import annotations

import sys
import time

from tests.cache.model.explore import explore
from tests.cache.model.scenarios import LARGE


def main(wanted: list[str]) -> int:
    """Return how many scenarios break I6."""
    states = executions = broken = 0
    began = time.process_time()
    for name, scenario in LARGE.items():
        if wanted and not any(part in name for part in wanted):
            continue
        start = time.process_time()
        found = explore(scenario)
        took = time.process_time() - start
        print(f"{found.states:>9,} states {found.executions:>26,} executions {took:6.1f} s  {name}", flush=True)
        states, executions = states + found.states, executions + found.executions
        if found.problem is not None:
            broken += 1
            print(f"  {found.problem}, after {len(found.trace)} moves:", *found.trace, sep="\n    ", flush=True)
    print(f"{states:>9,} states {executions:>26,} executions {time.process_time() - began:6.1f} s of CPU")
    return broken


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
