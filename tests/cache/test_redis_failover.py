"""A Redis that restarts, is demoted or fails over while the connections of its clients stay open."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import redis

from relay.cache import Cached, Invalidator, LoadedValue, Outcome, RedisStore, TokenCache, generation_key
from relay.cache.store import has_lost
from relay.errors import RelayError, Unavailable
from relay.services.redis import RedisServer
from relay.token import EventToken
from tests.cache.proxy import Proxy
from tests.cache.redis_groups import catch_up, command, follow
from tests.waiting import wait_until

pytestmark = pytest.mark.services

TOKEN = EventToken(100, "orders/stream/1", "DynamoDB/5")


def constant(value: bytes) -> Any:
    return lambda key, compare: LoadedValue(value, {}, fresher=True)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def primary(stack: ExitStack) -> RedisServer:
    return stack.enter_context(RedisServer())


@pytest.fixture
def replica(stack: ExitStack, primary: RedisServer) -> RedisServer:
    """A server that has what the primary has."""
    server = stack.enter_context(RedisServer())
    follow(server, primary)
    return server


@pytest.fixture
def proxy(stack: ExitStack, primary: RedisServer) -> Proxy:
    return stack.enter_context(Proxy(primary.port))


@pytest.fixture
def store(stack: ExitStack, proxy: Proxy) -> RedisStore:
    return stack.enter_context(RedisStore(f"redis://127.0.0.1:{proxy.port}/0"))


def test_values_restored_by_a_restart_behind_a_proxy_are_not_served(
    primary: RedisServer, proxy: Proxy, store: RedisStore
) -> None:
    """I6: the invalidation was acknowledged, but came after the snapshot and is lost; no connection has broken."""
    cache = TokenCache(store, "shop")
    assert cache.get_or_load("k", constant(b"old")).outcome is Outcome.FILLED
    command(primary, "SAVE")
    Invalidator(store, "shop").apply([("k", TOKEN)])
    before = proxy.connections
    primary.kill()
    primary.restart()
    proxy.lead_to(primary.port)
    assert proxy.connections == before
    assert cache.get_or_load("k", constant(b"new")) == Cached(b"new", Outcome.FILLED)
    assert cache.get_or_load("k", constant(b"newer")) == Cached(b"new", Outcome.HIT)


def test_a_process_that_reads_only_later_does_not_serve_what_a_restart_restored(
    stack: ExitStack, primary: RedisServer, proxy: Proxy, store: RedisStore
) -> None:
    """I6: another one may have written after the restart, without noticing it."""
    TokenCache(store, "shop").get_or_load("k", constant(b"old"))
    later = stack.enter_context(RedisStore(store.address))
    TokenCache(later, "shop").get_or_load("other", constant(b"other"))
    command(primary, "SAVE")
    primary.kill()
    primary.restart()
    proxy.lead_to(primary.port)
    TokenCache(store, "shop").get_or_load("more", constant(b"more"))
    assert TokenCache(later, "shop").get_or_load("k", constant(b"new")) == Cached(b"new", Outcome.FILLED)


def test_what_a_failover_behind_a_proxy_has_lost_is_not_served(
    primary: RedisServer, replica: RedisServer, proxy: Proxy, store: RedisStore
) -> None:
    """I6: the replica became primary without the last invalidation."""
    cache = TokenCache(store, "shop")
    cache.get_or_load("k", constant(b"old"))
    catch_up(replica, primary)
    command(replica, "REPLICAOF", "NO", "ONE")
    Invalidator(store, "shop").apply([("k", TOKEN)])
    before = store.generation(generation_key("shop"))
    proxy.lead_to(replica.port)
    assert cache.get_or_load("k", constant(b"new")) == Cached(b"new", Outcome.FILLED)
    assert store.generation(generation_key("shop")) != before


def test_a_demoted_primary_serves_nothing_and_takes_nothing(
    primary: RedisServer, replica: RedisServer, store: RedisStore
) -> None:
    """I6: invalidations go to the new primary from now on."""
    cache, invalidator = TokenCache(store, "shop"), Invalidator(store, "shop")
    cache.get_or_load("k", constant(b"old"))
    catch_up(replica, primary)
    command(replica, "REPLICAOF", "NO", "ONE")
    follow(primary, replica)
    assert cache.get_or_load("k", constant(b"new")) == Cached(b"new", Outcome.MISS)
    assert _several(cache) == {Cached(b"new", Outcome.MISS)}
    with pytest.raises(Unavailable, match="not a primary"):
        invalidator.apply([("k", TOKEN)])
    with pytest.raises(Unavailable):
        store.renew(generation_key("shop"))
    with pytest.raises(Unavailable):
        store.losses()


def test_a_replica_that_knows_the_generation_of_its_primary_serves_nothing(
    stack: ExitStack, primary: RedisServer, replica: RedisServer, store: RedisStore
) -> None:
    """I6: the next invalidation may reach it late."""
    command(replica, "REPLICAOF", "NO", "ONE")
    follow(primary, replica)
    new = stack.enter_context(RedisStore(replica.url))
    TokenCache(new, "shop").get_or_load("k", constant(b"old"))
    catch_up(primary, replica)
    cache = TokenCache(store, "shop")
    assert cache.get_or_load("k", constant(b"new")) == Cached(b"new", Outcome.MISS)
    assert _several(cache) == {Cached(b"new", Outcome.MISS)}


def test_a_store_leaves_a_demoted_primary_for_the_new_one(
    primary: RedisServer, replica: RedisServer, proxy: Proxy, store: RedisStore
) -> None:
    """As where the name of the host leads to another server: connections that are open stay with the old one."""
    cache, invalidator = TokenCache(store, "shop"), Invalidator(store, "shop")
    cache.get_or_load("k", constant(b"old"))
    catch_up(replica, primary)
    command(replica, "REPLICAOF", "NO", "ONE")
    follow(primary, replica)
    proxy.later(replica.port)  # for new connections
    with pytest.raises(Unavailable):
        invalidator.apply([("k", TOKEN)])
    assert invalidator.apply([("k", TOKEN)]).applied == 1
    assert cache.get_or_load("k", constant(b"new")) == Cached(b"new", Outcome.FILLED)


def test_a_server_that_was_demoted_and_promoted_again_serves_nothing_of_before(
    primary: RedisServer, store: RedisStore
) -> None:
    """I6: it is the same process, but another one may have been primary and have lost its writes."""
    cache = TokenCache(store, "shop")
    cache.get_or_load("k", constant(b"old"))
    command(primary, "REPLICAOF", "127.0.0.1", "1")
    command(primary, "REPLICAOF", "NO", "ONE")
    assert cache.get_or_load("k", constant(b"new")) == Cached(b"new", Outcome.FILLED)


def test_a_primary_that_is_cut_off_from_its_replicas_serves_nothing_and_takes_nothing(
    primary: RedisServer, store: RedisStore
) -> None:
    """I6: another one may have replaced it, which it cannot know; with `min-replicas-to-write` it says so."""
    cache, invalidator = TokenCache(store, "shop"), Invalidator(store, "shop")
    cache.get_or_load("k", constant(b"old"))
    command(primary, "CONFIG", "SET", "min-replicas-to-write", "1")
    assert cache.get_or_load("k", constant(b"new")) == Cached(b"new", Outcome.MISS)
    assert _several(cache) == {Cached(b"new", Outcome.MISS)}
    with pytest.raises(Unavailable, match="Not enough good replicas"):
        invalidator.apply([("k", None)])
    command(primary, "CONFIG", "SET", "min-replicas-to-write", "0")
    assert invalidator.apply([("k", None)]).applied == 1


def test_a_primary_that_keeps_too_few_of_its_replicas_serves_nothing_and_takes_nothing(
    stack: ExitStack, primary: RedisServer, replica: RedisServer, store: RedisStore
) -> None:
    """I6: one of two replicas takes over, and the other is on the side of the old primary."""
    other = stack.enter_context(RedisServer())
    follow(other, primary)
    command(primary, "CONFIG", "SET", "min-replicas-to-write", "2")
    wait_until(lambda: command(primary, "INFO", "replication")["min_slaves_good_slaves"] == 2 or None)
    cache, invalidator = TokenCache(store, "shop"), Invalidator(store, "shop")
    assert cache.get_or_load("k", constant(b"old")).outcome is Outcome.FILLED
    command(replica, "REPLICAOF", "NO", "ONE")
    wait_until(lambda: command(primary, "INFO", "replication")["min_slaves_good_slaves"] == 1 or None)
    with RedisStore(replica.url) as new:
        Invalidator(new, "shop").apply([("k", TOKEN)])
    assert cache.get_or_load("k", constant(b"new")) == Cached(b"new", Outcome.MISS)
    assert _several(cache) == {Cached(b"new", Outcome.MISS)}
    with pytest.raises(Unavailable, match="Not enough good replicas"):
        invalidator.apply([("k", TOKEN)])


def test_a_primary_that_cannot_write_its_snapshots_serves_nothing(primary: RedisServer, store: RedisStore) -> None:
    """I6: that is what it says about a write, also if it has too few replicas besides."""
    cache = TokenCache(store, "shop")
    cache.get_or_load("k", constant(b"old"))
    command(primary, "CONFIG", "SET", "save", "3600 1")
    command(primary, "CONFIG", "SET", "dir", "/proc")
    command(primary, "BGSAVE")
    wait_until(lambda: command(primary, "INFO", "persistence")["rdb_last_bgsave_status"] == "err" or None)
    assert cache.get_or_load("k", constant(b"new")) == Cached(b"new", Outcome.MISS)
    assert _several(cache) == {Cached(b"new", Outcome.MISS)}
    command(primary, "CONFIG", "SET", "save", "")
    assert cache.get_or_load("k", constant(b"new")) == Cached(b"old", Outcome.HIT)


def test_a_user_who_may_not_run_hdel_is_refused_with_its_name(primary: RedisServer, store: RedisStore) -> None:
    """I6: a primary that was cut off would answer the same, and be read."""
    TokenCache(store, "shop").get_or_load("k", constant(b"old"))
    command(primary, "ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-hdel")
    with RedisStore(primary.url.replace("//", "//app:secret@")) as restricted:
        cache = TokenCache(restricted, "shop")
        for read in (lambda: cache.get_or_load("k", constant(b"new")), lambda: _several(cache)):
            with pytest.raises(RelayError, match="'hdel'"):
                read()


def test_a_primary_that_is_cut_off_tells_nothing_of_its_losses(primary: RedisServer, store: RedisStore) -> None:
    """I6: nor does it begin a generation, for which it is asked without a key."""
    command(primary, "CONFIG", "SET", "min-replicas-to-write", "1")
    with pytest.raises(Unavailable, match="Not enough good replicas"):
        store.losses()


def test_a_server_that_runs_a_script_of_others_for_long_is_unavailable(primary: RedisServer, store: RedisStore) -> None:
    cache, invalidator = TokenCache(store, "shop"), Invalidator(store, "shop")
    cache.get_or_load("k", constant(b"old"))
    command(primary, "CONFIG", "SET", "lua-time-limit", "10")
    with redis.Redis(port=primary.port) as other:
        endless = threading.Thread(target=pytest.raises, args=(redis.ResponseError, other.eval, "while true do end", 0))
        endless.start()
        wait_until(lambda: _is_busy(primary) or None)
        try:
            assert cache.get_or_load("k", constant(b"new")) == Cached(b"new", Outcome.MISS)
            assert _several(cache) == {Cached(b"new", Outcome.MISS)}
            with pytest.raises(Unavailable, match="busy"):
                invalidator.apply([("k", TOKEN)])
        finally:
            command(primary, "SCRIPT", "KILL")
        endless.join()
    assert invalidator.apply([("k", TOKEN)]).applied == 1


def _is_busy(server: RedisServer) -> bool:
    with suppress(redis.RedisError):
        command(server, "PING")
        return False
    return True


def test_a_server_that_refuses_writes_for_a_while_is_unavailable(primary: RedisServer, store: RedisStore) -> None:
    """As while it has too few replicas, or cannot write its snapshots. One without memory still deletes."""
    invalidator = Invalidator(store, "shop")
    command(primary, "CONFIG", "SET", "maxmemory", "1")
    assert invalidator.apply([("k", TOKEN)]).deleted == 1
    command(primary, "CONFIG", "SET", "min-replicas-to-write", "2")
    with pytest.raises(Unavailable):
        invalidator.apply([("k", TOKEN)])
    command(primary, "CONFIG", "SET", "min-replicas-to-write", "0")
    assert invalidator.apply([("k", TOKEN)]).applied == 1


def test_evictions_and_restarts_show_as_losses(primary: RedisServer, proxy: Proxy, store: RedisStore) -> None:
    before = store.losses()
    Invalidator(store, "shop").apply([(f"k{number}", TOKEN) for number in range(3000)])
    assert not has_lost(before, store.losses())
    command(primary, "CONFIG", "SET", "maxmemory-policy", "allkeys-random")
    command(primary, "CONFIG", "SET", "maxmemory", str(command(primary, "INFO", "memory")["used_memory"] - 200_000))
    Invalidator(store, "shop").apply([(f"k{number}", TOKEN) for number in range(3000, 3010)])
    evicted = store.losses()
    assert has_lost(before, evicted)
    command(primary, "CONFIG", "SET", "maxmemory", "0")
    command(primary, "CONFIG", "RESETSTAT")
    assert has_lost(before, store.losses())
    primary.kill()
    primary.restart()
    proxy.lead_to(primary.port)
    for earlier in before, evicted:
        assert has_lost(earlier, store.losses())


def _several(cache: TokenCache) -> set[Cached]:
    """Return what a read of two keys at once finds, which goes another way to the server than a read of one."""
    keys = ("k", "l")
    return set(cache.get_many(keys, lambda _: dict.fromkeys(keys, LoadedValue(b"new", {}, fresher=True))).values())
