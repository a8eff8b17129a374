"""Measures how long a read through the cache takes that finds its value, against a bare GET of the same value.

On Redis and on memcached, in one thread, one key a call. A bare GET ignores invalidations: the cache reads
the generation, too, and asks the server whether it still is the primary, in the same round trip.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import redis
from pymemcache.client.base import Client

from relay.cache import LoadedValue, MemcachedStore, RedisStore, TokenCache
from relay.cache.store import Store
from relay.services.memcached import MemcachedServer
from relay.services.redis import RedisServer
from relay.token import EventToken
from tests.benchmarks.harness import Benchmark, in_turn, median

KEYS = 1000
READS = 20_000
ROUNDS = 5
VALUE = b"v" * 200


def run() -> list[Benchmark]:
    return [_on_redis(), _on_memcached()]


def _on_redis() -> Benchmark:
    with RedisServer() as server, RedisStore(server.url) as store, redis.Redis.from_url(server.url) as client:
        return _measure("cache_get_redis", store, client)


def _on_memcached() -> Benchmark:
    with MemcachedServer() as server, MemcachedStore(server.url) as store:
        host, _, port = server.url.removeprefix("memcached://").partition(":")
        with closing(Client((host, int(port)), no_delay=True)) as client:
            return _measure("cache_get_memcached", store, client)


def _measure(name: str, store: Store, client: Any) -> Benchmark:
    cache = TokenCache(store, "bench")
    keys = [f"order:{number}" for number in range(KEYS)]
    token = EventToken(1_700_000_000, "orders/shardId-1", "DynamoDB/100000000000000000001")
    for key in keys:
        client.set(key, VALUE)
        cache.get_or_load(key, lambda *_: LoadedValue(VALUE, {"orders/shardId-1": token}, fresher=True))
    served = 0

    def bare() -> float:
        return _microseconds(lambda key: client.get(key), keys)

    def through_cache() -> float:
        nonlocal served
        before = cache.hits
        took = _microseconds(lambda key: cache.get_or_load(key, _must_not_load).value, keys)
        served += cache.hits - before
        return took

    figures = in_turn(ROUNDS, {"bare": bare, "cache": through_cache, "again": bare})
    figure, yardstick = median(figures["cache"]), median(figures["bare"])
    return Benchmark(
        name=name,
        figure=figure,
        yardstick=yardstick,
        unit="us a read that finds its value",
        ratio=figure / yardstick,
        expected=READS * (ROUNDS + 1),
        seen=served,
        aa=median(figures["again"]) / yardstick,
        note=f"one thread, {KEYS} keys, values of {len(VALUE)} bytes; the aim is at most 1.5",
    )


def _microseconds(read: Callable[[str], bytes | None], keys: list[str]) -> float:
    wrong = 0
    begun = time.perf_counter()
    for number in range(READS):
        wrong += read(keys[number % KEYS]) != VALUE
    took = time.perf_counter() - begun
    if wrong:
        raise AssertionError(f"{wrong} of {READS} reads returned another value")
    return took / READS * 1e6


def _must_not_load(key: str, held: object) -> LoadedValue:
    raise AssertionError(f"{key} is not in the cache")
