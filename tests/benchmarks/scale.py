"""Relays one backlog from 1 to 4,096 shards, from 1 to 200 tables, by 1 to 4 workers: CPU for each record and memory.

The backlog is in at most 64 shards; the others are closed and have no records. A relay that finds a single record in as
many shards says what the start, the shards and the end take, which is subtracted. The yardstick is one table with 8
shards and one worker.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import orjson
import yaml

from relay.errors import RelayError
from tests.benchmarks.harness import Benchmark, count_committed
from tests.benchmarks.service import CREDENTIALS, serving
from tests.benchmarks.stream_service import answer as backlog
from tests.benchmarks.stream_service import table
from tests.services.brokers import OptimisedBroker

RECORDS = 128_000
BUSY = 64  # shards with records, at most
PAGE = 1000  # records, at most
ROUNDS = 2
# A process between, since the peak of a process' memory begins with that of the one that starts it.
_WITNESS = """
import json, resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([code, used.ru_utime + used.ru_stime, used.ru_maxrss]))
"""
_NAME = re.compile(rb"t\d+b(\d+)(s\d+p\d+r\d+)")


@dataclass(frozen=True)
class Shape:
    """What is relayed: ``shards`` are those of all tables."""

    shards: int
    tables: int = 1
    workers: int = 1

    @property
    def name(self) -> str:
        return f"{self.shards} shards, {self.tables} tables, {self.workers} workers"


USUAL = Shape(8)
SHAPES = (
    *(Shape(shards) for shards in (1, 8, 64, 512, 4096)),
    *(Shape(tables, tables) for tables in (10, 200)),
    *(Shape(64, workers=workers) for workers in (2, 3, 4)),
)


@dataclass(frozen=True)
class Relayed:
    """CPU seconds, peak megabytes of the largest process, seconds from the start to the exit."""

    cpu: float
    memory: float
    taken: float
    expected: int
    seen: int


def answer(request: bytes) -> bytes:
    """Answer for tables ``t<number>b<shards with records>s<shards>p<pages>r<records in a page>``."""
    asked = orjson.loads(request)
    if asked.get("ShardIterator") == "end":
        return b'{"Records":[]}'
    if (found := _NAME.search(request)) is None:
        return backlog(request)
    if "ShardIteratorType" in asked and int(asked["ShardId"][-4:]) >= int(found[1]):
        return b'{"ShardIterator":"end"}'
    return backlog(request.replace(found[0], found[2])).replace(found[2], found[0])


def run() -> list[Benchmark]:
    os.environ |= {name.upper(): value for name, value in CREDENTIALS.items()}
    broker, temporary = OptimisedBroker(), tempfile.TemporaryDirectory()
    with broker, serving(answer, core=None) as url, temporary as folder:
        os.environ["RELAY_STATE"] = f"{folder}/state"
        contest = _Shapes(broker.bootstrap_servers, url, Path(folder))
        yardstick, again = contest.cost(USUAL), contest.cost(USUAL)
        return [contest.benchmark(shape, yardstick, again) for shape in SHAPES]


class _Shapes:
    def __init__(self, servers: str, url: str, folder: Path) -> None:
        self.servers, self.url, self.folder = servers, url, folder

    def benchmark(self, shape: Shape, yardstick: float, again: float) -> Benchmark:
        bare, full = self.least(shape, records=1), self.least(shape, records=RECORDS)
        figure = _per_record(bare, full)
        return Benchmark(
            name=f"scale, {shape.name}",
            figure=figure,
            yardstick=yardstick,
            unit="us of CPU a record",
            ratio=figure / yardstick,
            expected=full.expected,
            seen=full.seen,
            aa=again / yardstick,
            note=(
                f"with one record {bare.cpu:.1f} CPU seconds, {bare.taken:.1f} s from the start to the exit, "
                f"{bare.memory:.0f} MB at the peak of the largest process; with all of them {full.memory:.0f} MB; "
                f"least of {ROUNDS}; yardstick {USUAL.name}"
            ),
        )

    def cost(self, shape: Shape) -> float:
        return _per_record(self.least(shape, records=1), self.least(shape, records=RECORDS))

    def least(self, shape: Shape, records: int) -> Relayed:
        return min((self._relay(shape, records) for _ in range(ROUNDS)), key=lambda relayed: relayed.cpu)

    def _relay(self, shape: Shape, records: int) -> Relayed:
        run, shards = f"bench-{secrets.token_hex(4)}", shape.shards // shape.tables
        busy, tables = min(BUSY, shards), shape.tables
        if records == 1:
            busy, pages, size = 1, 1, 1
        else:
            pages = -(-records // (busy * tables * PAGE))
            size = records // (busy * tables * pages)
        names = [f"t{number}b{busy}{table(shards, pages, size)}" for number in range(tables)]
        entry = {"name": "s", "type": "dynamodb", "tables": names, "region": "us-east-1", "endpoint_url": self.url}
        kafka = {"bootstrap_servers": self.servers, "partitions": 2}
        path = self.folder / f"{run}.yaml"
        path.write_text(yaml.safe_dump({"name": run, "kafka": kafka, "sources": [entry]}))
        with urllib.request.urlopen(self.url, orjson.dumps({"Prepare": table(1, 1, 1)}), timeout=60):
            """Forget the pages of the last run."""
        command = [sys.executable, "-m", "relay.cli", "run", str(path), "--until-caught-up"]
        command += ["--workers", str(shape.workers)]
        log, begun = self.folder / f"{run}.log", time.monotonic()
        with log.open("wb") as errors:
            witness = [sys.executable, "-c", _WITNESS, *command]
            printed = subprocess.run(witness, stdout=subprocess.PIPE, stderr=errors, check=True).stdout
        taken = time.monotonic() - begun
        code, cpu, peak = orjson.loads(printed)
        if code:
            raise RelayError(f"{shape.name}: ended with {code}: {log.read_text()[-2000:]}")
        count = partial(count_committed, {"bootstrap.servers": self.servers})
        with ThreadPoolExecutor(16) as threads:  # each waits for a second at the end of its topic
            seen = sum(threads.map(count, [f"{run}.{name}" for name in names]))
        return Relayed(cpu, peak / 1024, taken, busy * tables * pages * size, seen)


def _per_record(bare: Relayed, full: Relayed) -> float:
    return (full.cpu - bare.cpu) / (full.expected - bare.expected) * 1e6
