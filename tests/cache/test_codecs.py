"""How the results of cached functions become bytes, and what bytes of another codec do."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from relay.cache import (
    JSON,
    TEXT,
    AsyncTokenCache,
    Cached,
    Codec,
    MemoryStore,
    TokenCache,
    cached,
    entry_key,
    generation_key,
)
from tests.cache.cached_rows import Rows, asynchronous


@dataclass(frozen=True)
class Sale:
    customer: str
    number: int


SALE: Codec[Sale] = Codec(orjson.dumps, lambda raw: Sale(**orjson.loads(raw)))


@pytest.fixture
def cache() -> TokenCache:
    return TokenCache(MemoryStore(), "shop")


def test_a_result_is_of_the_same_types_whether_it_was_cached_or_not(cache: TokenCache) -> None:
    user = cached(cache, key="user:{name}")(Rows(ada={"roles": ("a", "b")}).read)
    assert [user("ada"), user("ada")] == [{"roles": ["a", "b"]}] * 2


@pytest.mark.parametrize(
    ("codec", "value", "raw"),
    [
        (JSON, {"a": [1, None, "é"]}, '{"a":[1,null,"é"]}'.encode()),
        (TEXT, "é", "é".encode()),
        (SALE, Sale("ada", 7), b'{"customer":"ada","number":7}'),
    ],
)
def test_a_codec_makes_the_bytes_and_values_of_them(
    cache: TokenCache, codec: Codec[Any], value: Any, raw: bytes
) -> None:
    function = cached(cache, key="k:{n}", codec=codec)(lambda n: value)
    assert [function(1), function(1)] == [value, value]
    (stored,), _ = cache.store.read([entry_key("shop", "k:1")], generation_key("shop"))
    assert stored is not None
    assert stored.value == raw
    assert function.load(1).value == raw


def as_text(name: str) -> str:
    return "ada/7"


def test_bytes_of_another_codec_are_loaded_again_and_replaced(cache: TokenCache) -> None:
    """A new version of the application reads what the old one has cached."""
    rows = Rows(k=Sale("ada", 7))
    cached(cache, key="{name}", codec=TEXT)(as_text)("k")
    order = cached(cache, key="{name}", codec=SALE)(rows.read)
    assert [order("k"), order("k")] == [Sale("ada", 7)] * 2
    assert rows.reads == 1


class Contended(TokenCache):
    """Before each of the first reads, another version of the application stores other bytes of its own codec."""

    left = 2

    async def read(self, *args: Any, **kwargs: Any) -> dict[str, Cached]:
        if self.left:
            self.left -= 1
            other = TokenCache(self.store, self.namespace)
            other.invalidate("k")
            cached(other, key=str, codec=TEXT)(lambda name: f"{name} {self.left}")("k")
        return await super().read(*args, **kwargs)


def test_other_bytes_of_another_codec_are_loaded_again_as_well() -> None:
    """Two versions of an application run at the same time, and the other stores the value again after a change."""
    order = cached(Contended(MemoryStore(), "shop"), key="{name}", codec=SALE)(Rows(k=Sale("ada", 7)).read)
    assert order("k") == Sale("ada", 7)


def test_a_result_that_cannot_be_encoded_is_an_error_and_keeps_no_lease(cache: TokenCache) -> None:
    rows = Rows(k=object())
    function = cached(cache, key="{name}")(rows.read)
    with pytest.raises(TypeError):
        function("k")
    rows.rows["k"] = 1
    assert function("k") == 1
    assert rows.reads == 2


def test_coroutines_load_other_bytes_of_another_codec_again_as_well() -> None:
    cache = AsyncTokenCache(Contended(MemoryStore(), "shop"))
    order = cached(cache, key="{name}", codec=SALE)(asynchronous(Rows(k=Sale("ada", 7)).read))

    async def main() -> Any:
        return await order("k")

    assert asyncio.run(main()) == Sale("ada", 7)


def test_coroutines_load_bytes_of_another_codec_again(cache: TokenCache) -> None:
    rows = Rows(k=Sale("ada", 7))
    cached(cache, key="{name}", codec=TEXT)(as_text)("k")
    order = cached(AsyncTokenCache(cache), key="{name}", codec=SALE)(asynchronous(rows.read))

    async def main() -> list[Any]:
        return [await order("k"), await order("k")]

    assert asyncio.run(main()) == [Sale("ada", 7)] * 2
    assert rows.reads == 1
