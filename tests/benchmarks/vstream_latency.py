"""Measures how soon a row committed on a Vitess of four shards can be read from its topic, at 200 rows per second.

From the commit, acknowledged to the writer, to a read_committed reader. A second phase, with two more readers, shows
where the time goes: until a bare gRPC client beside the relay has the row; until the relay passes it to its producer
(``relayed_at``); until a read_uncommitted reader has it; until it is committed and read. The yardstick is the bare
client: the time that Vitess takes.

Two more phases go on while the relay takes a snapshot of another table, with `snapshot_rows_per_second` and without.
Their yardstick is the first phase.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import yaml
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from relay.avro.decode import decode
from relay.avro.registry import open_schemas
from relay.config import load
from relay.errors import RelayError
from relay.process.managed import ManagedProcess
from relay.services.vitess import Vitess, database
from relay.vitess.proto import vtgate_pb2 as pb
from tests.benchmarks.harness import Benchmark, count_committed, median
from tests.benchmarks.publish_latency import PARTITIONS, Arrivals
from tests.services.brokers import OptimisedBroker

KEYSPACE, SHARDS, TABLE = "bench", ("-40", "40-80", "80-c0", "c0-"), "item"
ARCHIVE = "archive"
"""The table of the snapshot."""
SCHEMA = ";".join(
    f"create table {name} (id bigint not null, price decimal(10,2), note varchar(200), primary key (id))"
    for name in (TABLE, ARCHIVE)
)
VSCHEMA = {
    "sharded": True,
    "vindexes": {"hash": {"type": "hash"}},
    "tables": {name: {"column_vindexes": [{"column": "id", "name": "hash"}]} for name in (TABLE, ARCHIVE)},
}
RATE = 200.0
SECONDS = 90
WARM_UP = 60  # seconds, not counted, in which the JVM of a new broker compiles its code
EXPLAINED = 15  # seconds of the second phase
ARCHIVED = 40_000  # rows in each shard
PACES = {"paced": 2000, "full": None}
"""Of the snapshots, in rows a second of each shard."""
MARKS = 2 * PARTITIONS  # the beginning and the end, in every partition
_FILLED_AT_ONCE = 20_000
_SETTLES = 5  # seconds in which a relay that was started again begins to read
_QUIET = 3.0  # seconds without a transaction after which the snapshot has ended
_ROW = 12

Times = dict[int, float]
"""By the id of a row, seconds since the epoch."""


def run() -> list[Benchmark]:
    vitess = Vitess(keyspaces={KEYSPACE: SHARDS}, schemas={KEYSPACE: (SCHEMA, VSCHEMA)})
    with OptimisedBroker() as broker, vitess, tempfile.TemporaryDirectory() as folder:
        os.environ["RELAY_STATE"] = folder
        _fill(vitess)
        name = f"bench-{secrets.token_hex(4)}"
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        for topic in (f"{name}.{TABLE}", f"{name}.{ARCHIVE}"):
            admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
        with closing(Relaying(Path(folder), name, vitess.vtgate, broker.bootstrap_servers)) as relay:
            return _measure(vitess, broker.bootstrap_servers, name, relay)


class Relaying:
    """A relay of the keyspace."""

    def __init__(self, folder: Path, name: str, vtgate: str, servers: str) -> None:
        self.path = folder / "relay.yaml"
        self._source = {"name": "s", "type": "vitess", "vtgate": vtgate, "keyspace": KEYSPACE}
        self._config = {"name": name, "kafka": {"bootstrap_servers": servers, "partitions": PARTITIONS}}
        self._process = ManagedProcess([sys.executable, "-m", "relay.cli", "run", str(self.path)], folder / "log")

    def start(self, pace: int | None) -> None:
        """Start it, again if it is running. ``pace``: rows a second of each table of each shard, None for no limit."""
        self._process.stop(20.0)
        source = self._source | ({} if pace is None else {"snapshot_rows_per_second": pace})
        self.path.write_text(yaml.safe_dump(self._config | {"sources": [source]}))
        self._process.start()

    def close(self) -> None:
        self._process.stop(20.0)


def _fill(vitess: Vitess) -> None:
    """Give every shard as many rows to copy."""
    for number, shard in enumerate(SHARDS):
        with closing(vitess.mariadb.connect(database=database(KEYSPACE, shard))) as connection:
            for first in range(number * ARCHIVED, (number + 1) * ARCHIVED, _FILLED_AT_ONCE):
                connection.cursor().execute(
                    f"insert into {ARCHIVE} select {first} + seq, 1.25, repeat('x', 180) "
                    f"from seq_0_to_{_FILLED_AT_ONCE - 1}"
                )


def _measure(vitess: Vitess, servers: str, name: str, relay: Relaying) -> list[Benchmark]:
    topic = f"{name}.{TABLE}"
    relay.start(PACES["paced"])
    committed = Arrivals(servers, topic)
    acknowledged: Times = {}
    with closing(vitess.connect(KEYSPACE)) as connection, connection.cursor() as cursor:
        insert = f"insert into {TABLE} (id, price, note) values (%s, %s, %s)"

        def write(first: int, count: int) -> list[int]:
            begun = time.monotonic()
            for number in range(count):
                time.sleep(max(0.0, begun + number / RATE - time.monotonic()))
                cursor.execute(insert, (first + number, "1.25", "x" * 180))
                acknowledged[first + number] = time.time()
            return list(range(first, first + count))

        # Until the relay has started, from the shards' current positions.
        for number in range(1, 601):
            cursor.execute(insert, (-number, "1.25", "begun?"))
            time.sleep(0.05)
            if len(committed) > 20:
                break
        else:
            raise RelayError("the relay reads nothing")
        counted = write(0, int(RATE * SECONDS))[int(RATE * WARM_UP) :]
        uncommitted = Arrivals(servers, topic, "read_uncommitted")
        bare = BareClient(vitess.vtgate)
        time.sleep(1.0)  # until both have started
        explained = write(len(acknowledged), int(RATE * EXPLAINED))
        deadline = time.monotonic() + 30
        while len(bare.arrived.keys() & set(explained)) < len(explained) and time.monotonic() < deadline:
            time.sleep(0.1)
        bare.close()
        sent = uncommitted.stop(len(acknowledged) + 20)
        copies: dict[str, tuple[float, float]] = {}
        for how, pace in PACES.items():
            relay.start(pace)
            write(len(acknowledged), int(RATE * _SETTLES))
            with closing(Copying(servers, f"{name}.{ARCHIVE}")) as copying:
                command = [sys.executable, "-m", "relay.cli", "snapshot", str(relay.path), "s", ARCHIVE]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                while not copying.has_ended:
                    write(len(acknowledged), int(RATE))
            copies[how] = copying.begun, copying.moved
    with closing(open_schemas(load(relay.path))) as schemas:

        def rows(arrivals: list[tuple[float, bytes]]) -> tuple[Times, Times]:
            found = [(at, decode(schemas, value)) for at, value in arrivals]
            ids = [(each["new"]["id"], at, each["relayed_at"].timestamp()) for at, each in found]
            return {row: at for row, at, _ in ids if row >= 0}, {row: sent for row, _, sent in ids if row >= 0}

        read, relayed = rows(committed.stop(len(acknowledged) + 20))
        on_broker, _ = rows(sent)

    def spans(of: list[int], begin: Times, end: Times) -> list[float]:
        return [(end[row] - begin[row]) * 1000 for row in of if row in begin and row in end]

    steps = {
        "acknowledged to bare client": spans(explained, acknowledged, bare.arrived),
        "bare client to producer": spans(explained, bare.arrived, relayed),
        "producer to broker": spans(explained, relayed, on_broker),
        "broker to committed and read": spans(explained, on_broker, read),
        "whole": spans(explained, acknowledged, read),
    }
    alone = spans(counted, acknowledged, read)
    results = [_benchmark(alone, steps, len(acknowledged), len(read.keys() & acknowledged.keys()))]
    copied = len(PACES) * (ARCHIVED * len(SHARDS) + MARKS)
    of_copies = count_committed({"bootstrap.servers": servers}, f"{name}.{ARCHIVE}")
    for how, (begun, ended) in copies.items():
        beside = [row for row, at in acknowledged.items() if begun <= at <= ended]
        latencies = spans(beside, acknowledged, read)
        results.append(_beside_a_snapshot(how, alone, latencies, ended - begun, copied, of_copies))
    return results


def _beside_a_snapshot(
    how: str, alone: list[float], beside: list[float], seconds: float, expected: int, seen: int
) -> Benchmark:
    half, pace = len(alone) // 2, PACES[how]
    return Benchmark(
        name=f"vstream_latency_{how}_snapshot",
        figure=_p99(beside),
        yardstick=_p99(alone),
        unit="ms p99, commit to reader",
        ratio=_p99(beside) / _p99(alone),
        expected=expected,
        seen=seen,
        aa=_p99(alone[half:]) / _p99(alone[:half]),
        note=(
            f"{len(beside)} rows at {RATE:.0f} a second, while a snapshot of another table reads "
            f"{ARCHIVED * len(SHARDS) / seconds:.0f} rows/s ({'no limit' if pace is None else f'{pace} a shard'}); p50 "
            f"{median(beside):.1f} ms beside it, {median(alone):.1f} before; yardstick the first phase, without a "
            "snapshot; aim 1.5"
        ),
    )


def _benchmark(whole: list[float], steps: Mapping[str, list[float]], expected: int, seen: int) -> Benchmark:
    ours = steps["acknowledged to bare client"]
    half = len(ours) // 2
    parts = "; ".join(f"{name} p50 {median(of):.1f}, p99 {_p99(of):.1f}" for name, of in steps.items())
    return Benchmark(
        name="vstream_latency",
        figure=median(whole),
        yardstick=median(ours),
        unit="ms p50, commit to reader",
        ratio=median(whole) / median(ours) if median(ours) > 0 else 0.0,
        expected=expected,
        seen=seen,
        aa=median(ours[half:]) / median(ours[:half]),
        note=(
            f"{RATE:.0f} rows/s, {len(SHARDS)} shards, exactly once; p99 {_p99(whole):.1f} ms; aims 5 and 20; where "
            f"it goes, with a reader and a client more to tell: {parts}; yardstick a bare gRPC client"
        ),
    )


def _p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


class Copying(threading.Thread):
    """Watches when the snapshot of ``ARCHIVE`` begins and ends for a read_committed reader, without reading it."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(daemon=True)
        # Seconds since the epoch, of its first and its last transaction so far; 0 before.
        self.begun = self.moved = 0.0
        self._consumer = Consumer(
            {"bootstrap.servers": servers, "group.id": f"{topic}.watch", "isolation.level": "read_committed"}
        )
        self._partitions = [TopicPartition(topic, p) for p in range(PARTITIONS)]
        self._end = self._ask()
        self._done = threading.Event()
        self.start()

    @property
    def has_ended(self) -> bool:
        """Whether nothing has come for a while. How much came is counted afterwards."""
        return bool(self.moved) and time.time() - self.moved > _QUIET

    def run(self) -> None:
        while not self._done.is_set():
            end = self._ask()
            if end > self._end:
                self._end, self.moved = end, time.time()
                self.begun = self.begun or self.moved
            time.sleep(0.05)

    def _ask(self) -> int:
        return sum(self._consumer.get_watermark_offsets(each, timeout=10)[1] for each in self._partitions)

    def close(self) -> None:
        self._done.set()
        self.join()
        self._consumer.close()


