"""Reads and decodes a MariaDB binlog, against python-mysql-replication; and relays it to Kafka, beside Debezium.

Rows of 200 bytes, in transactions of 1 row and of 1000. The readers only count rows. Each is a separate process, and
shares the machine's cores with the server.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from relay.services.mariadb import PASSWORD, USER, MariaDB
from tests.benchmarks.backlog import SCHEMA, TABLE, Run, benchmark, counted, fill, relayed
from tests.benchmarks.debezium import TUNED, ConnectWorker, mariadb_settings
from tests.benchmarks.harness import Benchmark
from tests.services.brokers import OptimisedBroker

DATABASE = "bench"
# Transactions by the number of their rows.
BACKLOGS = {1: 100_000, 1000: 300}
ROUNDS = 2
LIBRARY = "mysql-replication==1.0.17"


def run() -> list[Benchmark]:
    python = _library_python()
    with (
        OptimisedBroker() as broker,
        MariaDB() as mariadb,
        ConnectWorker("mariadb", broker.bootstrap_servers) as debezium,
        tempfile.TemporaryDirectory() as folder,
    ):
        mariadb.execute(f"create database {DATABASE}")
        mariadb.execute(SCHEMA.replace("create table ", f"create table {DATABASE}."))
        first, benchmarks = 0, []
        for rows, transactions in BACKLOGS.items():
            position = mariadb.gtid
            ((file, at, *_),) = mariadb.execute("show master status")
            offset = {"file": file, "pos": at, "gtids": position}
            expected = fill(mariadb, DATABASE, first, rows, transactions)
            first += expected
            arguments = [str(mariadb.port), USER, PASSWORD, DATABASE, position, str(expected)]
            source = {
                "type": "mysql",
                "shards": {"-": [mariadb.address]},
                "database": DATABASE,
                "user": USER,
                "password": PASSWORD,
                "start": {"gtid": {"-": f"MariaDB/{position}"}},
            }
            # Its tables are as they are, and it begins to stream where the offset says.
            settings = mariadb_settings(mariadb, DATABASE, broker) | {"snapshot.mode": "recovery"}
            topic = f"{{prefix}}.{DATABASE}.{TABLE}"
            runs: dict[str, list[Run]] = {"our reader": [], "python-mysql-replication": [], "relay": [], "Debezium": []}
            debezium.relayed(settings, topic, expected, offset)
            for _ in range(ROUNDS):
                runs["our reader"].append(counted(sys.executable, "read_binlog.py", *arguments, expected=expected))
                runs["python-mysql-replication"].append(
                    counted(python, "yardstick_binlog.py", *arguments, expected=expected)
                )
                runs["relay"].append(relayed(broker.bootstrap_servers, Path(folder), source, expected))
                runs["Debezium"].append(debezium.relayed(settings, topic, expected, offset))
            note = f"transactions of {rows} rows; {LIBRARY} only reads, as our reader does; {TUNED}"
            for name, ours, yardstick in (
                ("binlog", "our reader", "python-mysql-replication"),
                ("binlog_to_kafka", "relay", "python-mysql-replication"),
                ("binlog_debezium", "relay", "Debezium"),
            ):
                benchmarks.append(benchmark(f"{name}_{rows}", runs, note, ours=ours, yardstick=yardstick))
        return benchmarks


def _library_python() -> str:
    """Return the Python of an environment with the library, made once."""
    cache = Path(os.environ.get("RELAY_CACHE") or Path.home() / ".cache" / "relay")
    folder = cache / f"bench-{LIBRARY.replace('==', '-')}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", LIBRARY], check=True)
        (folder / "complete").touch()
    return str(python)
