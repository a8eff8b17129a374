"""What is particular to memcached: its items, its clock, what it loses, passwords and TLS."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from relay.cache import (
    Cached,
    ConditionalWrite,
    Invalidator,
    LoadedValue,
    MemcachedStore,
    Outcome,
    TokenCache,
    entry_key,
    generation_key,
)
from relay.cache.entry import State, decode
from relay.cache.memcached_store import item_key
from relay.cache.store import FOREVER, KEEP, has_lost
from relay.errors import ConfigError, RelayError, Unavailable
from relay.services.memcached import MemcachedServer
from relay.token import EventToken
from tests.cache.stores import write_foreign
from tests.certificates import Authority
from tests.listening import NOBODY
from tests.waiting import wait_until

TOKEN = EventToken(100, "orders/stream/1", "DynamoDB/5")


def constant(value: bytes) -> Any:
    return lambda key, compare: LoadedValue(value, {}, fresher=True)


@pytest.fixture
def store(memcached_server: Any) -> Iterator[MemcachedStore]:
    with MemcachedStore(memcached_server.url) as store:
        yield store


@pytest.fixture
def server() -> Iterator[MemcachedServer]:
    with MemcachedServer(options={"memory-limit": "2", "extended": "no_slab_reassign"}) as server:
        yield server


def ask(store: MemcachedStore, request: bytes) -> Any:
    with store._servers[0].connections.lent() as connection:
        return connection.read([request])[0]


# -- items and times ---------------------------------------------------------------------------------------------


@pytest.mark.services
def test_times_to_live_are_set_kept_and_removed(store: MemcachedStore, unique: str) -> None:
    key = entry_key(unique, "k")
    month = 40 * 86_400.0  # memcached takes what is longer than 30 days for a time since the epoch
    steps = [(None, b"1", 6e4, 6e4), (b"1", b"2", KEEP, 6e4), (b"2", b"3", month, month), (b"3", b"4", KEEP, month)]
    for expected, meta, ttl, left in [*steps, (b"4", b"5", FOREVER, -1), (b"5", b"6", KEEP, -1)]:
        assert store.compare_and_set([ConditionalWrite(key, expected, meta, b"v", ttl)]) == {}
        found = ask(store, b"mg %b t\r\n" % item_key(key)).number(b"t")
        assert found == pytest.approx(left, abs=600 if left > 0 else 0)


@pytest.mark.services
def test_an_entry_lasts_at_least_as_long_as_it_is_to(store: MemcachedStore, unique: str) -> None:
    """memcached's clock advances once a second: an item of one second may end at once."""
    for number in range(5):
        key, began = entry_key(unique, str(number)), time.monotonic()
        store.compare_and_set([ConditionalWrite(key, None, b"1", None, 0.5)])
        time.sleep(0.45)
        assert store.read([key], generation_key(unique))[0] != [None] or time.monotonic() - began > 0.5
        time.sleep(0.25)