class BareClient(threading.Thread):
    """Records when each row arrives at a bare gRPC client, which streams all shards from their current positions."""

    def __init__(self, vtgate: str) -> None:
        super().__init__(daemon=True)
        self.arrived: Times = {}
        self._channel = grpc.insecure_channel(vtgate)
        stream = self._channel.unary_stream(
            "/vtgateservice.Vitess/VStream",
            request_serializer=pb.VStreamRequest.SerializeToString,
            response_deserializer=pb.VStreamResponse.FromString,
        )
        shards = [pb.ShardGtid(keyspace=KEYSPACE, shard=shard, gtid="current") for shard in SHARDS]
        self._call: Any = stream(
            pb.VStreamRequest(
                tablet_type=1,
                vgtid=pb.VGtid(shard_gtids=shards),
                filter=pb.Filter(rules=[pb.Rule(match=TABLE, filter=f"select * from {TABLE}")]),
                flags=pb.VStreamFlags(exclude_keyspace_from_table_name=True),
            )
        )
        self.start()

    def run(self) -> None:
        try:
            for response in self._call:
                now = time.time()
                for event in response.events:
                    if event.type == _ROW:
                        for change in event.row_event.row_changes:
                            self.arrived[int(change.after.values[: change.after.lengths[0]])] = now
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED:
                raise

    def close(self) -> None:
        self._call.cancel()
        self.join()
        self._channel.close()
