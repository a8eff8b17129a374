"""Relays the backlog of a Vitess shard to Kafka with a complete relay, beside Debezium and a bare client that counts.

Rows of 200 bytes, in transactions of 1 row and of 100. vtgate, the database below it and the broker share the
machine's cores with the contenders.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from relay.services.vitess import Vitess, database
from tests.benchmarks.backlog import SCHEMA, TABLE, Run, benchmark, counted, fill, relayed
from tests.benchmarks.debezium import TUNED, ConnectWorker
from tests.benchmarks.harness import Benchmark
from tests.services.brokers import OptimisedBroker

KEYSPACE, SHARD = "bench", "0"
# Transactions by the number of their rows.
BACKLOGS = {1: 160_000, 100: 6_000}
ROUNDS = 2


def run() -> list[Benchmark]:
    vitess = Vitess(keyspaces={KEYSPACE: (SHARD,)}, schemas={KEYSPACE: (SCHEMA, {"tables": {TABLE: {}}})})
    with (
        OptimisedBroker() as broker,
        vitess,
        ConnectWorker("vitess", broker.bootstrap_servers) as debezium,
        tempfile.TemporaryDirectory() as folder,
    ):
        first, benchmarks = 0, []
        for rows, transactions in BACKLOGS.items():
            position = vitess.position
            expected = fill(vitess.mariadb, database(KEYSPACE, SHARD), first, rows, transactions)
            first += expected
            runs: dict[str, list[Run]] = {"relay": [], "bare client": [], "Debezium": []}
            settings, topic = _debezium(vitess, position), f"{{prefix}}.{KEYSPACE}.{TABLE}"
            debezium.relayed(settings, topic, expected)
            for _ in range(ROUNDS):
                arguments = [vitess.vtgate, KEYSPACE, SHARD, position, TABLE, str(expected)]
                runs["bare client"].append(
                    counted(sys.executable, "yardstick_vstream.py", *arguments, expected=expected)
                )
                source = {
                    "type": "vitess",
                    "vtgate": vitess.vtgate,
                    "keyspace": KEYSPACE,
                    "tablet_type": "primary",
                    "start": {"vgtid": [{"shard": SHARD, "gtid": position}]},
                }
                runs["relay"].append(relayed(broker.bootstrap_servers, Path(folder), source, expected))
                runs["Debezium"].append(debezium.relayed(settings, topic, expected))
            note = f"transactions of {rows} rows; the bare gRPC client only counts; {TUNED}"
            for name, yardstick in (("vstream", "bare client"), ("vstream_debezium", "Debezium")):
                benchmarks.append(benchmark(f"{name}_{rows}", runs, note, ours="relay", yardstick=yardstick))
        return benchmarks


def _debezium(vitess: Vitess, position: str) -> dict[str, str]:
    host, _, port = vitess.vtgate.rpartition(":")
    return {
        "connector.class": "io.debezium.connector.vitess.VitessConnector",
        "database.hostname": host,
        "database.port": port,
        "vitess.keyspace": KEYSPACE,
        "vitess.shard": SHARD,
        "vitess.tablet.type": "MASTER",
        "vitess.vgtid": json.dumps([{"keyspace": KEYSPACE, "shard": SHARD, "gtid": position}]),
        "snapshot.mode": "never",
        "table.include.list": f"{KEYSPACE}.{TABLE}",
    }
