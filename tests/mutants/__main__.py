"""``python -m tests.mutants [I6 ...] [name ...]``: plays the mutants of the catalogue; see the README beside this."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence

from tests.mutants.catalogue import INVARIANTS, CatalogueError, chosen, load
from tests.mutants.play import BaselineFailed, Fate, Verdict, play


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description="Play the mutants of the catalogue.")
    parser.add_argument("wanted", nargs="*", help="invariants (I6) or names of mutants; all by default")
    parser.add_argument("--jobs", type=int, default=2, help="how many are played at once (default: 2)")
    parser.add_argument("--list", action="store_true", help="only print the names")
    options = parser.parse_args(arguments)
    try:
        mutants = chosen(load(), options.wanted)
        if options.list:
            for mutant in mutants:
                print(f"{mutant.invariant:<4}{mutant.name:<52} {mutant.file}\n      {mutant.wrong}")
            return 0
        verdicts = play(mutants, _print, jobs=max(1, options.jobs))
    except (CatalogueError, BaselineFailed) as error:
        print(error, file=sys.stderr)
        return 1
    fates = Counter((verdict.mutant.invariant, verdict.fate is Fate.KILLED) for verdict in verdicts)
    print()
    for invariant in INVARIANTS:
        killed, left = fates[invariant, True], fates[invariant, False]
        if killed or left:
            print(f"{invariant:<4}{killed:>3} killed" + (f", {left} NOT" if left else ""))
    return 0 if all(verdict.fate is Fate.KILLED for verdict in verdicts) else 1


def _print(verdict: Verdict) -> None:
    mutant = verdict.mutant
    by = verdict.by.rpartition("::")[2] if verdict.fate is Fate.KILLED else f"{verdict.fate} {verdict.by}"
    print(f"{mutant.invariant:<4}{mutant.name:<52} {mutant.file:<36} {verdict.seconds:>4.0f} s  {by}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
