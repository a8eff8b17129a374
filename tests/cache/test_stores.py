"""The contract of a store, on each of them, so that users can rely on the in-memory one in their tests."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from relay.cache import (
    Cached,
    ConditionalWrite,
    Invalidator,
    LoadedValue,
    MemoryStore,
    Outcome,
    Store,
    StoredEntry,
    TokenCache,
    entry_key,
    generation_key,
)
from relay.cache.floors import FloorsReader
from relay.cache.store import FOREVER, KEEP, READ, SampledStore
from relay.token import EventToken
from tests.cache.stores import KINDS, opened, write_foreign

VALUE = LoadedValue(b"v", {}, fresher=True)
REPLICA = EventToken(1 << 40, "shop/commerce/0", "MariaDB/0-1-7")


@pytest.fixture(params=["memory", *KINDS])
def store(request: pytest.FixtureRequest) -> Iterator[SampledStore]:
    if request.param == "memory":
        yield MemoryStore()
        return
    with opened(request.param, request) as store:
        yield store


@pytest.fixture
def namespace() -> str:
    return f"t{uuid.uuid4().hex}"


@pytest.fixture
def key(namespace: str) -> str:
    return entry_key(namespace, "k:é")


def write(store: Store, key: str, expected: bytes | None, meta: bytes | None, **more: Any) -> bool:
    made = ConditionalWrite(key, expected, meta, more.get("value"), more.get("ttl", 60.0))
    return key not in store.compare_and_set([made])


def read(store: Store, key: str) -> StoredEntry | None:
    return store.read([key], generation_key("t"))[0][0]


def test_a_write_needs_the_expected_meta(store: Store, key: str) -> None:
    assert read(store, key) is None
    assert write(store, key, None, b"one")
    assert not write(store, key, None, b"two")
    assert not write(store, key, b"other", b"two")
    assert read(store, key) == StoredEntry(b"one", None)
    assert write(store, key, b"one", b"two", value=b"v")
    assert read(store, key) == StoredEntry(b"two", b"v")


def test_a_conflict_returns_the_current_meta(store: Store, namespace: str) -> None:
    keys = [entry_key(namespace, name) for name in "abcd"]
    store.compare_and_set([ConditionalWrite(name, None, b"meta of " + name.encode(), b"v", 60.0) for name in keys[:2]])
    conflicts = store.compare_and_set([ConditionalWrite(name, b"x", b"y", None, 60.0) for name in keys])
    assert conflicts == {
        keys[0]: b"meta of " + keys[0].encode(),
        keys[1]: b"meta of " + keys[1].encode(),
        keys[2]: None,
        keys[3]: None,
    }


def test_a_write_without_a_value_removes_the_value(store: Store, key: str) -> None:
    """Else a tombstone would still hold the value it invalidates."""
    write(store, key, None, b"one", value=b"old")
    assert write(store, key, b"one", b"two")
    assert read(store, key) == StoredEntry(b"two", None)


@pytest.mark.parametrize("value", [b"", b"\x00\r\n\xff", b"x" * 3_000_000])
def test_a_value_may_be_any_bytes(store: Store, key: str, value: bytes) -> None:
    assert write(store, key, None, b"one", value=value)
    assert read(store, key) == StoredEntry(b"one", value)


@pytest.mark.parametrize("name", ["a b\r\nc", "x" * 1000, "é" * 200, "{x}", "\x7f", "", "a:b?c=d&e"])
def test_a_key_may_be_any_text(store: Store, namespace: str, name: str) -> None:
    key = entry_key(namespace, name)
    assert write(store, key, None, b"one", value=b"v")
    assert read(store, key) == StoredEntry(b"one", b"v")
    assert read(store, key + "x") is None
    assert write(store, key, b"one", None)


def test_a_write_without_a_meta_deletes(store: Store, key: str) -> None:
    write(store, key, None, b"one", value=b"v")
    assert not write(store, key, b"other", None)
    assert write(store, key, b"one", None)
    assert read(store, key) is None
    assert write(store, key, None, None)


def test_a_write_that_expects_the_impossible_only_reads(store: Store, key: str) -> None:
    assert store.compare_and_set([ConditionalWrite(key, READ, None, None, KEEP)]) == {key: None}
    write(store, key, None, b"one", value=b"v")
    assert store.compare_and_set([ConditionalWrite(key, READ, None, None, KEEP)]) == {key: b"one"}
    assert read(store, key) == StoredEntry(b"one", b"v")


def test_many_different_writes_in_one_call_do_not_mix(store: Store, namespace: str) -> None:
    ttls = [KEEP, FOREVER, 60.0, 75.5]
    writes = [
        ConditionalWrite(
            entry_key(namespace, str(n)), None, b"meta %d" % n, None if n % 3 else b"value %d" % n, ttls[n % 4]
        )
        for n in range(10_000)
    ]
    keys = [made.key for made in writes]
    assert store.compare_and_set(writes) == {}
    assert store.compare_and_set(writes) == {made.key: made.meta for made in writes}
    found, _ = store.read(keys, generation_key(namespace))
    assert found == [StoredEntry(made.meta or b"", made.value) for made in writes]
    store.compare_and_set([ConditionalWrite(made.key, made.meta, None, None, KEEP) for made in writes])
    assert store.read(keys, generation_key(namespace))[0] == [None] * len(keys)


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_another_program_has_written_is_not_an_entry_and_stops_nobody(
    request: pytest.FixtureRequest, namespace: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I6, I12: readers load it and do not store it, and an invalidation deletes it, for what it replaced is lost."""
    with opened(kind, request) as store:
        cache, invalidator = TokenCache(store, namespace), Invalidator(store, namespace)
        names = [entry_key(namespace, key) for key in "abc"]
        for name in names[:2]:
            write_foreign(store, name)
        assert cache.get_or_load("a", lambda key, _: VALUE) == Cached(b"v", Outcome.MISS)
        found = cache.get_many("abc", lambda wanted: dict.fromkeys(wanted, VALUE))
        assert [found[key].outcome for key in "abc"] == [Outcome.MISS, Outcome.MISS, Outcome.FILLED]
        asked = [ConditionalWrite(name, READ, None, None, KEEP) for name in names[:2]]
        assert store.compare_and_set(asked) == dict.fromkeys(names[:2])
        assert not write(store, names[0], b"a lease", b"filled")
        invalidator.apply([("c", REPLICA)])
        counts = invalidator.apply([(key, None) for key in "abc"])
        assert (counts.applied, counts.deleted) == (3, 2)
        assert not FloorsReader(store, namespace, 60.0, time.time).read(store.generation(generation_key(namespace)))
        assert "another program" in caplog.text
        assert {cache.get_or_load(key, lambda key, _: VALUE).outcome for key in "ab"} == {Outcome.FILLED}


