"""A cached application on a MariaDB, and what fails under it: stores, the cache's consumer, a replica that lags."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from relay.cache import LoadedValue, PrimaryLoader, QueriesLoader, Tokens
from relay.errors import Unavailable
from relay.mysql import ReplicationWatcher
from relay.process.managed import HOST
from relay.services.mariadb import PASSWORD, USER
from relay.services.memcached import MemcachedServer
from relay.services.redis import RedisServer
from tests.cache.proxy import Proxy
from tests.cache.redis_groups import command
from tests.faults.harness import Relay
from tests.soak.audited_lines import CACHE_KEY, SHARD, AuditedLines, read_lines
from tests.waiting import wait_until

Engine = Literal["spark", "python"]
Reads = Literal["primary", "replica", "replica, then primary"]
"""Where an application loads from; the last: a ``QueriesLoader`` with a ``PrimaryLoader``."""

_WRITERS = 4
_RATE = 120.0  # changes a second
_SLOWEST = 0.6  # seconds, far below the `tombstone_ttl`


class Shop(AuditedLines):
    """The audited lines with four writers, and a loader that any number of threads share.

    ``slow``: the share of loads that take long. They, and few ``customers``, make a change during a load more likely.
    """

    def __init__(self, seed: int, reads: Reads, customers: int, slow: float) -> None:
        super().__init__(seed, _RATE, _WRITERS, customers)
        self.gate = nullcontext()
        self._reads = reads
        self._slow = slow
        self._load: Callable[[str, Tokens | None], LoadedValue]

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            for writer in self._writers:
                writer.bulk_share = 0.0
            self._load = self._loader().load
        except BaseException:
            self._stack.close()
            raise
        return self

    def _loader(self) -> PrimaryLoader | QueriesLoader:
        primary, replica = self._servers.primary, self._servers.replica
        on_primary = PrimaryLoader(partial(primary.connect, USER), read_lines, key=CACHE_KEY)
        self._stack.callback(on_primary.close)
        if self._reads == "primary":
            return on_primary
        replica.wait_for(primary.gtid)
        watcher = ReplicationWatcher.of(HOST, replica.port, USER, PASSWORD, SHARD)
        self._stack.enter_context(watcher)
        fallback = on_primary if self._reads == "replica, then primary" else None
        loader = QueriesLoader(partial(replica.connect, USER), watcher, read_lines, key=CACHE_KEY, primary=fallback)
        return self._stack.enter_context(closing(loader))

    def source(self) -> dict[str, Any]:
        # From the primary: through the replica, invalidations would lag as its reads do.
        return {**super().source(), "shards": {"-": [self._servers.primary.address]}}

    def load(self, key: str, compare: Tokens | None) -> LoadedValue:
        """Load as the case says. Some loads take long, so that their lines change before they are stored."""
        loaded = self._load(key, compare)
        if self._chance.random() < self._slow:
            time.sleep(self._chance.uniform(0.1, _SLOWEST))
        return loaded

    def lag(self, seconds: float) -> None:
        """Let the replica fall behind."""
        self._servers.replica.execute("STOP REPLICA")
        time.sleep(seconds)
        self._servers.replica.execute("START REPLICA")

    def catch_up(self) -> None:
        self._servers.replica.wait_for(self._servers.primary.gtid)


class Lagging(threading.Thread):
    """Lets the replica of a shop fall behind again and again, until ``end``, which waits until it has caught up."""

    def __init__(self, shop: Shop, seed: int) -> None:
        super().__init__(name="lagging", daemon=True)
        self.count = 0
        self._shop = shop
        self._chance = random.Random(f"lag/{seed}")
        self._stopping = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self.join()
        self._shop.catch_up()

    def run(self) -> None:
        while not self._stopping.wait(self._chance.uniform(0.2, 1.5)):
            self._shop.lag(self._chance.uniform(0.5, 3.0))
            self.count += 1


class RedisBehindProxy:
    """A Redis and its replica behind an address that leads to the primary."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._primary, self._replica = (RedisServer(options={"repl-diskless-sync-delay": "0"}) for _ in range(2))
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._primary)
            stack.enter_context(self._replica)
            self._proxy = stack.enter_context(Proxy(self._primary.port))
            self._follow()
            self._stack = stack.pop_all()
        self.url = f"redis://{HOST}:{self._proxy.port}/0"
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def faults(self) -> dict[str, Callable[[], None]]:
        return {"redis": self._kill, "failover": self._fail_over}

    def _kill(self) -> None:
        """It comes back with a snapshot that lacks the last invalidations."""
        self._wait_for_link()  # it cannot save while it saves for the replica
        command(self._primary, "SAVE")
        time.sleep(self._chance.uniform(0.2, 0.6))
        self._primary.kill()
        self._proxy.cut()
        time.sleep(self._chance.choice((0.0, 0.5)))
        self._primary.restart()

    def _fail_over(self) -> None:
        """The replica becomes primary without the last invalidations. Connections stay with the old one, or end."""
        self._wait_for_link()
        command(self._replica, "REPLICAOF", "NO", "ONE")
        time.sleep(self._chance.uniform(0.2, 0.6))
        self._primary, self._replica = self._replica, self._primary
        self._follow()  # before anybody connects to the new one: two primaries at once is what nobody can notice
        self._proxy.later(self._primary.port)
        if self._chance.random() < 0.5:
            self._proxy.cut()

    def _wait_for_link(self) -> None:
        wait_until(lambda: command(self._replica, "INFO", "replication").get("master_link_status") == "up")

    def _follow(self) -> None:
        command(self._replica, "REPLICAOF", HOST, self._primary.port)


