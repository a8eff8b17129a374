"""Measures how soon a row committed on a Vitess of four shards can be read from its topic, at 200 rows per second.

From the commit, acknowledged to the writer, to a read_committed reader. A second phase, with two more readers, shows
where the time goes: until a bare gRPC client beside the relay has the row; until the relay passes it to its producer
(``relayed_at``); until a read_uncommitted reader has it; until it is committed and read. The yardstick is the bare
client: the time that Vitess takes.
"""

from __future__ import annotations

import os
import secrets
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
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from relay.avro.decode import decode
from relay.avro.registry import open_schemas
from relay.config import load
from relay.errors import RelayError
from relay.process.managed import ManagedProcess
from relay.services.kafka import KafkaBroker
from relay.services.vitess import Vitess
from relay.vitess.proto import vtgate_pb2 as pb
from tests.benchmarks.harness import Benchmark, median
from tests.benchmarks.publish_latency import PARTITIONS, Arrivals

KEYSPACE, SHARDS, TABLE = "bench", ("-40", "40-80", "80-c0", "c0-"), "item"
SCHEMA = f"create table {TABLE} (id bigint not null, price decimal(10,2), note varchar(200), primary key (id))"
VSCHEMA = {
    "sharded": True,
    "vindexes": {"hash": {"type": "hash"}},
    "tables": {TABLE: {"column_vindexes": [{"column": "id", "name": "hash"}]}},
}
RATE = 200.0
SECONDS = 60
WARM_UP = 30  # seconds, not counted, in which the JVM of a new broker compiles its code
EXPLAINED = 15  # seconds of the second phase
_ROW = 12

Times = dict[int, float]
"""By the id of a row, seconds since the epoch."""


def run() -> Benchmark:
    vitess = Vitess(keyspaces={KEYSPACE: SHARDS}, schemas={KEYSPACE: (SCHEMA, VSCHEMA)})
    with KafkaBroker() as broker, vitess, tempfile.TemporaryDirectory() as folder:
        os.environ["RELAY_STATE"] = folder
        path = Path(folder) / "relay.yaml"
        name = f"bench-{secrets.token_hex(4)}"
        source = {"name": "s", "type": "vitess", "vtgate": vitess.vtgate, "keyspace": KEYSPACE, "tables": [TABLE]}
        kafka = {"bootstrap_servers": broker.bootstrap_servers, "partitions": PARTITIONS}
        path.write_text(yaml.safe_dump({"name": name, "kafka": kafka, "sources": [source]}))
        topic = f"{name}.{TABLE}"
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
        process = ManagedProcess([sys.executable, "-m", "relay.cli", "run", str(path)], Path(folder) / "log")
        process.start()
        try:
            return _measure(vitess, broker.bootstrap_servers, topic, path)
        finally:
            process.stop(20.0)


def _measure(vitess: Vitess, servers: str, topic: str, path: Path) -> Benchmark:
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
    with closing(open_schemas(load(path))) as schemas:

        def rows(arrivals: list[tuple[float, bytes]]) -> tuple[Times, Times]:
            found = [(at, decode(schemas, value)) for at, value in arrivals]
            ids = [(each["new"]["id"], at, each["relayed_at"].timestamp()) for at, each in found]
            return {row: at for row, at, _ in ids if row >= 0}, {row: sent for row, _, sent in ids if row >= 0}

        read, relayed = rows(committed.stop(len(acknowledged) + 20))
        on_broker, _ = rows(uncommitted.stop(len(acknowledged) + 20))

    def spans(of: list[int], begin: Times, end: Times) -> list[float]:
        return [(end[row] - begin[row]) * 1000 for row in of if row in begin and row in end]

    steps = {
        "acknowledged to bare client": spans(explained, acknowledged, bare.arrived),
        "bare client to producer": spans(explained, bare.arrived, relayed),
        "producer to broker": spans(explained, relayed, on_broker),
        "broker to committed and read": spans(explained, on_broker, read),
        "whole": spans(explained, acknowledged, read),
    }
    return _benchmark(
        spans(counted, acknowledged, read), steps, len(acknowledged), len(read.keys() & acknowledged.keys())
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
            f"{RATE:.0f} rows/s, {len(SHARDS)} shards, exactly once; p99 {_p99(whole):.1f} ms; aims 14 and 30; where "
            f"it goes, with a reader and a client more to tell: {parts}; yardstick a bare gRPC client"
        ),
    )


def _p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


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