def test_a_call_without_keys_does_nothing(store: Store, namespace: str) -> None:
    assert store.compare_and_set([]) == {}
    generation = store.generation(generation_key(namespace))
    assert store.read([], generation_key(namespace)) == ([], generation)


def test_a_generation_lasts_until_it_is_renewed(store: Store, namespace: str) -> None:
    name = generation_key(namespace)
    first = store.generation(name)
    assert store.generation(name) == first
    assert store.read(["no such key"], name) == ([None], first)
    second = store.renew(name)
    assert second != first
    assert store.generation(name) == second


def test_a_missing_generation_begins_with_the_first_call_that_needs_it(store: Store, namespace: str) -> None:
    first = store.read([], generation_key(namespace))[1]
    assert store.generation(generation_key(namespace)) == first
    assert store.generation(generation_key(namespace + "2")) != first
    assert store.renew(generation_key(namespace + "3")) == store.generation(generation_key(namespace + "3"))


def test_no_cache_key_names_the_generation(store: Store, namespace: str) -> None:
    """A row determines its cache key, which must not reach the generation."""
    generation = store.generation(generation_key(namespace))
    for key in ("{generation}", "", ":{generation}"):
        write(store, entry_key(namespace, key), None, b"x")
    assert store.generation(generation_key(namespace)) == generation


def test_entries_in_memory_expire_after_their_time_to_live() -> None:
    now = 0.0
    store = MemoryStore(lambda: now)
    for ttl in (FOREVER, 10.0):
        write(store, str(ttl), None, b"one", ttl=ttl)
        write(store, str(ttl), b"one", b"two", ttl=KEEP)
    now = 9.0
    assert read(store, "10.0")
    now = 10.0
    assert read(store, "10.0") is None
    assert read(store, str(FOREVER))


def test_a_sample_has_keys_of_the_prefix_only_each_once(store: SampledStore, namespace: str) -> None:
    odd = f"{namespace}[a]*?\\^"
    keys = [entry_key(odd, f"k:é{number}") for number in range(50)]
    others = [entry_key(namespace, "k"), entry_key(f"{namespace}a*?\\^", "k")]
    store.compare_and_set([ConditionalWrite(key, None, b"m", None, 60.0) for key in [*keys, *others]])
    store.renew(generation_key(odd))
    prefix = entry_key(odd, "")
    assert sorted(store.sample(prefix, 1000)) == sorted(keys)
    some = store.sample(prefix, 10)
    assert len(set(some)) == len(some) == 10
    assert set(some) < set(keys)
    assert store.sample(entry_key(f"{namespace}x", ""), 10) == []


def test_a_sample_is_another_one_each_time(store: SampledStore, namespace: str) -> None:
    keys = [entry_key(namespace, f"k{number}") for number in range(200)]
    store.compare_and_set([ConditionalWrite(key, None, b"m", None, 60.0) for key in keys])
    seen = {key for _ in range(30) for key in store.sample(entry_key(namespace, ""), 20)}
    assert len(seen) > 100
