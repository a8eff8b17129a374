"""Measures how soon a committed row can be read from its topic while the rate is a half of what the machine can do.

Rows of 200 bytes in transactions of 1 row, in a MariaDB that commits in bursts of 10 ms. Each row carries the time at
which the server began to insert it; every 20th is decoded. The server, the broker, the relay and the reader share the
machine's cores. The relay reads a backlog faster than a server can commit, so the highest rate is the server's, while
the relay follows it. Then it follows the half. The yardstick is our binlog reader alone, without Kafka, at the same
rate: nothing that comes after it can be sooner.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import yaml
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from relay.avro.decode import decode
from relay.avro.registry import open_schemas
from relay.config import load
from relay.errors import RelayError
from relay.process.managed import ManagedProcess
from relay.services.mariadb import PASSWORD, USER, MariaDB
from tests.benchmarks.backlog import PARTITIONS, TABLE, cpu_seconds, relayed
from tests.benchmarks.harness import Benchmark, median
from tests.services.brokers import OptimisedBroker

DATABASE = "bench"
SCHEMA = f"create table {DATABASE}.{TABLE} (id bigint not null, at bigint, note varchar(200), primary key (id))"
BURST = (
    "create procedure burst(first bigint, count bigint) begin declare i bigint default first; "
    f"while i < first + count do insert into {TABLE} values "
    "(i, floor(unix_timestamp(sysdate(6)) * 1000000), repeat('abcdefghij', 18)); set i = i + 1; end while; end"
)
BACKLOG = 100_000
SHARE, LOW = 0.5, 0.05
SECONDS = 20
WARM_UP = 5  # seconds, not counted
EVERY = 0.01  # seconds between two bursts
DECODED = 20


def run() -> list[Benchmark]:
    with OptimisedBroker() as broker, MariaDB() as mariadb, tempfile.TemporaryDirectory() as folder:
        os.environ["RELAY_STATE"] = f"{folder}/state"
        mariadb.execute(f"create database {DATABASE}")
        mariadb.execute(SCHEMA)
        contest = _Contest(mariadb, broker.bootstrap_servers, Path(folder))
        with closing(mariadb.connect(database=DATABASE)) as connection:
            connection.cursor().execute(BURST)
            backlog = contest.most(connection.cursor())
            most = contest.follow(connection.cursor(), backlog)
            low, half, again = (contest.follow(connection.cursor(), most.rate * share) for share in (LOW, SHARE, SHARE))
            alone_most, alone = (contest.alone(connection.cursor(), each.rate) for each in (most, half))

    def result(name: str, followed: _Followed, yardstick: float, note: str) -> Benchmark:
        return Benchmark(
            name=name,
            figure=followed.p99,
            yardstick=yardstick,
            unit="ms p99, commit to reader",
            ratio=followed.p99 / yardstick,
            expected=contest.written,
            seen=contest.seen,
            aa=again.p99 / half.p99,
            note=note,
        )

    of_half = f"{SHARE:.0%} of what the server commits: {half.text}; aim 100; {LOW:.0%}: {low.text}"
    of_most = f"as much as the server commits: {most.text}; of a backlog {backlog:.0f} rows/s"
    return [result("saturation", half, alone, of_half), result("saturation_most", most, alone_most, of_most)]


def p99(latencies: list[float]) -> float:
    return sorted(latencies)[int(len(latencies) * 0.99)]


class _Followed:
    """What one rate gave. ``latencies``: in ms. ``cores``: how much of one the process took."""

    def __init__(self, latencies: list[float], rate: float, cores: float) -> None:
        self.rate = rate
        self.p99 = p99(latencies)
        self.text = (
            f"{rate:.0f} committed, p50 {median(latencies):.1f}, p99 {self.p99:.1f}, longest {max(latencies):.0f} ms, "
            f"{cores:.2f} of a core"
        )


class _Contest:
    def __init__(self, mariadb: MariaDB, servers: str, folder: Path) -> None:
        self.mariadb, self.servers, self.folder = mariadb, servers, folder
        self.admin = AdminClient({"bootstrap.servers": servers})
        self.written = self.seen = 0
        self._next = 0

    def _source(self) -> dict[str, Any]:
        """Return a source that begins here."""
        return {
            "type": "mysql",
            "shards": {"-": [self.mariadb.address]},
            "database": DATABASE,
            "user": USER,
            "password": PASSWORD,
            "start": {"gtid": {"-": f"MariaDB/{self.mariadb.gtid}"}},
        }

    def most(self, cursor: Any) -> float:
        """Return the rows per second of a backlog, in the better of two rounds: the first warms up the broker."""
        source = self._source()
        self._burst(cursor, BACKLOG)
        return max(relayed(self.servers, self.folder, source, BACKLOG).rate for _ in range(2))

    def follow(self, cursor: Any, rate: float) -> _Followed:
        """Write ``rate`` rows a second while a new relay follows."""
        name, first = f"bench-{secrets.token_hex(4)}", self._next
        topic, path = f"{name}.{TABLE}", self.folder / f"{name}.yaml"
        self.admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
        kafka = {"bootstrap_servers": self.servers, "partitions": PARTITIONS}
        source = {"name": "s", "tables": [TABLE], **self._source()}
        path.write_text(yaml.safe_dump({"name": name, "kafka": kafka, "sources": [source]}))
        relay = ManagedProcess([sys.executable, "-m", "relay.cli", "run", str(path)], self.folder / f"{name}.log")
        relay.start()
        try:
            with closing(_Reader(self.servers, topic)) as reader:
                self._burst(cursor, 1)
                reader.wait_for(1)
                self._write(cursor, rate, WARM_UP)
                counted, begun, cpu = self._next, time.monotonic(), cpu_seconds(relay.pid)
                self._write(cursor, rate, SECONDS)
                took, cores = time.monotonic() - begun, cpu_seconds(relay.pid) - cpu
                reader.wait_for(self._next - first)
        finally:
            relay.stop(20.0)
        self.written += self._next - first
        self.seen += reader.count
        with closing(open_schemas(load(path))) as schemas:
            rows = [(at, decode(schemas, value)["new"]) for at, value in reader.sampled]
        latencies = [at * 1000 - row["at"] / 1000 for at, row in rows if row["id"] >= counted]
        return _Followed(latencies, (self._next - counted) / took, cores / took)

    def alone(self, cursor: Any, rate: float) -> float:
        """Write ``rate`` rows a second while only the binlog reader follows. Return the p99 of its latencies, in ms."""
        first, rows = self._next, int(rate * (WARM_UP + SECONDS))
        port, skipped = self.mariadb.address.rpartition(":")[2], int(rate * WARM_UP)
        script = [sys.executable, "-m", "tests.benchmarks.follow_binlog"]
        settings = [port, USER, PASSWORD, DATABASE, self.mariadb.gtid, str(rows), str(skipped)]
        with subprocess.Popen([*script, *settings], stdout=subprocess.PIPE) as process:
            self._write(cursor, rate, WARM_UP + SECONDS)
            self._burst(cursor, rows - (self._next - first))
            return p99(orjson.loads(process.communicate(timeout=120)[0]))

    def _write(self, cursor: Any, rate: float, seconds: float) -> None:
        begun, first = time.monotonic(), self._next
        while (now := time.monotonic() - begun) < seconds:
            due = int(now * rate) - (self._next - first)
            self._burst(cursor, min(due, int(2 * EVERY * rate)))
            time.sleep(max(0.0, EVERY - (time.monotonic() - begun - now)))

    def _burst(self, cursor: Any, rows: int) -> None:
        if rows > 0:
            cursor.execute(f"call burst({self._next}, {rows})")
            self._next += rows


class _Reader(threading.Thread):
    """Counts what a read_committed reader has, and keeps every ``DECODED``th value with the time when it came."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self.sampled: list[tuple[float, bytes]] = []
        self._consumer = Consumer(
            {"bootstrap.servers": servers, "group.id": f"{topic}.latency", "auto.offset.reset": "earliest"}
        )
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        self._done = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._done.is_set():
            for message in [self._consumer.poll(0.1), *self._consumer.consume(10_000, 0)]:
                if message is None or message.error() is not None:
                    continue
                self.count += 1
                if self.count % DECODED == 0:
                    self.sampled.append((time.time(), message.value() or b""))

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + 120
        while self.count < count:
            if time.monotonic() > deadline:
                raise RelayError(f"{self.count} of {count} rows came")
            time.sleep(0.05)

    def close(self) -> None:
        self._done.set()
        self.join()
        self._consumer.close()
