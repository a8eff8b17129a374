"""The backlog of one Vitess shard to Kafka by a whole relay process, against a bare gRPC client that only counts.

Rows of 200 bytes, inserted in transactions of 1 row and of 100. The relay encodes Avro and publishes exactly once, with
checkpoints; vtgate, the database below it and the broker share the machine's cores with it. A figure is rows by the
time between the first and the last that a read_committed reader could have; CPU is that of the relay's process in it.
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
from dataclasses import dataclass
from pathlib import Path

import orjson
import yaml
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from relay.errors import RelayError
from relay.local.kafka import KafkaBroker
from relay.local.process import ManagedProcess
from relay.local.vitess import Vitess, database
from tests.benchmarks.harness import Benchmark, count_committed, median

KEYSPACE, SHARD, TABLE = "bench", "0", "item"
SCHEMA = (
    f"create table {TABLE} (id bigint not null, owner int not null, price decimal(10,2), note varchar(200), "
    "primary key (id))"
)
# Transactions by their rows.
BACKLOGS = {1: 160_000, 100: 6_000}
ROUNDS = 2
PARTITIONS = 6
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Run:
    """Rows a second, and CPU microseconds for each row: of the process, and of the whole machine."""

    rate: float
    cpu: float
    machine: float
    expected: int
    seen: int


def run() -> list[Benchmark]:
    vitess = Vitess(keyspaces={KEYSPACE: (SHARD,)}, schemas={KEYSPACE: (SCHEMA, {"tables": {TABLE: {}}})})
    with KafkaBroker() as broker, vitess, tempfile.TemporaryDirectory() as folder:
        contest = Contest(broker.bootstrap_servers, vitess, Path(folder))
        return [contest.benchmark(rows, transactions) for rows, transactions in BACKLOGS.items()]


class Contest:
    def __init__(self, bootstrap_servers: str, vitess: Vitess, folder: Path) -> None:
        self.servers, self.vitess, self.folder = bootstrap_servers, vitess, folder
        self._first = 0

    def benchmark(self, rows: int, transactions: int) -> Benchmark:
        position = self.vitess.position
        expected = self._fill(rows, transactions)
        runs: dict[str, list[Run]] = {"relay": [], "raw": []}
        for _ in range(ROUNDS):
            runs["raw"].append(self._raw(position, expected))
            runs["relay"].append(self._relay(position, expected))
        rate = {name: median([one.rate for one in of]) for name, of in runs.items()}
        cpu = {name: median([one.cpu for one in of]) for name, of in runs.items()}
        return Benchmark(
            name=f"vstream_{rows}",
            figure=rate["relay"],
            yardstick=rate["raw"],
            unit="rows/s",
            ratio=rate["relay"] / rate["raw"],
            expected=sum(one.expected for of in runs.values() for one in of),
            seen=sum(one.seen for of in runs.values() for one in of),
            aa=runs["raw"][-1].rate / runs["raw"][0].rate,
            note=(
                f"transactions of {rows} rows; yardstick a bare gRPC client that only counts; CPU for each row: relay "
                f"{cpu['relay']:.1f}, bare client {cpu['raw']:.1f} us; of the whole machine with the relay "
                f"{median([one.machine for one in runs['relay']]):.0f}, with the bare client "
                f"{median([one.machine for one in runs['raw']]):.0f} us; median of {ROUNDS}"
            ),
        )

    def _fill(self, rows: int, transactions: int) -> int:
        """Insert, below Vitess, as fast as the database takes it. Return the number of rows."""
        first, count = self._first, rows * transactions
        self._first += count
        statement = (
            f"BEGIN NOT ATOMIC DECLARE i BIGINT DEFAULT {first}; WHILE i < {first + count} DO "
            f"INSERT INTO {TABLE} SELECT i + seq, seq % 7, (i + seq) / 100, repeat('abcdefghij', 18) "
            f"FROM seq_0_to_{rows - 1}; SET i = i + {rows}; END WHILE; END"
        )
        with closing(self.vitess.mariadb.connect(database=database(KEYSPACE, SHARD))) as connection:
            connection.cursor().execute(statement)
        return count

    def _raw(self, position: str, expected: int) -> Run:
        arguments = [self.vitess.vtgate, KEYSPACE, SHARD, position, TABLE, str(expected)]
        busy = _busy()
        done = subprocess.run(
            [sys.executable, str(HERE / "yardstick_vstream.py"), *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        )
        if done.returncode:
            raise RelayError(f"the bare client ended with {done.returncode}: {done.stderr[-2000:]}")
        found = orjson.loads(done.stdout)
        rows = found["rows"]
        return Run(rows / found["seconds"], found["cpu"] / rows * 1e6, (_busy() - busy) / rows * 1e6, expected, rows)

    def _relay(self, position: str, expected: int) -> Run:
        name = f"bench-{secrets.token_hex(4)}"
        topic = f"{name}.{TABLE}"
        path = self.folder / f"{name}.yaml"
        source = {"name": "s", "type": "vitess", "vtgate": self.vitess.vtgate, "keyspace": KEYSPACE}
        source |= {"tables": [TABLE], "tablet_type": "primary", "start": {"vgtid": [{"shard": SHARD, "gtid": position}]}}
        kafka = {"bootstrap_servers": self.servers, "partitions": PARTITIONS}
        path.write_text(yaml.safe_dump({"name": name, "kafka": kafka, "sources": [source]}))
        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
        process = ManagedProcess(
            [sys.executable, "-m", "relay.cli", "run", str(path), "--until-caught-up"],
            self.folder / f"{name}.log",
            {"RELAY_STATE": str(self.folder / "state")},
        )
        with closing(Watch(self.servers, topic, expected, process)) as watch:
            process.start()
            watch.start()
            code = process.process.wait(600)
            if code:
                raise RelayError(f"the relay ended with {code}: {process.log_tail()}")
            first, last = watch.ends()
        seen = count_committed({"bootstrap.servers": self.servers}, topic)
        admin.delete_topics([topic])[topic].result(30)
        rows = last.rows - first.rows
        return Run(
            rows / (last.at - first.at),
            (last.cpu - first.cpu) / rows * 1e6,
            (last.busy - first.busy) / rows * 1e6,
            expected,
            seen,
        )


@dataclass(frozen=True)
class Sample:
    """When, by the monotonic clock, how many rows could be read; CPU seconds of the relay and of the machine so far."""

    at: float
    rows: int
    cpu: float
    busy: float


class Watch(threading.Thread):
    """Looks how far a read_committed reader could read, and what that has cost."""

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
                self._samples.append(Sample(time.monotonic(), rows, _cpu(self._process.pid), _busy()))
            time.sleep(0.02)

    def _rows(self) -> int:
        try:
            return sum(self._consumer.get_watermark_offsets(each, timeout=10)[1] for each in self._partitions)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                raise
            return 0  # the topic is new

    def close(self) -> None:
        self._done.set()
        if self.ident is not None:
            self.join()
        self._consumer.close()

    def ends(self) -> tuple[Sample, Sample]:
        """Return the first sample with rows, and the first with all of them."""
        if len(self._samples) < 2:
            raise RelayError("nothing came, or all at once")
        last = next((sample for sample in self._samples if sample.rows >= self._expected), self._samples[-1])
        return self._samples[0], last


def _cpu(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _busy() -> float:
    """Return the CPU seconds that the whole machine has used."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    idle = int(fields[3]) + int(fields[4])
    return (sum(map(int, fields[:8])) - idle) / os.sysconf("SC_CLK_TCK")
