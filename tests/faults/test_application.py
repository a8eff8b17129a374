"""A cached application while its store, the cache's consumer and its replica fail: I6.

``RELAY_SOAK_SECONDS`` says how long each case plays, ``RELAY_SEED`` what happens.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from relay.cache import TokenCache, open_store
from relay.config import Config, load
from relay.kafka import topics
from tests.faults.cached_shop import (
    CacheConsumer,
    CacheServers,
    Engine,
    Lagging,
    Memcached,
    Reads,
    RedisBehindProxy,
    Shop,
    disturb,
)
from tests.faults.harness import Relay
from tests.soak.application import Application, stale
from tests.soak.topic import AppliedTimes, TopicCheck
from tests.waiting import wait_until

pytestmark = pytest.mark.services

SECONDS = float(os.environ.get("RELAY_SOAK_SECONDS") or 0)
SEED = int(os.environ.get("RELAY_SEED") or 16)
READERS = 4
PAUSE = 0.004  # seconds between two reads of a reader
TOMBSTONE_TTL = 4.0  # seconds, not much more than the replica lags
APPLIED_WITHIN = 120.0


class Case(NamedTuple):
    """``pause``: seconds between two faults, on average; without a primary, a cache is empty for a while after each.

    ``seconds``: how long it takes to see each fault; a start of Spark takes ten. ``customers``, ``slow``: see `Shop`.
    """

    servers: type[RedisBehindProxy | Memcached]
    engine: Engine
    reads: Reads
    pause: float
    seconds: float
    customers: int = 12
    slow: float = 0.05
    is_another: bool = False

    def __str__(self) -> str:
        return f"{self.servers.__name__}, {self.engine}, {self.reads}"

    def marks(self) -> list[pytest.MarkDecorator]:
        reason = "another store or way to read: cache/test_interleavings.py; Spark: test_consumers_killed.py"
        return [pytest.mark.faults(reason)] if self.is_another else []


CASES = [
    Case(RedisBehindProxy, "spark", "primary", 1.0, 12.0, is_another=True),
    # Loads race with invalidations some ten times as often: its compare-and-set has two steps, between which they come.
    Case(Memcached, "python", "primary", 1.0, 8.0, customers=4, slow=0.3, is_another=True),
    Case(RedisBehindProxy, "python", "replica, then primary", 1.0, 8.0),
    Case(RedisBehindProxy, "python", "replica", 2.5, 12.0, is_another=True),
]


def write_config(path: Path, name: str, kafka: str, shop: Shop, servers: CacheServers) -> Config:
    cache = {"url": servers.url, "namespace": name, "keys": {shop.table: [shop.cache_key]}}
    config = {
        "name": name,
        "kafka": {"bootstrap_servers": kafka, "partitions": 2},
        "sources": [shop.source()],
        "cache": {**cache, "tombstone_ttl": f"{TOMBSTONE_TTL:g}s"},
    }
    path.write_text(yaml.safe_dump(config))
    return load(path)


def start_relay(stack: ExitStack, path: Path, config: Config, table: str) -> None:
    """Return once the topics are there."""
    relay = Relay([sys.executable, "-m", "relay.cli", "run", str(path)], path.with_name("relay.log"))
    stack.callback(relay.kill)
    admin = topics.connect(config)
    wanted = {topic.name for topic in topics.required(config, [table])}
    wait_until(lambda: wanted <= admin.list_topics(timeout=60).topics.keys() or None, 60)


def applied(config: Config, shop: Shop, consumer: CacheConsumer) -> TopicCheck:
    """Wait until everything was applied; return what the topic says, each change with the time when it was."""
    history = shop.history()

    def all_applied() -> TopicCheck | None:
        check = TopicCheck(shop, history, AppliedTimes(consumer.log))
        check.read(config)
        told = check.items.values()
        is_applied = check.published >= check.written and all(each.applied[-1] < float("inf") for each in told)
        consumer.revive()
        return check if is_applied else None

    return wait_until(all_applied, APPLIED_WITHIN)


def wrong_at_the_end(cache: TokenCache, check: TopicCheck) -> list[str]:
    """Read every item twice: most come from the cache."""
    final, found = check.final(), []
    for item in [*check.history, *check.history]:
        read = cache.get_or_load(check.part.key_of(item), check.part.load)
        version = None if read.value is None else check.part.version_in(read.value)
        if version != final.get(item):
            found.append(f"{item}: {read.outcome} with version {version}, not {final.get(item)}")
    return found


def start_readers(stack: ExitStack, shop: Shop, cache: TokenCache) -> list[Application]:
    readers = [Application(shop, cache, SEED + number, PAUSE) for number in range(READERS)]
    for reader in readers:
        stack.callback(reader.end)
        reader.start()
    return readers


def failures(readers: Sequence[Application]) -> list[BaseException]:
    return [reader.failure for reader in readers if reader.failure is not None]


@pytest.mark.timeout(SECONDS + 900)
@pytest.mark.parametrize("case", [pytest.param(case, marks=case.marks()) for case in CASES], ids=str)
def test_four_readers_and_four_writers_see_no_hit_that_was_invalidated_before(
    case: Case, tmp_path: Path, kafka: Any, unique: str
) -> None:
    """I6: a hit is never older than an invalidation that had been applied before the read began."""
    chance = random.Random(f"{SEED}/{case}")
    with ExitStack() as stack:
        shop = stack.enter_context(Shop(SEED, case.reads, case.customers, case.slow))
        servers = case.servers(chance)
        stack.enter_context(servers)
        path = tmp_path / "relay.yaml"
        config = write_config(path, unique, kafka.bootstrap_servers, shop, servers)
        start_relay(stack, path, config, shop.table)
        consumer = stack.enter_context(CacheConsumer(path, case.engine))
        store = stack.enter_context(closing(open_store(servers.url)))
        cache = TokenCache(store, unique, tombstone_ttl=TOMBSTONE_TTL, lease_ttl=TOMBSTONE_TTL)
        shop.start()
        readers = start_readers(stack, shop, cache)
        begun = time.monotonic()
        with Lagging(shop, SEED) if case.reads != "primary" else ExitStack():
            kills = disturb(servers, consumer, chance, case.pause, SECONDS or case.seconds)
            for reader in readers:
                reader.end()
            seconds = time.monotonic() - begun
            shop.stop()
        assert failures(readers) == []
        check = applied(config, shop, consumer)
        assert check.problems == []
        reads = [read for reader in readers for read in reader.reads]
        hits = sum(read.hit for read in reads)
        told = [(read, problem) for read in reads if (problem := stale(check, read)) is not None]
        stale_hits = [problem for read, problem in told if read.hit]
        others = [problem for read, problem in told if not read.hit]
        counts = {"reads": len(reads), "hits": hits, "hit_rate": round(hits / len(reads), 3), "kills": dict(kills)}
        counts |= {"stale_hits": len(stale_hits), "stale_loads": len(others), "changes": check.written}
        print(f"APPLICATION {case}: {json.dumps(counts | {'seconds': round(seconds, 1)})}")
        assert stale_hits == []
        if case.reads != "replica":  # whose loads are as old as it is, and are not cached
            assert others == []
        assert wrong_at_the_end(cache, check) == []
        assert hits > 0
