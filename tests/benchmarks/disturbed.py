"""Measures how soon a committed row can be read from its topic while other work takes a core, and while workers change.

200 rows a second through vtgate into a Vitess of four shards, as in ``vstream_latency``. The first phase has one worker
and nothing beside it, and is the yardstick. In the second one something else keeps one core busy. In the third a second
worker joins and leaves several times: each change of the group moves shards, whose rows wait meanwhile.
"""

from __future__ import annotations

import math
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import yaml
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from relay.avro.decode import decode
from relay.avro.registry import open_schemas
from relay.config import load
from relay.errors import RelayError
from relay.process.managed import ManagedProcess
from relay.services.vitess import Vitess
from tests.benchmarks.harness import Benchmark, median
from tests.benchmarks.publish_latency import PARTITIONS, Arrivals
from tests.benchmarks.vstream_latency import KEYSPACE, RATE, SCHEMA, SHARDS, TABLE, VSCHEMA, Times
from tests.services.brokers import OptimisedBroker

SECONDS = 20
WARM_UP = 20  # seconds, not counted, in which the JVM of a new broker compiles its code
CHANGES = 4  # times that the second worker joins, and leaves
SETTLES = 3.0  # seconds after the last worker has taken over, in which a change of the group ends
SPIN = "import os\nos.sched_setaffinity(0, {1})\nwhile True: pass"
"""Keeps a core busy until it is stopped."""
_LONGEST = 60.0  # seconds


def run() -> list[Benchmark]:
    vitess = Vitess(keyspaces={KEYSPACE: SHARDS}, schemas={KEYSPACE: (SCHEMA, VSCHEMA)})
    with OptimisedBroker() as broker, vitess, tempfile.TemporaryDirectory() as folder:
        os.environ["RELAY_STATE"] = folder
        name = f"bench-{secrets.token_hex(4)}"
        topic, servers = f"{name}.{TABLE}", broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
        path = Path(folder) / "relay.yaml"
        source = {"name": "s", "type": "vitess", "vtgate": vitess.vtgate, "keyspace": KEYSPACE, "tables": [TABLE]}
        kafka = {"bootstrap_servers": servers, "partitions": PARTITIONS}
        path.write_text(yaml.safe_dump({"name": name, "kafka": kafka, "sources": [source]}))
        with closing(_Writer(vitess)) as writer, closing(_Workers(path)) as workers:
            workers.start("first")
            arrivals = Arrivals(servers, topic)
            writer.write_until(lambda: len(arrivals) > 20)
            writer.write_for(WARM_UP)
            alone = writer.write_for(SECONDS)
            workers.run("busy", "-c", SPIN)
            busy = writer.write_for(SECONDS)
            workers.stop("busy")
            joined, left = [], []
            for _ in range(CHANGES):
                workers.start("second")
                joined.append(writer.write_for(SETTLES, workers.has_taken_over("second")))
                workers.signal("second")
                left.append(writer.write_for(SETTLES, workers.has_taken_over("first")))
                workers.stop("second")
            found = arrivals.stop(sys.maxsize)  # with all that comes within 10 s
        with closing(open_schemas(load(path))) as schemas:
            read: Times = {}
            for at, value in found:
                read.setdefault(decode(schemas, value)["new"]["id"], at)
    written = writer.acknowledged

    def latencies(rows: Sequence[int]) -> list[float]:
        return [(read[row] - written[row]) * 1000 for row in rows if row in read]

    quiet = latencies(alone)
    stalls = {how: [max(latencies(rows)) for rows in of] for how, of in (("joins", joined), ("leaves", left))}
    half = len(quiet) // 2
    notes = {
        "busy": (latencies(busy), "one core kept busy by something else; aims 14 and 40"),
        "rebalance": (
            latencies([row for rows in joined for row in rows]),
            "longest wait of a row as a second worker "
            + ", as it ".join(f"{how} {', '.join(f'{stall:.0f}' for stall in of)} ms" for how, of in stalls.items())
            + "; aim 500",
        ),
    }
    return [
        Benchmark(
            name=f"disturbed_{how}",
            figure=_p99(of),
            yardstick=_p99(quiet),
            unit="ms p99, commit to reader",
            ratio=_p99(of) / _p99(quiet),
            expected=len(written),
            seen=len(read.keys() & written.keys()),
            aa=_p99(quiet[half:]) / _p99(quiet[:half]),
            note=(
                f"{RATE:.0f} rows/s, {len(SHARDS)} shards; p50 {median(of):.1f} ms; yardstick the phase before, p50 "
                f"{median(quiet):.1f} ms; {note}"
            ),
        )
        for how, (of, note) in notes.items()
    ]


def _p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


class _Workers:
    """Processes by their names. ``path``: of the workers' config."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._running: dict[str, ManagedProcess] = {}

    def start(self, name: str) -> None:
        self.run(name, "-m", "relay.cli", "run", str(self.path))

    def run(self, name: str, *arguments: str) -> None:
        """Run Python."""
        process = ManagedProcess([sys.executable, *arguments], self.path.parent / f"{name}.log")
        process.start()
        self._running[name] = process

    def has_taken_over(self, name: str) -> Callable[[], bool]:
        """Return what says whether ``name`` has taken over shards since now."""
        log, said = self.path.parent / f"{name}.log", b"took over"
        before = log.read_bytes().count(said)
        return lambda: log.read_bytes().count(said) > before

    def signal(self, name: str) -> None:
        """Let it end by itself."""
        self._running[name].process.terminate()

    def stop(self, name: str) -> None:
        self._running.pop(name).stop(20.0)

    def close(self) -> None:
        for process in self._running.values():
            process.stop(20.0)


class _Writer:
    """Inserts rows at ``RATE``. ``acknowledged``: when each was committed."""

    def __init__(self, vitess: Vitess) -> None:
        self._connection = vitess.connect(KEYSPACE)
        self._cursor = self._connection.cursor()
        self.acknowledged: Times = {}

    def write_for(self, seconds: float, after: Callable[[], bool] = lambda: True) -> list[int]:
        """Write until ``seconds`` after ``after()`` is true. Return the ids of the rows."""
        first, begun, end = len(self.acknowledged), time.monotonic(), math.inf
        while (now := time.monotonic()) < end:
            if end == math.inf and after():
                end = now + seconds
            elif now > begun + _LONGEST:
                raise RelayError(f"nothing was taken over in {_LONGEST} s")
            row = len(self.acknowledged)
            time.sleep(max(0.0, begun + (row - first) / RATE - now))
            self._insert(row)
            self.acknowledged[row] = time.time()
        return list(range(first, len(self.acknowledged)))

    def write_until(self, done: Callable[[], bool]) -> None:
        """Write rows with other ids: a relay begins at the current positions of its shards, once it has started."""
        for number in range(1, 601):
            self._insert(-number)
            time.sleep(0.05)
            if done():
                return
        raise RelayError("the relay reads nothing")

    def _insert(self, row: int) -> None:
        self._cursor.execute(f"insert into {TABLE} (id, price, note) values (%s, %s, %s)", (row, "1.25", "x" * 180))

    def close(self) -> None:
        self._connection.close()
