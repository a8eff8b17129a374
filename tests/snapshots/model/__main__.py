"""Plays every order of all scenarios, or of those whose names contain the arguments, and many at random."""

from __future__ import annotations

import sys
import time

from tests.snapshots.model.explore import explore, walk
from tests.snapshots.model.scenarios import LARGE, RANDOM, SMALL

_WALKS = 500


def main(wanted: list[str]) -> int:
    """Return how many scenarios break something."""
    broken = 0
    for name, scenario in {**SMALL, **LARGE, **RANDOM}.items():
        if wanted and not any(part in name for part in wanted):
            continue
        start = time.process_time()
        walks = [walk(scenario, seed) for seed in range(_WALKS)] if name in RANDOM else [explore(scenario)]
        took = time.process_time() - start
        print(f"{sum(found.states for found in walks):>9,} states {took:6.1f} s  {name}", flush=True)
        if bad := [found for found in walks if found.problem is not None]:
            broken += 1
            shortest = min(bad, key=lambda found: len(found.trace))
            print(
                f"  {shortest.problem}, after {len(shortest.trace)} moves:", *shortest.trace, sep="\n    ", flush=True
            )
    return broken


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
