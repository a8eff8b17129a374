from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from relay.cache import (
    Cached,
    ConditionalWrite,
    Invalidator,
    LoadedValue,
    Outcome,
    RedisStore,
    TokenCache,
    entry_key,
    generation_key,
)
from relay.cache.store import FOREVER, KEEP
from relay.errors import RelayError, Unavailable
from relay.services.redis import RedisServer
from relay.token import EventToken
from tests.listening import NOBODY


@pytest.fixture
def store(redis_server: Any) -> Iterator[RedisStore]:
    with RedisStore(redis_server.url) as store:
        yield store


@pytest.fixture
def client(redis_server: Any) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


def constant(value: bytes) -> Any:
    return lambda key, compare: LoadedValue(value, {}, fresher=True)


@pytest.mark.services
def test_the_script_is_loaded_again_after_the_server_lost_it(
    store: RedisStore, client: redis.Redis, unique: str
) -> None:
    writes = [ConditionalWrite(entry_key(unique, str(n)), None, b"meta", None, 60.0) for n in range(1000)]
    assert store.compare_and_set(writes[:500]) == {}
    client.script_flush()
    assert store.compare_and_set(writes[500:]) == {}
    assert len(store.compare_and_set(writes)) == 1000


@pytest.mark.services
def test_times_to_live_are_set_kept_and_removed(store: RedisStore, client: redis.Redis, unique: str) -> None:
    key = entry_key(unique, "k")
    steps = [(None, b"1", 6e4, 6e7), (b"1", b"2", KEEP, 6e7), (b"2", b"3", FOREVER, -1), (b"3", b"4", KEEP, -1)]
    for expected, meta, ttl, left in steps:
        assert store.compare_and_set([ConditionalWrite(key, expected, meta, b"v", ttl)]) == {}
        assert client.pttl(key) == pytest.approx(left, abs=600_000 if left > 0 else 0)


@pytest.mark.services
def test_an_error_names_a_generation_of_another_type(store: RedisStore, client: redis.Redis, unique: str) -> None:
    client.lpush(generation_key(unique), "text")
    for keys in (["k"], ["k", "l"]):
        with pytest.raises(RelayError, match=rf"WRONGTYPE.*{re.escape(generation_key(unique))}"):
            store.read(keys, generation_key(unique))


@pytest.mark.services
def test_threads_that_begin_a_generation_at_once_get_the_same_one(redis_server: Any, unique: str) -> None:
    """I6: two generations at once would serve each other's values."""
    stores = [RedisStore(redis_server.url) for _ in range(8)]
    generations: list[str] = []
    barrier = threading.Barrier(len(stores))

    def begin(store: RedisStore) -> None:
        barrier.wait()
        generations.append(store.read([], generation_key(unique))[1])

    threads = [threading.Thread(target=begin, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close()
    assert len(generations) == len(stores)
    assert len(set(generations)) == 1


@pytest.mark.services
def test_one_of_many_racing_writes_succeeds(redis_server: Any, unique: str) -> None:
    """Compare and write are one step: 8 threads race 200 times."""
    stores = [RedisStore(redis_server.url) for _ in range(8)]
    won: list[int] = []
    barrier = threading.Barrier(len(stores))

    def race(number: int) -> None:
        for turn in range(200):
            expected = b"%d" % turn if turn else None
            barrier.wait()
            write = ConditionalWrite(entry_key(unique, "k"), expected, b"%d" % (turn + 1), b"%d" % number, 60.0)
            if not stores[number].compare_and_set([write]):
                won.append(turn)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close()
    assert won == list(range(200))


def test_an_unreachable_server_is_unavailable_and_its_password_stays_secret() -> None:
    with RedisStore(f"redis://user:secret@{NOBODY}/3") as store:
        for call in (
            lambda: store.generation("g"),
            lambda: store.renew("g"),
            lambda: store.read(["k"], "g"),
            lambda: store.compare_and_set([ConditionalWrite("k", None, b"m", None, 1.0)]),
        ):
            with pytest.raises(Unavailable, match=r"redis://127\.0\.0\.1") as raised:
                call()
            assert "secret" not in str(raised.value)


# -- restarts of the server --------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.mark.services
def test_values_restored_from_a_snapshot_are_not_served(server: RedisServer) -> None:
    """I6: the invalidation was acknowledged, but came after the snapshot and is lost."""
    with RedisStore(server.url) as store, redis.Redis.from_url(server.url) as client:
        cache, invalidator = TokenCache(store, "shop"), Invalidator(store, "shop")
        assert cache.get_or_load("k", constant(b"old")).outcome is Outcome.FILLED
        client.save()
        invalidator.apply([("k", EventToken(100, "orders/stream/1", "DynamoDB/5"))])
        server.kill()
        server.restart()
        assert client.hget(entry_key("shop", "k"), "v") == b"old"
        assert cache.get_or_load("k", constant(b"new")) == Cached(b"new", Outcome.FILLED)
        assert cache.get_or_load("k", constant(b"newer")) == Cached(b"new", Outcome.HIT)


@pytest.mark.services
def test_a_process_started_after_the_restart_does_not_serve_restored_values(server: RedisServer) -> None:
    """I6: the generation in the snapshot is of another run, whoever reads it first."""
    with RedisStore(server.url) as store, redis.Redis.from_url(server.url) as client:
        TokenCache(store, "shop").get_or_load("k", constant(b"old"))
        client.save()
    server.kill()
    server.restart()
    with RedisStore(server.url) as store:
        assert TokenCache(store, "shop").get_or_load("k", constant(b"new")).outcome is Outcome.FILLED


@pytest.mark.services
def test_a_fill_that_began_before_the_restart_is_not_served_after_it(server: RedisServer) -> None:
    """I6: the snapshot may restore its lease."""
    with RedisStore(server.url) as store, redis.Redis.from_url(server.url) as client:
        cache = TokenCache(store, "shop")

        def load(key: str, compare: object) -> LoadedValue:
            client.save()
            server.kill()
            server.restart()
            return LoadedValue(b"old", {}, fresher=True)

        assert cache.get_or_load("k", load).value == b"old"
        assert cache.get_or_load("k", constant(b"new")) == Cached(b"new", Outcome.FILLED)


@pytest.mark.services
def test_new_connections_to_the_same_run_change_nothing(server: RedisServer) -> None:
    with RedisStore(server.url) as store, redis.Redis.from_url(server.url) as client:
        cache = TokenCache(store, "shop")
        cache.get_or_load("k", constant(b"old"))
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        assert cache.get_or_load("k", constant(b"new")) == Cached(b"old", Outcome.HIT)
    with RedisStore(server.url) as store:
        assert TokenCache(store, "shop").get_or_load("k", constant(b"new")) == Cached(b"old", Outcome.HIT)


@pytest.mark.services
def test_reader_and_invalidator_survive_an_outage(server: RedisServer) -> None:
    with RedisStore(server.url) as store:
        cache, invalidator = TokenCache(store, "shop"), Invalidator(store, "shop")
        cache.get_or_load("k", constant(b"one"))
        server.kill()
        assert cache.get_or_load("k", constant(b"two")) == Cached(b"two", Outcome.MISS)
        with pytest.raises(Unavailable):
            invalidator.apply([("k", None)])
        server.restart()
        assert invalidator.apply([("k", None)]).applied == 1
        assert cache.get_or_load("k", constant(b"two")).outcome is Outcome.FILLED
