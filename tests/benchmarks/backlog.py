"""Measures a complete relay process that relays a database's backlog of rows to Kafka.

The relay encodes Avro and publishes exactly once, with checkpoints. A rate is the number of rows over the time between
the first and the last one that a read_committed reader can read; the CPU time is that of the relay's process meanwhile.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import orjson
import yaml
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from relay.errors import RelayError
from relay.process.managed import ManagedProcess
from relay.services.mariadb import MariaDB
from tests.benchmarks.harness import Benchmark, count_committed, median

TABLE = "item"
SCHEMA = (
    f"create table {TABLE} (id bigint not null, owner int not null, price decimal(10,2), note varchar(200), "
    "primary key (id))"
)
PARTITIONS = 6
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Run:
    """Rows per second, and CPU microseconds per row, of the process and of the machine."""

    rate: float
    cpu: float
    machine: float
    expected: int
    seen: int

    @classmethod
    def between(cls, first: Sample, last: Sample, expected: int, seen: int) -> Self:
        """Return the figures from one sample to another one."""
        rows = last.rows - first.rows
        return cls(
            rate=rows / (last.at - first.at),
            cpu=(last.cpu - first.cpu) / rows * 1e6,
            machine=(last.busy - first.busy) / rows * 1e6,
            expected=expected,
            seen=seen,
        )


def fill(mariadb: MariaDB, database: str, first: int, rows: int, transactions: int) -> int:
    """Insert rows of 200 bytes, with ids from ``first``, as fast as the database can. Return their number."""
    count = rows * transactions
    statement = (
        f"BEGIN NOT ATOMIC DECLARE i BIGINT DEFAULT {first}; WHILE i < {first + count} DO "
        f"INSERT INTO {TABLE} SELECT i + seq, seq % 7, (i + seq) / 100, repeat('abcdefghij', 18) "
        f"FROM seq_0_to_{rows - 1}; SET i = i + {rows}; END WHILE; END"
    )
    with closing(mariadb.connect(database=database)) as connection:
        connection.cursor().execute(statement)
    return count


def relayed(servers: str, folder: Path, source: Mapping[str, Any], expected: int) -> Run:
    """Relay the backlog of one ``source``, an entry of a config without its name and tables."""
    name = f"bench-{secrets.token_hex(4)}"
    topic = f"{name}.{TABLE}"
    path = folder / f"{name}.yaml"
    kafka = {"bootstrap_servers": servers, "partitions": PARTITIONS}
    path.write_text(
        yaml.safe_dump({"name": name, "kafka": kafka, "sources": [{"name": "s", "tables": [TABLE], **source}]})
    )
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    process = ManagedProcess(
        [sys.executable, "-m", "relay.cli", "run", str(path), "--until-caught-up"],
        folder / f"{name}.log",
        {"RELAY_STATE": str(folder / "state")},
    )
    with closing(Watch(servers, topic, expected, process)) as watch:
        process.start()
        watch.start()
        code = process.process.wait(600)
        if code:
            raise RelayError(f"the relay ended with {code}: {process.log_tail()}")
        first, last = watch.ends()
    seen = count_committed({"bootstrap.servers": servers}, topic)
    admin.delete_topics([topic])[topic].result(30)
    return Run.between(first, last, expected, seen)


def counted(python: str, script: str, *arguments: str, expected: int) -> Run:
    """Run a script that counts rows and prints ``{"rows", "seconds", "cpu"}``."""
    busy = _busy()
    done = subprocess.run(
        [python, str(HERE / script), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
    )
    if done.returncode:
        raise RelayError(f"{script} ended with {done.returncode}: {done.stderr[-2000:]}")
    found = orjson.loads(done.stdout)
    rows = found["rows"]
    return Run(rows / found["seconds"], found["cpu"] / rows * 1e6, (_busy() - busy) / rows * 1e6, expected, rows)


def benchmark(name: str, runs: Mapping[str, list[Run]], note: str, *, ours: str, yardstick: str) -> Benchmark:
    """Return the figures of ``runs``, at least two of each contender."""
    rate = {contender: median([one.rate for one in of]) for contender, of in runs.items()}
    costs = "; ".join(
        f"{contender} {rate[contender]:.0f} rows/s, {median([one.cpu for one in of]):.1f} us of its own CPU and "
        f"{median([one.machine for one in of]):.0f} of the machine's for each row"
        for contender, of in runs.items()
    )
    return Benchmark(
        name=name,
        figure=rate[ours],
        yardstick=rate[yardstick],
        unit="rows/s",
        ratio=rate[ours] / rate[yardstick],
        expected=sum(one.expected for of in runs.values() for one in of),
        seen=sum(one.seen for of in runs.values() for one in of),
        aa=runs[yardstick][-1].rate / runs[yardstick][0].rate,
        note=f"{note}; {costs}; median of {len(runs[ours])}",
    )


@dataclass(frozen=True)
class Sample:
    """Monotonic time, rows that can be read, CPU seconds of the contender and of the machine so far."""

    at: float
    rows: int
    cpu: float
    busy: float


class Watch(threading.Thread):
    """Watches how far a read_committed reader can read, and the CPU time used."""

    def __init__(self, servers: str, topic: str, expected: int, process: ManagedProcess) -> None:
        super().__init__(daemon=True)
        self._consumer = Consumer(
            {"bootstrap.servers": servers, "group.id": f"{topic}.watch", "isolation.level": "read_committed"}
        )
        self._partitions = [TopicPartition(topic, p) for p in range(PARTITIONS)]
        self._process = process
        self._expected = expected
        self._samples: list[Sample] = []
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.is_set():
            rows = self._rows()
            if rows and (not self._samples or rows > self._samples[-1].rows):
                self._samples.append(Sample(time.monotonic(), rows, cpu_seconds(self._process.pid), _busy()))
            time.sleep(0.02)

    def _rows(self) -> int:
        try:
            return sum(self._consumer.get_watermark_offsets(each, timeout=10)[1] for each in self._partitions)
        except KafkaException as error:
            if error.args[0].code() not in (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError._UNKNOWN_PARTITION):
                raise
            return 0  # the topic is new

    @property
    def is_complete(self) -> bool:
        """Whether all rows can be read."""
        return bool(self._samples) and self._samples[-1].rows >= self._expected

    def close(self) -> None:
        self._done.set()
        if self.ident is not None:
            self.join()
        self._consumer.close()

    def ends(self) -> tuple[Sample, Sample]:
        """Return the first sample with any rows, and the first with all rows."""
        if len(self._samples) < 2:
            raise RelayError("nothing came, or all at once")
        last = next((sample for sample in self._samples if sample.rows >= self._expected), self._samples[-1])
        return self._samples[0], last


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _busy() -> float:
    """Return the CPU seconds that the machine has used."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    idle = int(fields[3]) + int(fields[4])
    return (sum(map(int, fields[:8])) - idle) / os.sysconf("SC_CLK_TCK")
