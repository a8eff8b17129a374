"""Redis Cluster: slots that move, servers that are replaced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis.crc import key_slot

from relay.cache import (
    Cached,
    ConditionalWrite,
    Invalidator,
    LoadedValue,
    Outcome,
    RedisStore,
    StoredEntry,
    TokenCache,
    entry_key,
    generation_key,
    open_store,
)
from relay.cache.store import KEEP, has_lost
from relay.errors import Unavailable
from tests.cache.redis_groups import Cluster, catch_up, cluster, command
from tests.listening import NOBODY
from tests.waiting import wait_until

pytestmark = pytest.mark.services

KEYS = [entry_key("shop", str(number)) for number in range(100)]


@pytest.fixture
def servers() -> Iterator[Cluster]:
    with cluster() as servers:
        yield servers


@pytest.fixture
def store(servers: Cluster) -> Iterator[RedisStore]:
    with RedisStore(servers.url) as store:
        yield store


def constant(value: bytes) -> Any:
    return lambda key, compare: LoadedValue(value, {}, fresher=True)


def key_of_the_first(name: str = "k") -> str:
    """Return a cache key of ``shop`` that the first server keeps."""
    return next(
        key for number in range(1000) if key_slot(entry_key("shop", key := f"{name}{number}").encode()) < 16_384 // 3
    )


@pytest.mark.parametrize("half", [True, False], ids=["moving", "moved"])
def test_a_slot_that_moves_is_followed(servers: Cluster, store: RedisStore, half: bool) -> None:
    """Half moved, the server that has the slot says that another has the key; then that another has the slot."""
    key = key_of_the_first()
    name, slot = entry_key("shop", key), key_slot(entry_key("shop", key).encode())
    store.compare_and_set([ConditionalWrite(name, None, b"one", b"v", 60.0)])
    servers.move(slot, servers.primaries[0], servers.primaries[1], half=half)
    assert store.read([name], generation_key("shop"))[0] == [StoredEntry(b"one", b"v")]
    assert store.compare_and_set([ConditionalWrite(name, b"one", b"two", None, KEEP)]) == {}
    assert store.compare_and_set([ConditionalWrite(name, b"one", b"three", None, KEEP)]) == {name: b"two"}


def test_a_primary_with_too_few_replicas_is_not_read_though_a_slot_of_the_call_has_moved(
    servers: Cluster, store: RedisStore
) -> None:
    """I6: what it says of a write to a slot that it has handed over does not show anything about its replicas."""
    first, second = (entry_key("shop", key_of_the_first(name)) for name in ("k", "l"))
    store.compare_and_set([ConditionalWrite(name, None, b"one", b"v", 60.0) for name in (first, second)])
    store.read([first, second], generation_key("shop"))
    servers.move(key_slot(first.encode()), servers.primaries[0], servers.primaries[1])
    command(servers.primaries[0], "CONFIG", "SET", "min-replicas-to-write", "2")
    with pytest.raises(Unavailable, match="Not enough good replicas"):
        store.read([first, second], generation_key("shop"))


def test_a_server_that_takes_a_slot_over_is_not_read_if_it_has_too_few_replicas(
    servers: Cluster, store: RedisStore
) -> None:
    """I6: the call is sent on to it, with a probe of its own."""
    keys = (entry_key("shop", str(number)) for number in range(1000))
    name = next(key for key in keys if key_slot(key.encode()) > 16_384 * 2 // 3 + 1)
    store.compare_and_set([ConditionalWrite(name, None, b"one", b"v", 60.0)])
    store.generation(generation_key("shop"))
    servers.move(key_slot(name.encode()), servers.primaries[2], servers.primaries[0], half=True)
    command(servers.primaries[0], "CONFIG", "SET", "min-replicas-to-write", "2")
    with pytest.raises(Unavailable, match="Not enough good replicas"):
        store.read([name], generation_key("shop"))


def test_a_cluster_that_swaps_a_primary_and_its_replica_is_followed(servers: Cluster, store: RedisStore) -> None:
    """I6: the new primary may lack acknowledged invalidations, so a new generation begins."""
    cache, key = TokenCache(store, "shop"), key_of_the_first()
    cache.get_or_load(key, constant(b"old"))
    catch_up(servers.replica, servers.primaries[0])
    command(servers.replica, "CLUSTER", "FAILOVER", "TAKEOVER")
    wait_until(lambda: command(servers.primaries[0], "INFO", "replication")["role"] == "slave")
    assert cache.get_or_load(key, constant(b"new")) == Cached(b"new", Outcome.FILLED)
    assert Invalidator(store, "shop").apply([(key, None)]).applied == 1
    assert cache.get_or_load(key, constant(b"newer")) == Cached(b"newer", Outcome.FILLED)


def test_a_primary_that_dies_is_replaced(servers: Cluster, store: RedisStore) -> None:
    """I6"""
    cache, key = TokenCache(store, "shop"), key_of_the_first()
    invalidator = Invalidator(store, "shop")
    cache.get_or_load(key, constant(b"old"))
    catch_up(servers.replica, servers.primaries[0])
    servers.primaries[0].kill()
    assert cache.get_or_load(key, constant(b"new")) == Cached(b"new", Outcome.MISS)
    with pytest.raises(Unavailable):
        invalidator.apply([(key, None)])

    def is_applied() -> bool:
        try:
            invalidator.apply([(key, None)])
        except Unavailable:
            return False
        return True

    wait_until(is_applied)
    assert cache.get_or_load(key, constant(b"new")) == Cached(b"new", Outcome.FILLED)


def test_a_restart_of_any_server_begins_a_new_generation(servers: Cluster, store: RedisStore) -> None:
    """I6: also where the generation is kept by another one."""
    generation = store.read(KEYS, generation_key("shop"))[1]
    assert store.read(KEYS, generation_key("shop"))[1] == generation
    for server in servers.primaries[1:]:
        server.kill()
        server.restart()
        command(server, "CLUSTER", "SAVECONFIG")

    def read() -> str:
        try:
            return store.read(KEYS, generation_key("shop"))[1]
        except Unavailable:
            return generation

    wait_until(lambda: read() != generation)


def test_a_flush_of_one_server_shows_as_a_loss(servers: Cluster, store: RedisStore) -> None:
    """Another one may keep the generation."""
    before = store.losses()
    assert len(before.split()) == 3
    assert not has_lost(before, store.losses())
    command(servers.primaries[1], "FLUSHALL")
    assert has_lost(before, store.losses())


def test_a_seed_that_is_away_does_not_matter(servers: Cluster) -> None:
    with open_store(f"redis+cluster://{NOBODY},{servers.hosts}") as store:
        assert store.generation(generation_key("shop"))


def test_a_cluster_without_any_server_is_unavailable() -> None:
    with open_store(f"redis+cluster://ann:secret@{NOBODY},127.0.0.1:2") as store, pytest.raises(Unavailable) as raised:
        store.generation(generation_key("shop"))
    assert "secret" not in str(raised.value)
