"""Relays a snapshot of a MariaDB table with a complete relay, against a bare SELECT and a bare producer; and Debezium.

Rows of 200 bytes. The bare producer neither decodes exactly nor encodes Avro, and sends outside of transactions.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from relay.services.mariadb import PASSWORD, USER, MariaDB
from tests.benchmarks.backlog import PARTITIONS, SCHEMA, TABLE, Run, benchmark, counted, fill, relayed
from tests.benchmarks.debezium import TUNED, ConnectWorker, mariadb_settings
from tests.benchmarks.harness import Benchmark
from tests.services.brokers import OptimisedBroker

DATABASE = "bench"
ROWS, TRANSACTIONS = 1000, 300
ROUNDS = 2
MARKS = 2 * PARTITIONS  # the beginning and the end, in every partition


def run() -> list[Benchmark]:
    with (
        OptimisedBroker() as broker,
        MariaDB() as mariadb,
        ConnectWorker("mariadb", broker.bootstrap_servers) as debezium,
        tempfile.TemporaryDirectory() as folder,
    ):
        mariadb.execute(f"create database {DATABASE}")
        mariadb.execute(SCHEMA.replace("create table ", f"create table {DATABASE}."))
        expected = fill(mariadb, DATABASE, 0, ROWS, TRANSACTIONS)
        servers = broker.bootstrap_servers
        source = {
            "type": "mysql",
            "shards": {"-": [mariadb.address]},
            "database": DATABASE,
            "user": USER,
            "password": PASSWORD,
            "snapshot": "initial",
        }
        admin = AdminClient({"bootstrap.servers": servers})
        settings = mariadb_settings(mariadb, DATABASE, broker) | {"snapshot.mode": "initial_only"}

        def beside() -> Run:
            return debezium.relayed(settings, f"{{prefix}}.{DATABASE}.{TABLE}", expected)

        runs: dict[str, list[Run]] = {"relay": [], "SELECT and producer": [], "Debezium": []}
        beside()
        for number in range(ROUNDS):
            runs["relay"].append(relayed(servers, Path(folder), source, expected + MARKS))
            topic = f"yardstick-{number}"
            admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
            arguments = [str(mariadb.port), USER, PASSWORD, DATABASE, TABLE, str(expected), servers, topic]
            script = "yardstick_snapshot.py"
            runs["SELECT and producer"].append(counted(sys.executable, script, *arguments, expected=expected))
            runs["Debezium"].append(beside())
        note = f"{expected} rows of 200 bytes in one table, so one thread reads; the bare producer streams one SELECT"
        return [
            benchmark("snapshot_mysql", runs, note, ours="relay", yardstick="SELECT and producer"),
            benchmark("snapshot_mysql_debezium", runs, f"{note}; {TUNED}", ours="relay", yardstick="Debezium"),
        ]
