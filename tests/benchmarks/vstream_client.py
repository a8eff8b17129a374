"""Reads a VStream with the relay's own HTTP/2 client, against grpcio. Both parse with protobuf and only count rows.

Rows of 200 bytes in transactions of 1 row and of 100, one shard, read from the beginning of the backlog.
"""

from __future__ import annotations

import sys

from relay.services.vitess import Vitess, database
from tests.benchmarks.backlog import SCHEMA, TABLE, Run, benchmark, counted, fill
from tests.benchmarks.harness import Benchmark

KEYSPACE, SHARD = "bench", "0"
# Transactions by the number of their rows.
BACKLOGS = {1: 160_000, 100: 6_000}
ROUNDS = 3
CLIENTS = {"own": "count_vstream.py", "grpcio": "yardstick_vstream.py"}


def run() -> list[Benchmark]:
    with Vitess(keyspaces={KEYSPACE: (SHARD,)}, schemas={KEYSPACE: (SCHEMA, {"tables": {TABLE: {}}})}) as vitess:
        first, benchmarks = 0, []
        for rows, transactions in BACKLOGS.items():
            position = vitess.position
            expected = fill(vitess.mariadb, database(KEYSPACE, SHARD), first, rows, transactions)
            first += expected
            arguments = [vitess.vtgate, KEYSPACE, SHARD, position, TABLE, str(expected)]
            runs: dict[str, list[Run]] = {name: [] for name in CLIENTS}
            for _ in range(ROUNDS):
                for name, script in CLIENTS.items():
                    runs[name].append(counted(sys.executable, script, *arguments, expected=expected))
            note = f"transactions of {rows} rows; yardstick grpcio with the same loop"
            benchmarks.append(benchmark(f"vstream_client_{rows}", runs, note, ours="own", yardstick="grpcio"))
        return benchmarks
