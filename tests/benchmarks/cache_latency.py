"""Measures the time from an acknowledged write to the invalidation in Redis, for both engines of the cache.

When a key was invalidated, Redis itself says (MONITOR): no word of the consumer is taken for it. A change counts once
the entry of its key has its token, or a later one of that item, so each change that was written has to be seen there.
The yardstick is the time from the acknowledged write until any reader can have the change from the topic, in the same
run; A/A compares its two halves. The rest is the engine's.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import boto3
import redis

from relay.demo.report import acknowledged, percentile
from relay.demo.truth import changed_item
from relay.demo.watching import BatchLog, TopicWatch
from relay.demo.workload import Item, Repeating, item_of
from relay.errors import RelayError
from relay.kafka.changes import ReceivedChange
from relay.services.dynamodb import DynamoDBLocal
from relay.services.mariadb import MariaDB
from relay.services.redis import RedisServer
from tests.benchmarks.harness import Benchmark
from tests.benchmarks.latency import CREDENTIALS, SECONDS, WARM_UP, DynamoDBTable, MariaDBTable, Phase
from tests.services.brokers import OptimisedBroker

ENGINES = ("python", "spark")
_WRITTEN = re.compile(r"HSET (\S+) e (\{.*\})")
_POSITION = re.compile(r'"position":"([^"]+)"')


def run() -> list[Benchmark]:
    os.environ.update(CREDENTIALS)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(OptimisedBroker())
        store = stack.enter_context(RedisServer())
        dynamodb = stack.enter_context(DynamoDBLocal())
        client: Any = boto3.client("dynamodb", endpoint_url=dynamodb.endpoint_url)
        stack.callback(client.close)
        found = []
        for engine in ENGINES:
            name = f"cache-{engine}-dynamodb"
            table = DynamoDBTable(client, name, dynamodb)
            found.append(_WatchedPhase(folder, name, table, broker, store, engine).benchmark())
            with MariaDB() as mariadb:
                name = f"cache-{engine}-binlog"
                found.append(_WatchedPhase(folder, name, MariaDBTable(mariadb), broker, store, engine).benchmark())
    return found


class _InvalidationWatch(Repeating):
    """Notes each entry that is written to a namespace of Redis: its item, the positions of its tokens, and when."""

    def __init__(self, server: RedisServer, namespace: str) -> None:
        super().__init__("invalidation-watch")
        self.found: list[tuple[Item, frozenset[str], float]] = []  # others may ask for its length meanwhile
        self._prefix = f"{namespace}:"
        self._client = redis.Redis.from_url(server.url)
        client: Any = self._client
        self._monitor = client.monitor().__enter__()

    def turn(self) -> None:
        if not self._monitor.connection.can_read(timeout=0.2):
            return
        told = self._monitor.next_command()
        written = _WRITTEN.match(told["command"])
        if written is not None and written[1].startswith(self._prefix):
            item = item_of(written[1].removeprefix(self._prefix))
            self.found.append((item, frozenset(_POSITION.findall(written[2])), told["time"]))

    def close(self) -> None:
        self.stop()
        self._monitor.__exit__(None, None, None)
        self._client.close()


class _WatchedPhase(Phase):
    def benchmark(self) -> Benchmark:
        found: Benchmark = self.run()
        return found

    def _measure(self, watch: TopicWatch, batches: BatchLog) -> Benchmark:
        invalidations = _InvalidationWatch(self.redis, self.name)
        invalidations.start()
        begun, history = self.write(watch, batches)
        written = sum(map(len, history.values()))
        time.sleep(2.0)  # for the last words of MONITOR
        watch.stop()
        invalidations.close()
        by_item: dict[Any, list[ReceivedChange]] = defaultdict(list)
        for change in sorted(watch.changes, key=lambda each: (each.partition, each.offset)):
            by_item[changed_item(change)].append(change)
        applied = _applied(by_item, invalidations.found)
        committed = acknowledged(history, by_item)
        late = {event_id: commit for event_id, commit in committed.items() if commit >= begun + WARM_UP}
        if missing := late.keys() - applied.keys():
            raise RelayError(f"{self.name}: {len(missing)} of {len(late)} changes were never invalidated in Redis")
        to_topic = [(watch.arrived[event_id] - commit) * 1000 for event_id, commit in late.items()]
        to_redis = [(applied[event_id] - commit) * 1000 for event_id, commit in late.items()]
        half = len(to_topic) // 2
        figure, yardstick = percentile(to_redis, 50), percentile(to_topic, 50)
        return Benchmark(
            name=f"cache_latency_{self.engine}_{self.name.rpartition('-')[2]}",
            figure=figure,
            yardstick=yardstick,
            unit="ms, p50: acknowledged to invalidated in Redis; acknowledged to readable on the topic",
            ratio=figure / yardstick,
            expected=written,
            seen=len(applied.keys() & {change.event_id for changes in by_item.values() for change in changes}),
            aa=percentile(to_topic[half:], 50) / percentile(to_topic[:half], 50),
            note=(
                f"p99 {percentile(to_redis, 99):.0f}, and to the topic {percentile(to_topic, 99):.0f}; "
                f"{written / SECONDS:.0f} changes/s, {len(to_redis)} timed"
            ),
        )


def _applied(
    by_item: dict[Any, list[ReceivedChange]], found: list[tuple[Item, frozenset[str], float]]
) -> dict[str, float]:
    """Return by event id when the entry of a change's key had its token, or a later one of its item."""
    place = {
        (item, change.token.position): n
        for item, changes in by_item.items()
        for n, change in enumerate(changes)
        if change.token is not None
    }
    applied: dict[str, float] = {}
    reached: dict[Item, int] = defaultdict(int)
    for item, positions, at in found:
        end = max((place[item, each] + 1 for each in positions if (item, each) in place), default=0)
        for change in by_item[item][reached[item] : end]:
            applied[change.event_id] = at
        reached[item] = max(reached[item], end)
    return applied