@pytest.mark.services
def test_a_value_that_is_too_large_is_not_stored_and_nothing_is_lost(
    server: MemcachedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """I6: memcached would delete what is there, also a tombstone that another writer has put there."""
    with MemcachedStore(server.url) as store:
        cache = TokenCache(store, "shop")
        Invalidator(store, "shop").apply([("k", TOKEN)])
        large = b"x" * (1 << 20)
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                assert cache.get_or_load("k", constant(large)) == Cached(large, Outcome.DROPPED)
        [said] = caplog.messages
        assert "the item shop:k takes 1049" in said
        assert "accepts only 1048576 (option -I)" in said
        # What another reader meets is the tombstone, and no lease to wait for.
        [stored], _ = store.read([entry_key("shop", "k")], generation_key("shop"))
        entry = decode(stored.meta) if stored else None
        assert entry is not None
        assert entry.state is State.TOMBSTONE


@pytest.mark.services
def test_an_invalidation_that_fits_into_no_item_deletes() -> None:
    """I6"""
    servers = ",".join(f"{number:08x}-0000-11ee-b7b9-0242ac120002:1-5" for number in range(30_000))
    token = EventToken(100, "shop/commerce/0", f"MySQL56/{servers}")
    with MemcachedServer() as server, MemcachedStore(server.url) as store:
        cache, invalidator = TokenCache(store, "shop"), Invalidator(store, "shop")
        assert cache.get_or_load("k", constant(b"old")).outcome is Outcome.FILLED
        assert invalidator.apply([("k", token)]).deleted
        assert cache.get_or_load("k", constant(b"new")) == Cached(b"new", Outcome.FILLED)


@pytest.mark.services
def test_a_generation_of_another_program_is_an_error_that_names_it(store: MemcachedStore, unique: str) -> None:
    write_foreign(store, generation_key(unique))
    with pytest.raises(RelayError, match=r"generation}"):
        store.generation(generation_key(unique))


@pytest.mark.services
def test_threads_that_begin_a_generation_at_once_get_the_same_one(memcached_server: Any, unique: str) -> None:
    """I6: two generations at once would serve each other's values."""
    with MemcachedStore(memcached_server.url) as store:
        generations: list[str] = []
        barrier = threading.Barrier(8)

        def begin() -> None:
            barrier.wait()
            generations.append(store.read([], generation_key(unique))[1])

        threads = [threading.Thread(target=begin) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(generations) == 8
    assert len(set(generations)) == 1


@pytest.mark.services
def test_one_of_many_racing_writes_succeeds(memcached_server: Any, unique: str) -> None:
    """Compare and write are one step: 8 threads race 200 times."""
    won: list[int] = []
    barrier = threading.Barrier(8)
    with MemcachedStore(memcached_server.url) as store:

        def race() -> None:
            for turn in range(200):
                expected = b"%d" % turn if turn else None
                barrier.wait()
                write = ConditionalWrite(entry_key(unique, "k"), expected, b"%d" % (turn + 1), None, 60.0)
                if not store.compare_and_set([write]):
                    won.append(turn)

        threads = [threading.Thread(target=race) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert won == list(range(200))


# -- losses ------------------------------------------------------------------------------------------------------


@pytest.mark.services
def test_a_restart_loses_everything_and_a_fill_that_began_before_it(server: MemcachedServer) -> None:
    """I6: the fill's lease is lost, and perhaps an invalidation of it."""
    with MemcachedStore(server.url) as store:
        cache = TokenCache(store, "shop")

        def load(key: str, compare: object) -> LoadedValue:
            server.kill()
            server.restart()
            return LoadedValue(b"old", {}, fresher=True)

        assert cache.get_or_load("k", constant(b"one")).outcome is Outcome.FILLED
        assert cache.get_or_load("other", load) == Cached(b"old", Outcome.DROPPED)
        assert cache.get_or_load("k", constant(b"new")) == Cached(b"new", Outcome.FILLED)
        assert cache.unreachable == 0


@pytest.mark.services
def test_evictions_flushes_and_restarts_show_as_losses(server: MemcachedServer) -> None:
    with MemcachedStore(server.url) as store:
        said = [store.losses()]
        Invalidator(store, "shop").apply([("k", TOKEN)])
        assert not has_lost(said[0], store.losses())
        values = [ConditionalWrite(f"shop:{n}", None, b"m", b"x" * 100_000, 60.0) for n in range(200)]
        store.compare_and_set(values)
        said.append(store.losses())
        with closing(socket.create_connection(("127.0.0.1", server.port))) as connection:
            connection.sendall(b"flush_all\r\n")
            assert connection.recv(10) == b"OK\r\n"
            said.append(store.losses())
            connection.sendall(b"stats reset\r\n")
            assert connection.recv(10) == b"RESET\r\n"
        said.append(store.losses())
        server.kill()
        server.restart()
        said.append(store.losses())
    assert all(has_lost(before, after) for before, after in combinations(said, 2))


@pytest.mark.services
def test_invalidations_of_many_shards_with_long_positions_are_applied() -> None:
    """The floors of so many do not fit into an item."""
    servers = ",".join(f"{number:08x}-0000-11ee-b7b9-0242ac120002:1-5" for number in range(200))
    pairs = [(f"k{n}", EventToken(100, f"shop/commerce/{n}", f"MySQL56/{servers}")) for n in range(100)]
    with MemcachedServer() as server, MemcachedStore(server.url) as store:
        assert Invalidator(store, "shop").apply(pairs).applied == 100


@pytest.mark.services
def test_a_server_that_cannot_compare_and_set_is_refused() -> None:
    refused = pytest.raises(RelayError, match="cannot compare and set: start it without -C")
    with MemcachedServer(options={"disable-cas": ""}) as server, MemcachedStore(server.url) as store, refused:
        store.losses()


@pytest.mark.services
def test_evictions_from_a_disk_show_as_losses(tmp_path: Path) -> None:
    """I6: with extstore items of some size, such as tombstones with long positions, are on a disk."""
    disk = f"ext_page_size=2,ext_path={tmp_path}/items:16m,ext_item_size=512,ext_item_age=0,ext_wbuf_size=2"
    with MemcachedServer(options={"extended": disk}) as server, MemcachedStore(server.url) as store:
        before = store.losses()
        for part in range(200):
            writes = [ConditionalWrite(f"shop:{part}:{n}", None, b"m" * 2000, None, 60.0) for n in range(100)]
            store.compare_and_set(writes)
        wait_until(lambda: has_lost(before, store.losses()))  # it is written in the background


@pytest.mark.services
def test_a_lost_generation_is_a_new_one(store: MemcachedStore, unique: str) -> None:
    """I6: invalidations of the whole namespace may be lost with it."""
    cache = TokenCache(store, unique)
    cache.get_or_load("k", constant(b"old"))
    assert ask(store, b"md %b\r\n" % item_key(generation_key(unique))).code == b"HD"
    assert cache.get_or_load("k", constant(b"new")) == Cached(b"new", Outcome.FILLED)


@pytest.mark.services
def test_other_servers_begin_a_new_generation(server: MemcachedServer) -> None:
    """I6: a server that was away has not seen the invalidations since."""
    # Many, so that both servers hold some.
    keys = [generation_key(f"shop{number}") for number in range(20)]
    with MemcachedStore(server.url) as store:
        before = {key: store.generation(key) for key in keys}
    with MemcachedServer() as second:
        two = f"memcached://127.0.0.1:{server.port},127.0.0.1:{second.port}"
        with MemcachedStore(two) as store:
            after = {key: store.generation(key) for key in keys}
            assert not before.items() & after.items()
            assert after == {key: store.read(["a", "b"], key)[1] for key in keys}


# -- failures ----------------------------------------------------------------------------------------------------


def test_an_unreachable_server_is_unavailable_and_its_password_stays_secret() -> None:
    with MemcachedStore(f"memcached://user:secret@{NOBODY}") as store:
        for call in (
            lambda: store.generation("g"),
            lambda: store.renew("g"),
            lambda: store.read(["k"], "g"),
            lambda: store.compare_and_set([ConditionalWrite("k", None, b"m", None, 1.0)]),
            store.losses,
            lambda: store.sample("k", 1),
        ):
            with pytest.raises(Unavailable, match=r"memcached://127\.0\.0\.1") as raised:
                call()
            assert "secret" not in str(raised.value)


@pytest.mark.services
def test_no_other_server_takes_the_place_of_one_that_is_away(server: MemcachedServer) -> None:
    """I6: it would come back with values whose invalidations went to the other."""
    with MemcachedServer() as second, MemcachedStore(f"{server.url},127.0.0.1:{second.port}") as store:
        keys = [entry_key("shop", str(number)) for number in range(20)]
        store.compare_and_set([ConditionalWrite(key, None, b"m", None, 60.0) for key in keys])
        second.kill()
        with pytest.raises(Unavailable):
            store.read(keys, generation_key("shop"))
        with pytest.raises(Unavailable):
            store.compare_and_set([ConditionalWrite(key, b"m", None, None, KEEP) for key in keys])


@pytest.mark.services
def test_a_server_that_does_not_answer_in_time_is_unavailable(memcached_server: Any) -> None:
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as silent,
        MemcachedStore(f"memcached://127.0.0.1:{silent.getsockname()[1]}", timeout=0.2) as store,
        pytest.raises(Unavailable, match="timed out"),
    ):
        store.losses()


# -- passwords and TLS -------------------------------------------------------------------------------------------


@pytest.mark.services
def test_a_server_with_a_password_takes_it_from_the_url(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("ann:p/@x\n")
    with MemcachedServer(options={"auth-file": str(users)}) as server:
        host = f"127.0.0.1:{server.port}"
        with MemcachedStore(f"memcached://ann:p%2F%40x@{host}") as store:
            assert store.generation("g{generation}")
        for url in (f"memcached://{host}", f"memcached://ann:wrong@{host}"):
            with MemcachedStore(url) as store, pytest.raises(Unavailable, match="password"):
                store.generation("g{generation}")


@pytest.mark.services
def test_tls_checks_the_certificate_unless_told_not_to(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = authority.issue("cache")
    options = {"enable-ssl": "", "extended": f"ssl_chain_cert={certificate},ssl_key={certificate}"}
    with MemcachedServer(options=options) as server:
        url = f"memcacheds://127.0.0.1:{server.port}"
        for query in (f"ssl_ca_certs={authority.ca}", "ssl_cert_reqs=none"):
            with MemcachedStore(f"{url}?{query}") as store:
                cache = TokenCache(store, "shop")
                assert cache.get_or_load(query, constant(b"x" * 300_000)).outcome is Outcome.FILLED
                assert cache.get_or_load(query, constant(b"")).value == b"x" * 300_000
        with MemcachedStore(url) as store, pytest.raises(Unavailable, match=r"(?i)certificate.*verify failed"):
            store.losses()
        with MemcachedStore(url.replace("memcacheds", "memcached"), timeout=1.0) as store, pytest.raises(Unavailable):
            store.losses()


def test_an_unknown_option_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"'ssl_ca'.*ssl_ca_certs"):
        MemcachedStore("memcacheds://h?ssl_ca=x")
