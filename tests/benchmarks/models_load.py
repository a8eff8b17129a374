"""Loads 100,000 objects, four to a key, into declared classes, against Bloop 3.1.1.

Each contender is a process of its own, which says for each round what processor time it took and what it has loaded.
The growth is the time for all objects divided by that for a tenth of them: 10 is linear.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson

from tests.benchmarks.bloop_environment import bloop_python
from tests.benchmarks.harness import Benchmark, median
from tests.benchmarks.service import serving

OBJECTS = 100_000
EACH = 4
ROUNDS = 4
HERE = Path(__file__).parent


def run() -> Benchmark:
    with serving(answer) as url:
        return _run(url)


def _run(url: str) -> Benchmark:
    python = {"ours": sys.executable, "bloop": bloop_python(), "again": bloop_python()}
    script = {"ours": "load_models.py", "bloop": "yardstick_bloop_load.py", "again": "yardstick_bloop_load.py"}
    contenders = {name: _Contender([python[name], str(HERE / script[name]), url]) for name in python}
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    tenths: dict[str, list[float]] = {name: [] for name in contenders}
    expected = seen = 0
    for number in range(ROUNDS + 1):
        for name, contender in contenders.items():
            for objects, into in ((OBJECTS, taken), (OBJECTS // 10, tenths)):
                seconds, total = contender.load(objects)
                if number:
                    into[name].append(seconds)
                expected += EACH * sum(range(objects // EACH))
                seen += total
    for contender in contenders.values():
        contender.close()
    rate = {name: OBJECTS / median(each) for name, each in taken.items()}
    growth = {name: median(taken[name]) / median(tenths[name]) for name in taken}
    return Benchmark(
        name="models_load",
        figure=rate["ours"],
        yardstick=rate["bloop"],
        unit="objects per second of processor time",
        ratio=rate["ours"] / rate["bloop"],
        expected=expected,
        seen=seen,
        aa=rate["again"] / rate["bloop"],
        note=(
            f"{OBJECTS} objects, {EACH} to a key, items of 300 bytes; yardstick Bloop 3.1.1; ten times the objects "
            f"take {growth['ours']:.1f} times as long (Bloop {growth['bloop']:.1f}); the endpoint in a process of its "
            f"own; median of {ROUNDS}"
        ),
    )


class _Contender:
    """A process that loads as many objects as it is told, pinned to the first core."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def load(self, objects: int) -> tuple[float, int]:
        """Return the processor time it took, in seconds, and the sum of the loaded numbers."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(objects, file=self._process.stdin, flush=True)
        seconds, total = self._process.stdout.readline().split()
        return float(seconds), int(total)

    def close(self) -> None:
        self._process.communicate()


def answer(request: bytes) -> bytes:
    """Answer BatchGetItem with items of about 300 bytes."""
    ((table, asked),) = orjson.loads(request)["RequestItems"].items()
    items = [
        one
        | {
            "version": {"N": one["number"]["N"]},
            "total": {"N": "19.9"},
            "note": {"S": "n" * 150},
            "tags": {"SS": ["green", "red"]},
        }
        for one in asked["Keys"]
    ]
    return orjson.dumps({"Responses": {table: items}, "UnprocessedKeys": {}})