class Memcached:
    """One memcached."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._server = MemcachedServer()

    def __enter__(self) -> Self:
        self._server.start()
        self.url = self._server.url
        return self

    def __exit__(self, *error: object) -> None:
        self._server.stop()

    def faults(self) -> dict[str, Callable[[], None]]:
        return {"memcached": self._kill}

    def _kill(self) -> None:
        self._server.kill()
        time.sleep(self._chance.choice((0.0, 0.5)))
        self._server.restart()


CacheServers = RedisBehindProxy | Memcached
"""``url``: for clients. ``faults``: what can happen to them, by name."""


class CacheConsumer:
    """``relay consume cache``, one process after the other. ``log``: of all of them."""

    def __init__(self, path: Path, engine: Engine) -> None:
        self.log = path.with_name("cache.log")
        self._command = [sys.executable, "-m", "relay.cli", "consume", "cache", str(path), "--engine", engine]
        if engine == "spark":
            self._command += ["--checkpoint", str(path.with_name("checkpoint"))]
        self._begun = 0  # where the log of the process that runs begins

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()

    @property
    def has_applied(self) -> bool:
        """Whether the process that runs has applied a batch."""
        with self.log.open("rb") as log:
            log.seek(self._begun)
            return b'"event": "batch"' in log.read()

    def kill(self) -> None:
        self._process.kill()
        self._start()

    def revive(self) -> None:
        """Start it again if the store was away for too long."""
        if not self._process.is_running:
            code = self._process.wait(1)
            assert code == Unavailable.exit_code, f"the consumer ended with exit code {code}: {self._process.log()}"
            self._start()

    def _start(self) -> None:
        self._begun = self.log.stat().st_size if self.log.exists() else 0
        self._process = Relay(self._command, self.log)


def disturb(
    servers: CacheServers, consumer: CacheConsumer, chance: random.Random, pause: float, seconds: float
) -> Counter[str]:
    """Let everything fail at random, each at least once; return how often. ``pause``: seconds, on average.

    AssertionError if it takes too long.
    """
    kills: Counter[str] = Counter()
    faults = servers.faults() | {"consumer": consumer.kill}
    begun = time.monotonic()
    while (elapsed := time.monotonic() - begun) < seconds or kills.keys() != faults.keys():
        assert elapsed < seconds + 120, f"{dict(kills)}: {consumer.log.read_text(errors='replace')[-4000:]}"
        time.sleep(chance.uniform(0.5, 1.5) * pause)
        consumer.revive()
        name = chance.choice(sorted(faults.keys() - kills.keys()) or sorted(faults))
        # One that never lives long enough would not get anywhere.
        if name != "consumer" or consumer.has_applied:
            faults[name]()
            kills[name] += 1
    return kills
