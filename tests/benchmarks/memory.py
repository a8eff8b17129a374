"""Measures the worker's memory with a backlog of five million changes, and with one transaction of a gigabyte (I11).

A figure is the peak resident memory. The yardstick is the same worker with a backlog a hundredth as long: a ratio near
one means that memory does not grow with the backlog. The bound is absolute.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile

import orjson
from confluent_kafka.admin import AdminClient

from relay.errors import RelayError
from relay.services.kafka import KafkaBroker
from tests.benchmarks.fed import Feed
from tests.benchmarks.harness import Benchmark, count_committed

BOUND_MB = 600
SHARDS = 16


def run() -> list[Benchmark]:
    with KafkaBroker() as broker, tempfile.TemporaryDirectory() as folder:
        os.environ["RELAY_STATE"] = folder
        servers = broker.bootstrap_servers
        few, again = (_played(Feed(_name(), servers, SHARDS, pages=4, page=800)) for _ in range(2))
        backlog = _played(Feed(_name(), servers, SHARDS, pages=390, page=800))
        # Pages of a megabyte, the largest that a source returns: 8 changes of 128 KB.
        large, large_again = (
            _played(Feed(_name(), servers, 1, pages=10, page=8, image=127 << 10, one_transaction=True))
            for _ in range(2)
        )
        transaction = _played(Feed(_name(), servers, 1, pages=1024, page=8, image=127 << 10, one_transaction=True))
        return [
            _benchmark("memory_backlog", backlog, few, again, f"{backlog[1]:,} changes from {SHARDS} shards"),
            _benchmark("memory_transaction", transaction, large, large_again, "a transaction of 1 GB, 128 KB a change"),
        ]


def _name() -> str:
    return f"bench-{secrets.token_hex(4)}"


Played = tuple[float, int, int]
"""Peak in megabytes; changes expected and seen."""


def _played(feed: Feed) -> Played:
    command = [sys.executable, "-m", "tests.benchmarks.fed", feed.to_json()]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RelayError(f"the worker ended with {done.returncode}: {done.stderr[-2000:]}")
    seen = count_committed({"bootstrap.servers": feed.servers}, feed.topic)
    # Free the disk for the next run.
    admin = AdminClient({"bootstrap.servers": feed.servers})
    admin.delete_topics([feed.topic])[feed.topic].result(30)
    return float(orjson.loads(done.stdout)["peak_mb"]), feed.changes, seen


def _benchmark(name: str, figure: Played, yardstick: Played, again: Played, what: str) -> Benchmark:
    kept = "under" if figure[0] < BOUND_MB else "OVER"
    return Benchmark(
        name=name,
        figure=figure[0],
        yardstick=yardstick[0],
        unit="MB at its peak",
        ratio=figure[0] / yardstick[0],
        expected=sum(played[1] for played in (figure, yardstick, again)),
        seen=sum(played[2] for played in (figure, yardstick, again)),
        aa=again[0] / yardstick[0],
        note=f"{what}: {kept} the bound of {BOUND_MB} MB; yardstick the same with a hundredth of it",
    )
