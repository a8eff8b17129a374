"""``cached``: functions whose results are read through the cache, for threads and for asyncio."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

import orjson

from relay.cache.entry import LoadedValue, Tokens
from relay.cache.function_key import FunctionKey, KeyedCall
from relay.cache.reads import Cached, Outcome
from relay.cache.token_cache import AsyncTokenCache, TokenCache

P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V")
C = TypeVar("C", bound=TokenCache | AsyncTokenCache)


@dataclass(frozen=True, slots=True)
class Codec(Generic[V]):
    """Encodes an application's values to the bytes in the cache, and decodes them.

    ``decode`` raises any exception for bytes that ``encode`` did not produce. Such values are loaded again, so a new
    version of an application may use a different codec.
    """

    encode: Callable[[V], bytes]
    decode: Callable[[bytes], V]


JSON: Codec[Any] = Codec(orjson.dumps, orjson.loads)
"""JSON values, and values that orjson writes as JSON: datetimes, UUIDs and dataclasses come back as text and dicts."""

TEXT: Codec[str] = Codec(str.encode, bytes.decode)

BYTES: Codec[bytes] = Codec(bytes, bytes)


@overload
def cached(
    cache: TokenCache, *, key: str | Callable[..., str], codec: Codec[Any] = JSON
) -> Callable[[Callable[P, R]], CachedFunction[P, R]]: ...


@overload
def cached(
    cache: AsyncTokenCache, *, key: str | Callable[..., str], codec: Codec[Any] = JSON
) -> Callable[[Callable[P, Awaitable[R]]], AsyncCachedFunction[P, R]]: ...


def cached(cache: TokenCache | AsyncTokenCache, *, key: str | Callable[..., str], codec: Codec[Any] = JSON) -> Any:
    """Let a function's results come from the cache; with an ``AsyncTokenCache``, a coroutine function's.

        @cached(cache, key="order:{customer}:{number}")
        def order(customer: str, number: int) -> dict[str, Any] | None: ...

    ``key``: one of the templates in the config's ``cache.keys``, with the function's parameters as its columns; or a
    function of the same parameters that returns the cache key. All parameters that the result depends on have to be in
    it. A result of None is cached as well: it means that there is no such item.

    The function has to read where each write is visible once it is in the stream (I6): consistently from DynamoDB, or
    from a primary as ``VitessLoader`` does. To read from replicas, use a loader. Raises ValueError if the template
    names anything but a parameter.
    """
    if isinstance(cache, AsyncTokenCache):
        return lambda function: AsyncCachedFunction(cache, function, key, codec)
    return lambda function: CachedFunction(cache, function, key, codec)


class _Keyed(Generic[C, P, R]):
    """A function with a cache, a cache key for its arguments, and a codec for its results."""

    __name__: str

    def __init__(self, cache: C, function: Callable[P, Any], key: str | Callable[..., str], codec: Codec[Any]) -> None:
        functools.update_wrapper(cast(Callable[..., Any], self), function)
        self._cache = cache
        self._function: Callable[..., Any] = function
        self._codec = codec
        self._key = FunctionKey(key, function)

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return the cache key for these arguments. Raises ValueError if an argument cannot be part of a cache key."""
        return self._key.call(*args, **kwargs).key

    def _arguments(self, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the arguments for those keys that belong to this function. Raises ``ConfigError``."""
        return {key: arguments for key in keys if (arguments := self._key.arguments(key)) is not None}

    def _loaded(self, call: KeyedCall, result: Any) -> LoadedValue:
        value = None if result is None else self._codec.encode(result)
        return LoadedValue(value, {}, fresher=True, canonical=self._key.is_canonical(call, result))

    def _decoded(self, found: Cached) -> R:
        # Also decodes values just loaded, so that a result has the same types wherever it comes from.
        return cast(R, None if found.value is None else self._codec.decode(found.value))


class CachedFunction(_Keyed[TokenCache, P, R]):
    """A function whose results come from the cache. ``__wrapped__``: the function itself."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the cached result, or call the function. Raises as the function and the codec do."""
        call = self._key.call(*args, **kwargs)
        load = partial(self._load, call)
        found = self._cache.get_or_load(call.key, load)
        while found.outcome is Outcome.HIT:
            try:
                return self._decoded(found)
            except Exception:
                found = self._cache.get_or_load(call.key, load, refused=found.value)
        return self._decoded(found)

    def load(self, *args: P.args, **kwargs: P.kwargs) -> LoadedValue:
        """Call the function, and return its result as a loader does."""
        return self._load(self._key.call(*args, **kwargs))

    def _load(self, call: KeyedCall, *_: Any) -> LoadedValue:
        return self._loaded(call, self._function(*call.args, **call.kwargs))

    def load_many(self, wanted: Mapping[str, Tokens | None]) -> dict[str, LoadedValue]:
        """Load its keys, for ``relay verify --loader``. Raises ``ConfigError`` if keys give no arguments."""
        return {key: self.load(**each) for key, each in self._arguments(wanted).items()}  # type: ignore[call-arg]

    def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Invalidate the result for these arguments, as ``TokenCache.invalidate``."""
        return self._cache.invalidate(self.key(*args, **kwargs))


class AsyncCachedFunction(_Keyed[AsyncTokenCache, P, R]):
    """A coroutine function (``__wrapped__``) whose results come from the cache, as with ``CachedFunction``, awaited."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        call = self._key.call(*args, **kwargs)
        load = partial(self._load, call)
        found = await self._cache.get_or_load(call.key, load)
        while found.outcome is Outcome.HIT:
            try:
                return self._decoded(found)
            except Exception:
                found = await self._cache.get_or_load(call.key, load, refused=found.value)
        return self._decoded(found)

    async def load(self, *args: P.args, **kwargs: P.kwargs) -> LoadedValue:
        return await self._load(self._key.call(*args, **kwargs))

    async def _load(self, call: KeyedCall, *_: Any) -> LoadedValue:
        return self._loaded(call, await self._function(*call.args, **call.kwargs))

    async def load_many(self, wanted: Mapping[str, Tokens | None]) -> dict[str, LoadedValue]:
        return {key: await self.load(**each) for key, each in self._arguments(wanted).items()}  # type: ignore[call-arg]

    async def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        return await self._cache.invalidate(self.key(*args, **kwargs))
