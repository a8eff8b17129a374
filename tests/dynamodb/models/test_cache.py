"""Saves that keep a cache honest: whoever has saved reads what was saved, in every interleaving with readers (I6)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations_with_replacement
from types import coroutine
from typing import Any, TypeVar

import boto3
import pytest
from botocore.config import Config as BotoConfig
from botocore.exceptions import ClientError
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.cache import ConditionalWrite, LoadedValue, MemoryStore, Outcome, StoredEntry, TokenCache
from relay.cache.entry import Tokens
from relay.cache.reads import Calls
from relay.dynamodb.models import Attribute, ConstraintViolation, Engine, InvalidModel, Model, hash_key
from tests.dynamodb.models.shop import Counter, Mirror
from tests.examples import examples, is_quick

T = TypeVar("T")
KEY = "counter:a"


class World:
    """One item, a store, and a writer during whose save readers of other processes make their steps."""

    def __init__(self, readers: int) -> None:
        self.count = 1
        self.between: Callable[[], None] = lambda: None
        self.store = Watched(self)
        self.readers = [Reader(self) for _ in range(readers)]
        self.engine = Engine(OneItem(self))  # type: ignore[arg-type]
        self.cache = TokenCache(self.store, "shop", sleep=lambda seconds: None)

    def load(self, key: str, compare: Any) -> LoadedValue:
        return LoadedValue(str(self.count).encode(), {}, True)


class Watched(MemoryStore):
    """A store before each of whose calls by the writer the readers may go on."""

    def __init__(self, world: World) -> None:
        super().__init__(lambda: 0.0)
        self._world = world

    def read(self, keys: Sequence[str], generation_key: str) -> tuple[list[StoredEntry | None], str]:
        self._world.between()
        return super().read(keys, generation_key)

    def compare_and_set(self, writes: Sequence[ConditionalWrite]) -> dict[str, bytes | None]:
        self._world.between()
        return super().compare_and_set(writes)


class OneItem:
    """A table of one item: before and after each write the readers may go on."""

    def __init__(self, world: World) -> None:
        self._world = world

    def update_item(self, **request: Any) -> Any:
        self._world.between()
        old = {"id": {"S": "a"}, "count": {"N": str(self._world.count)}}
        (self._world.count,) = (int(each["N"]) for each in request["ExpressionAttributeValues"].values())
        self._world.between()
        return {"Attributes": old}


class Reader:
    """A reader in another process, which reads again and again, one step at a time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.cache = TokenCache(world.store, "shop", clock=lambda: 0.0, sleep=lambda seconds: None)
        self._steps = self._read()

    def step(self) -> None:
        self._steps.send(None)

    async def _read(self) -> None:
        while True:
            await self.cache.read([KEY], Stepped(self._world))


