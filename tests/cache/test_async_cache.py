"""The cache for coroutines: the same calls in the same order, and what only coroutines can do: be cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from relay.cache import (
    AsyncTokenCache,
    Cached,
    Invalidator,
    LoadedValue,
    MemoryStore,
    Outcome,
    RedisStore,
    Store,
    TokenCache,
    Tokens,
)
from tests.cache.sources import Source


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.services)])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
        return
    server: Any = request.getfixturevalue("redis_server")
    with RedisStore(server.url) as redis_store:
        yield redis_store


@pytest.fixture
def cache(store: Store, unique: str) -> AsyncTokenCache:
    return AsyncTokenCache(TokenCache(store, unique))


class SlowSource:
    """Loads that take some time, during which other coroutines run."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.source = Source()
        self.seconds = seconds
        self.began = asyncio.Event()

    async def load(self, key: str, compare: Tokens | None) -> LoadedValue:
        loaded = self.source.load(key, compare)
        self.began.set()
        await asyncio.sleep(self.seconds)
        return loaded

    async def load_many(self, wanted: Mapping[str, Tokens | None]) -> dict[str, LoadedValue]:
        return {key: await self.load(key, compare) for key, compare in wanted.items()}


def test_values_are_loaded_once_and_then_hits(cache: AsyncTokenCache) -> None:
    async def main() -> None:
        source = SlowSource()
        assert await cache.get_or_load("k", source.load) == Cached(b"one", Outcome.FILLED)
        several = await cache.get_many(["k", "l"], source.load_many)
        assert several == {"k": Cached(b"one", Outcome.HIT), "l": Cached(b"one", Outcome.FILLED)}
        assert source.source.asked == [("k", None), ("l", None)]

    asyncio.run(main())


def test_an_invalidation_while_a_load_is_awaited_drops_the_fill(cache: AsyncTokenCache) -> None:
    """I6."""

    async def main() -> None:
        source = SlowSource(0.1)
        read = asyncio.create_task(cache.get_or_load("k", source.load))
        await source.began.wait()
        Invalidator(cache.cache.store, cache.cache.namespace).apply([("k", None)])
        assert (await read).outcome is Outcome.DROPPED
        assert (await cache.get_or_load("k", source.load)).outcome is Outcome.FILLED

    asyncio.run(main())


def test_coroutines_wait_for_the_one_that_loads(store: Store, unique: str) -> None:
    cache = AsyncTokenCache(TokenCache(store, unique, lease_ttl=600.0, lease_wait=600.0))

    async def main() -> None:
        source = SlowSource(0.5)
        found = await asyncio.gather(*(cache.get_or_load("k", source.load) for _ in range(50)))
        assert len(source.source.asked) == 1
        assert sorted(each.outcome for each in found) == [Outcome.FILLED, *[Outcome.HIT] * 49]

    asyncio.run(main())


def test_a_cancelled_load_leaves_no_lease_behind(store: Store, unique: str) -> None:
    """Else the next reader would wait for a value that nobody loads."""
    cache = AsyncTokenCache(TokenCache(store, unique, lease_ttl=600.0, lease_wait=600.0))

    async def main() -> None:
        source = SlowSource(600.0)
        read = asyncio.create_task(cache.get_or_load("k", source.load))
        await source.began.wait()
        read.cancel()
        with pytest.raises(asyncio.CancelledError):
            await read
        async with asyncio.timeout(60):
            assert (await cache.get_or_load("k", SlowSource().load)).outcome is Outcome.FILLED

    asyncio.run(main())


def test_an_error_of_the_load_reaches_the_reader_and_releases_its_lease(cache: AsyncTokenCache) -> None:
    async def broken(key: str, compare: Tokens | None) -> LoadedValue:
        raise OSError("database")

    async def main() -> None:
        with pytest.raises(OSError, match="database"):
            await cache.get_or_load("k", broken)
        assert (await cache.get_or_load("k", SlowSource().load)).outcome is Outcome.FILLED

    asyncio.run(main())


def test_a_store_that_cannot_be_reached_is_bypassed(unique: str) -> None:
    async def main() -> None:
        with RedisStore("redis://127.0.0.1:1/0") as store:
            cache = AsyncTokenCache(TokenCache(store, unique))
            assert await cache.get_or_load("k", SlowSource().load) == Cached(b"one", Outcome.MISS)
            assert not await cache.invalidate("k")
            assert cache.cache.unreachable == 2

    asyncio.run(main())


def test_a_store_that_answers_late_keeps_no_other_coroutine_from_running(unique: str) -> None:
    asked, let_go = threading.Event(), threading.Event()

    class Late(MemoryStore):
        def read(self, *args: Any) -> Any:
            asked.set()
            assert let_go.wait(120), "no other coroutine has run"
            return super().read(*args)

    async def main() -> None:
        read = asyncio.create_task(AsyncTokenCache(TokenCache(Late(), unique)).get_or_load("k", SlowSource().load))
        while not asked.is_set():
            await asyncio.sleep(0.01)
        let_go.set()
        assert (await read).outcome is Outcome.FILLED

    asyncio.run(main())
