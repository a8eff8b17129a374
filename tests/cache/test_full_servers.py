"""I6 on servers that have no room for more, while they go on answering reads."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from relay.cache import (
    Invalidator,
    LoadedValue,
    MemcachedStore,
    Outcome,
    RedisStore,
    TokenCache,
    entry_key,
    generation_key,
    is_fresher,
    open_store,
)
from relay.cache.continuity import Continuity
from relay.cache.entry import Tokens
from relay.errors import Unavailable
from relay.token import EventToken
from tests.cache.floor_tokens import LEFT, token
from tests.cache.full_servers import Fillable, fillable

pytestmark = pytest.mark.services

KEYS = [f"k{number}" for number in range(30)]
TOKEN = EventToken(100, "orders/stream/1", "DynamoDB/5")


@pytest.fixture(scope="module", params=["noeviction", "volatile-lru", "memcached", "sentinel", "cluster"])
def started(request: pytest.FixtureRequest) -> Iterator[Fillable]:
    with fillable(request.param) as server:
        yield server


@pytest.fixture
def server(started: Fillable) -> Iterator[Fillable]:
    yield started
    started.free()


@pytest.fixture
def store(server: Fillable) -> Iterator[RedisStore | MemcachedStore]:
    with open_store(server.url) as store:
        yield store


def constant(value: bytes) -> Any:
    return lambda key, compare: LoadedValue(value, {}, fresher=True)


def every(value: bytes) -> Any:
    return lambda wanted: {key: LoadedValue(value, {}, fresher=True) for key in wanted}


def test_an_invalidation_that_cannot_be_written_deletes(server: Fillable, store: Any, unique: str) -> None:
    """I6: else the values from before it were served for as long as there is no room."""
    cache = TokenCache(store, unique)
    cache.get_many(KEYS, every(b"old"))
    server.fill()
    counts = Invalidator(store, unique).apply([(key, TOKEN) for key in KEYS])
    assert counts.applied == len(KEYS)
    assert counts.deleted
    names = [entry_key(unique, key) for key in KEYS]
    assert not any(each and each.value for each in store.read(names, generation_key(unique))[0])
    found = cache.get_many(KEYS, every(b"new"))
    assert {each.value for each in found.values()} == {b"new"}


def test_what_a_server_does_once_it_is_full_is_said(server: Fillable, store: Any) -> None:
    server.fill()
    said = [str(each) for each in store.memory()]
    if "cluster" in server.url:
        assert sum("without a limit" in each for each in said) == 2
    full = next(each for each in said if "without a limit" not in each)
    assert "volatile-lru, so while" in full or "noeviction, so while it is full invalidations delete entries" in full


def test_where_one_server_is_full_the_others_remember_invalidations(unique: str) -> None:
    with fillable("cluster") as server, open_store(server.url) as store:
        cache = TokenCache(store, unique)
        cache.get_many(KEYS, every(b"old"))
        server.fill()
        counts = Invalidator(store, unique).apply([(key, TOKEN) for key in KEYS])
        names = [entry_key(unique, key) for key in KEYS]
        left = [each for each in store.read(names, generation_key(unique))[0] if each is not None]
        assert len(left) == len(KEYS) - counts.deleted > 0
        found = cache.get_many(KEYS, every(b"new"))
        outcomes = [each.outcome for each in found.values()]
        assert (outcomes.count(Outcome.FILLED), outcomes.count(Outcome.MISS)) == (len(left), counts.deleted)


def test_a_value_that_is_being_loaded_when_its_tombstone_is_refused_is_not_stored(
    server: Fillable, store: Any, unique: str
) -> None:
    """I6"""
    cache, invalidator = TokenCache(store, unique), Invalidator(store, unique)

    def load(wanted: Any) -> Any:
        found = every(b"old")(wanted)
        server.fill()
        invalidator.apply([(key, TOKEN) for key in KEYS])
        server.free()
        return found

    cache.get_many(KEYS, load)
    found = cache.get_many(KEYS, every(b"new"))
    assert {each.value for each in found.values()} == {b"new"}


def test_a_namespace_that_is_invalidated_without_room_is_not_served(server: Fillable, store: Any, unique: str) -> None:
    """I6, I9: readers find a new generation, or none."""
    cache = TokenCache(store, unique)
    cache.get_many(KEYS, every(b"old"))
    server.fill()
    try:
        Invalidator(store, unique).bump("a test")
    except Unavailable:
        assert isinstance(store, MemcachedStore)
    assert {each.value for each in cache.get_many(KEYS, every(b"new")).values()} == {b"new"}
    server.free()
    assert {each.value for each in cache.get_many(KEYS, every(b"newer")).values()} <= {b"new", b"newer"}


def test_a_replica_that_lags_stays_out_after_tombstones_were_refused(server: Fillable, store: Any, unique: str) -> None:
    """I6: no tombstone and no floor says how far it has to be."""
    cache, invalidator = TokenCache(store, unique), Invalidator(store, unique)

    def read(last: int) -> set[Outcome]:
        def load(wanted: Any) -> dict[str, LoadedValue]:
            tokens = {LEFT: token(last)}
            return {key: LoadedValue(b"%d" % last, tokens, is_fresher(tokens, held)) for key, held in wanted.items()}

        return {each.outcome for each in cache.get_many(KEYS, load).values()}

    invalidator.apply([("another", token(4)), ("another", token(6))])
    assert read(6) == {Outcome.FILLED}
    server.fill()
    invalidator.apply([(key, token(9)) for key in KEYS])
    server.free()
    assert read(8) == {Outcome.DROPPED}
    invalidator.apply([("another", token(10))])
    assert read(8) == {Outcome.DROPPED}
    assert read(10) == {Outcome.FILLED}


def test_an_application_that_invalidates_values_without_room_deletes_them(
    server: Fillable, store: Any, unique: str
) -> None:
    """I6: those have tokens, which a tombstone is to keep."""
    cache, invalidator = TokenCache(store, unique), Invalidator(store, unique)
    invalidator.apply([("another", token(4)), ("another", token(6))])

    def load(key: str, compare: Tokens | None) -> LoadedValue:
        return LoadedValue(b"old", {LEFT: token(6)}, is_fresher({LEFT: token(6)}, compare))

    for key in KEYS:
        assert cache.get_or_load(key, load).outcome is Outcome.FILLED
    server.fill()
    assert cache.invalidate(*KEYS)
    assert {each.value for each in cache.get_many(KEYS, every(b"new")).values()} == {b"new"}


def test_a_consumer_goes_on_and_its_next_start_invalidates(server: Fillable, store: Any, unique: str) -> None:
    """I6: how far it was applied cannot be noted."""
    ids, ends = {"orders": "a"}, {"orders": {"0": 100}}

    def consumer() -> Continuity:
        return Continuity(Invalidator(store, unique), "relay", "keys")

    running = consumer()
    running.begin(ids, {"orders": {"0": 0}}, ends)
    running.advance({"orders": {"0": 10}})
    TokenCache(store, unique).get_or_load("k", constant(b"old"))
    server.fill()
    running.advance({"orders": {"0": 20}})
    server.free()
    is_noted = consumer().begin(ids, {"orders": {"0": 20}}, ends) is None
    found = TokenCache(store, unique).get_or_load("k", constant(b"new"))
    assert found.value == (b"old" if is_noted else b"new")


def test_a_miss_is_loaded_at_once_and_warned_of_once_a_minute(
    server: Fillable, store: Any, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []
    cache, invalidator = TokenCache(store, unique, sleep=pauses.append), Invalidator(store, unique)
    store.generation(generation_key(unique))
    server.fill()
    with caplog.at_level(logging.WARNING):
        for key in KEYS:
            assert cache.get_or_load(key, constant(b"new")).value == b"new"
            invalidator.apply([(key, TOKEN)])
    assert pauses == []
    assert len(caplog.messages) <= 2
    assert cache.unreachable
