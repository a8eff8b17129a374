"""Compares the CPU time of each hot path of the relay with that of another commit: BASE=main~3, or the newest commit.

Absolute figures of one commit differ by half within minutes on a shared machine, so none is kept. Both trees run in
turns instead, in processes of their own on one core, and the least time of each path counts: a neighbour makes a turn
slower, never faster. The base runs twice in each round; the second one is the A/A control. A path that takes 10 % more
than the base fails the benchmark.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import orjson

from relay.errors import RelayError
from tests.benchmarks.cpu_sources import ROWS
from tests.benchmarks.harness import Benchmark

ROUNDS = 6
WORSE = 1.10
ROOT = Path(__file__).resolve().parents[2]
STEPS = Path(__file__).with_name("gate_steps.py")


def run() -> list[Benchmark]:
    base = os.environ.get("RELAY_GATE_BASE") or "HEAD"
    with _checked_out(base) as other:
        least: dict[str, dict[str, float]] = {"ours": {}, "base": {}, "again": {}}
        seen: dict[str, int] = {}
        trees = {"ours": ROOT, "base": other, "again": other}
        for _ in range(ROUNDS):
            for name, tree in trees.items():
                for path, (cost, records) in _costs(tree).items():
                    least[name][path] = min(cost, least[name].get(path, cost))
                    seen[path] = seen.get(path, 0) + records
    found = [_benchmark(path, least, seen[path], base) for path in least["base"]]
    for each in found:
        print(each.line(), flush=True)
    if wrong := [each.name for each in found if each.seen != each.expected]:
        raise RelayError(f"another number of records than was fed: {', '.join(wrong)}")
    if slower := [each.name for each in found if each.ratio * WORSE < 1]:
        raise RelayError(f"more than 10 % slower than {base}: {', '.join(slower)}")
    return []


def _benchmark(path: str, least: Mapping[str, Mapping[str, float]], seen: int, name: str) -> Benchmark:
    ours, base, again = (least[tree][path] for tree in ("ours", "base", "again"))
    note = f"against {name}; least of {ROUNDS} processes, each the least of its rounds"
    fed = ROWS * ROUNDS * len(least)
    return Benchmark(f"gate_{path}", ours, base, "us of CPU a record", base / ours, fed, seen, base / again, note)


@contextmanager
def _checked_out(commit: str) -> Iterator[Path]:
    """Yield a folder with the tree of ``commit``, its environment and its compiled core."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "base"
        _git("worktree", "add", "--detach", str(tree), commit)
        try:
            _ran(["make", "--silent", "setup"], tree)
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*arguments: str) -> None:
    _ran(["git", *arguments], ROOT)


def _costs(tree: Path) -> dict[str, tuple[float, int]]:
    """Run the steps with the code of ``tree``: the microseconds of CPU a record, and the records, by path."""
    # -P: not the modules beside the script, but the tree's.
    said = _ran([str(tree / ".venv" / "bin" / "python"), "-P", str(STEPS)], tree)
    return {str(path): (float(cost), int(records)) for path, (cost, records) in orjson.loads(said).items()}


def _ran(command: list[str], tree: Path) -> str:
    changed = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    environment = {**changed, "PYTHONPATH": str(tree), "RELAY_NATIVE": "required"}
    result = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if result.returncode:
        raise RelayError(f"{' '.join(command)} in {tree}: {result.stderr.strip()}")
    return result.stdout
