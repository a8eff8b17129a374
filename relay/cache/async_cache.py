"""The cache for asyncio: the rules and the calls of ``TokenCache``, awaited."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from relay.cache.entry import LoadedValue, Tokens
from relay.cache.reads import Cached, Calls
from relay.cache.token_cache import TokenCache
from relay.token import EventToken

T = TypeVar("T")

AsyncLoad = Callable[[str, Tokens | None], Awaitable[LoadedValue]]
"""``Load``, as a coroutine function."""

AsyncLoadMany = Callable[[Mapping[str, Tokens | None]], Awaitable[Mapping[str, LoadedValue]]]
"""``LoadMany``, as a coroutine function."""


class AsyncTokenCache:
    """``TokenCache`` for coroutines: ``cache`` has the settings and the counters, and may be used by threads, too.

    Loaders are awaited, and so are readers that wait for one. Calls to the store run in threads of ``asyncio``.
    """

    def __init__(self, cache: TokenCache) -> None:
        self.cache = cache

    async def get_or_load(self, key: str, load: AsyncLoad, *, refused: bytes | None = None) -> Cached:
        async def load_many(wanted: Mapping[str, Tokens | None]) -> Mapping[str, LoadedValue]:
            return {key: await load(key, wanted[key])}

        return (await self.get_many([key], load_many, refused=refused))[key]

    async def get_many(
        self, keys: Iterable[str], load_many: AsyncLoadMany, *, refused: bytes | None = None
    ) -> dict[str, Cached]:
        return await self.cache.read(keys, _AwaitedCalls(load_many), refused)

    async def invalidate(self, *keys: str, token: EventToken | None = None) -> bool:
        return await asyncio.to_thread(self.cache.invalidate, *keys, token=token)


class _AwaitedCalls(Calls):
    def __init__(self, load_many: AsyncLoadMany) -> None:
        self._load_many = load_many

    async def store(self, call: Callable[[], T]) -> T:
        return await asyncio.to_thread(call)

    async def load(self, wanted: Mapping[str, Tokens | None]) -> Mapping[str, LoadedValue]:
        return await self._load_many(wanted)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