class Stepped(Calls):
    """Makes one call of a read at a time."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def store(self, call: Callable[[], T]) -> T:
        answer = call()
        await one_step()
        return answer

    async def load(self, wanted: Mapping[str, Tokens | None]) -> Mapping[str, LoadedValue]:
        answer = {KEY: self._world.load(KEY, None)}
        await one_step()
        return answer

    async def pause(self, seconds: float) -> None:
        await one_step()


@coroutine
def one_step() -> Iterator[None]:
    yield


def save_while(world: World, schedule: Sequence[Sequence[int]]) -> None:
    """Save 2, while before each call of the writer the readers of ``schedule`` make a step each; then read it back."""
    left = iter(schedule)
    busy = False

    def between() -> None:
        nonlocal busy
        if busy:
            return
        busy = True
        for number in next(left, ()):
            world.readers[number].step()
        busy = False

    world.between = between
    world.engine.save(Counter(id="a", count=2), cache=world.cache)
    world.between = lambda: None
    for _ in range(8):  # whatever the readers have begun to store
        for reader in world.readers:
            reader.step()
            assert world.cache.get_or_load(KEY, world.load).value == b"2"
            assert reader.cache.get_or_load(KEY, world.load).value == b"2"


POINTS = 5
"""Calls of a writer before which readers go on: two of the write, three of the invalidation."""


@pytest.mark.parametrize("begun", range(0, 17, 4 if is_quick() else 1))
def test_a_reader_at_any_step_stores_nothing_that_the_writer_would_read_in_place_of_its_write(begun: int) -> None:
    """I6: all interleavings of one reader with a save, where the reader has made ``begun`` steps before.

    Up to 8 of them may as well be at the first point, before which the writer has done nothing that a reader sees, and
    up to 8 are at all points. So each is played once.
    """
    for steps in range(min(8, 16 - begun) + 1):
        for places in combinations_with_replacement(range(1, POINTS), steps):
            world = World(readers=1)
            for _ in range(begun):
                world.readers[0].step()
            save_while(world, [[0] * places.count(point) for point in range(POINTS)])


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=8))
def test_three_readers_in_any_order_store_nothing_stale(begun: list[int], schedule: list[list[int]]) -> None:
    """I6"""
    world = World(readers=3)
    for number in begun:
        world.readers[number].step()
    save_while(world, schedule)


# -- on DynamoDB Local ----------------------------------------------------------------------------------------


class Ticket(Model, table="tickets", cache_keys=["ticket:{id}", "tickets-of:{owner}"]):
    id: Attribute[str] = hash_key()
    owner: Attribute[str | None]
    size: Attribute[int | None]


@pytest.fixture
def cache() -> TokenCache:
    return TokenCache(MemoryStore(), uuid.uuid4().hex)


def cached(cache: TokenCache, *keys: str) -> set[str]:
    """Return which of the keys are in the cache, and put the others into it."""
    filled = cache.get_many(keys, lambda wanted: {key: LoadedValue(b"old", {}, True) for key in wanted})
    return {key for key, found in filled.items() if found.outcome is Outcome.HIT}


@pytest.mark.services
def test_a_save_and_a_delete_drop_the_keys_of_the_old_and_the_new_item(fresh: Engine, cache: TokenCache) -> None:
    """I6: the writer has not read the item, so only DynamoDB knows whose ticket it was."""
    fresh.bind(Ticket)
    fresh.save(Ticket(id="1", owner="ada"), cache=cache)
    keys = ["ticket:1", "ticket:2", "tickets-of:ada", "tickets-of:bob", "tickets-of:eve"]
    cached(cache, *keys)
    fresh.save(Ticket(id="1", owner="bob"), cache=cache)
    assert cached(cache, *keys) == {"ticket:2", "tickets-of:eve"}
    fresh.save(Ticket(id="1", size=2), cache=cache)
    assert cached(cache, *keys) == {"ticket:2", "tickets-of:ada", "tickets-of:eve"}
    fresh.delete(Ticket(id="1"), cache=cache)
    assert cached(cache, *keys) == {"ticket:2", "tickets-of:ada", "tickets-of:eve"}


@pytest.mark.services
def test_a_write_that_may_have_been_applied_drops_the_keys_too(
    fresh: Engine, cache: TokenCache, table_client: Any
) -> None:
    """I6: an answer may be lost, and a refusal may be that of a second try of the object's own write."""
    fresh.bind(Ticket)
    ticket = Ticket(id="1", owner="ada")
    fresh.save(ticket)
    keys = ["ticket:1", "tickets-of:ada", "tickets-of:bob"]
    cached(cache, *keys)
    ticket.owner = "bob"
    with pytest.raises(ConstraintViolation):
        fresh.save(ticket, condition=Ticket.owner == "eve", cache=cache)
    assert cached(cache, *keys) == set()
    nowhere: Any = boto3.client(
        "dynamodb",
        endpoint_url="http://127.0.0.1:9",
        region_name="us-east-1",
        config=BotoConfig(retries={"total_max_attempts": 1}),
    )
    unreachable = Engine(nowhere)
    for write in (unreachable.save, unreachable.delete):
        with pytest.raises(Exception, match="Could not connect"):
            write(ticket, cache=cache)
        assert "ticket:1" not in cached(cache, *keys)
    nowhere.close()
    elsewhere = Engine(table_client, table_name=lambda table: f"no-{table}")
    with pytest.raises(ClientError, match="ResourceNotFound"):
        elsewhere.save(ticket, cache=cache)


@pytest.mark.services
def test_a_class_without_cache_keys_cannot_drop_any(engine: Engine, cache: TokenCache) -> None:
    with pytest.raises(InvalidModel, match="Mirror declares no cache_keys"):
        engine.save(Mirror(left="a", right="b"), cache=cache)
