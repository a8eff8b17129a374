from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from relay.cache import (
    ConditionalWrite,
    Entry,
    InvalidationCounts,
    Invalidator,
    LoadedValue,
    MemoryStore,
    Outcome,
    State,
    TokenCache,
    Tokens,
    entry_key,
    generation_key,
)
from relay.cache.entry import UNPLACED, decode
from relay.cache.store import KEEP, READ
from relay.errors import RelayError
from relay.token import EventToken

SHARD = "orders/stream/1"


def token(sequence: int, shard: str = SHARD) -> EventToken:
    return EventToken(100, shard, f"DynamoDB/{sequence}")


def entry(store: MemoryStore, key: str = "k") -> Entry | None:
    stored = store.read([entry_key("shop", key)], generation_key("shop"))[0][0]
    return decode(stored.meta) if stored else None


def fill(store: MemoryStore, key: str = "k", tokens: dict[str, EventToken] | None = None) -> None:
    def load(_: str, compare: Tokens | None) -> LoadedValue:
        return LoadedValue(b"value", tokens or {}, fresher=True)

    assert TokenCache(store, "shop").get_or_load(key, load).outcome is Outcome.FILLED


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def invalidator(store: MemoryStore) -> Invalidator:
    return Invalidator(store, "shop", tombstone_ttl=600.0)


def test_uncached_keys_get_a_tombstone_in_one_round_trip(store: MemoryStore) -> None:
    counting = Counting(store)
    counts = Invalidator(counting, "shop").apply([("a", token(1)), ("b", token(2))])
    assert counts == InvalidationCounts(applied=2)
    assert entry(store, "a") == Entry(State.TOMBSTONE, store.generation(generation_key("shop")), {SHARD: token(1)})
    assert counting.calls == 1


def test_a_newer_invalidation_clears_a_value_and_an_included_one_is_discarded(
    store: MemoryStore, invalidator: Invalidator
) -> None:
    fill(store, "a", {SHARD: token(5)})
    fill(store, "b", {SHARD: token(5)})
    assert invalidator.apply([("a", token(6)), ("b", token(5))]) == InvalidationCounts(applied=1, discarded=1)
    found, _ = store.read([entry_key("shop", "a"), entry_key("shop", "b")], generation_key("shop"))
    assert [stored.value if stored else None for stored in found] == [None, b"value"]


def test_a_replay_changes_nothing_and_is_counted_as_discarded(store: MemoryStore, invalidator: Invalidator) -> None:
    pairs = [("a", token(1)), ("b", token(2)), ("a", token(3))]
    assert invalidator.apply(pairs).applied == 3
    before = [entry(store, "a"), entry(store, "b")]
    assert invalidator.apply(pairs) == InvalidationCounts(discarded=3)
    assert [entry(store, "a"), entry(store, "b")] == before


def test_unknown_orders_invalidate_and_are_counted(store: MemoryStore, invalidator: Invalidator) -> None:
    """I5."""
    fill(store, "no token")
    fill(store, "other shard", {SHARD: token(9)})
    pairs = [("no token", token(1)), ("other shard", token(1, "orders/stream/2")), ("null", None)]
    assert invalidator.apply(pairs) == InvalidationCounts(applied=3, unknown=2)
    assert entry(store, "null") == Entry(State.TOMBSTONE, store.generation(generation_key("shop")), {UNPLACED: None})


@pytest.mark.parametrize("pairs", [[(f"k{n % 9000}", token(n + 1)) for n in range(20_000)]])
def test_a_call_of_any_length_keeps_the_order_of_each_key(
    store: MemoryStore, invalidator: Invalidator, pairs: Sequence[tuple[str, EventToken]]
) -> None:
    assert invalidator.apply(pairs).applied == 20_000
    kept = entry(store, "k1999")
    assert kept is not None
    assert kept.tokens == {SHARD: token(20_000)}


def test_a_call_of_any_length_is_applied_in_parts() -> None:
    """I11"""
    largest = 0

    class Measuring(MemoryStore):
        def compare_and_set(self, writes: Sequence[ConditionalWrite]) -> dict[str, bytes | None]:
            nonlocal largest
            largest = max(largest, len(writes))
            return super().compare_and_set(writes)

    assert Invalidator(Measuring(), "shop").apply([(str(n), token(n + 1)) for n in range(50_000)]).applied == 50_000
    assert largest < 10_000


def test_a_tombstone_expires_and_each_new_invalidation_extends_it() -> None:
    now = 0.0
    store = MemoryStore(lambda: now)
    invalidator = Invalidator(store, "shop", tombstone_ttl=600.0)
    invalidator.apply([("k", token(1))])
    now = 500.0
    invalidator.apply([("k", token(2))])
    now = 1099.0
    assert entry(store) is not None
    now = 1100.0
    assert entry(store) is None


def test_the_time_to_live_of_tombstones_must_be_positive() -> None:
    with pytest.raises(ValueError, match="tombstone_ttl"):
        Invalidator(MemoryStore(), "shop", tombstone_ttl=0)


def test_a_bump_invalidates_every_value_and_logs_the_reason(
    store: MemoryStore, invalidator: Invalidator, caplog: pytest.LogCaptureFixture
) -> None:
    """I9."""
    fill(store)
    with caplog.at_level(logging.WARNING):
        generation = invalidator.bump("gap orders-7: trimmed")
    assert "shop" in caplog.text
    assert "gap orders-7: trimmed" in caplog.text
    assert store.generation(generation_key("shop")) == generation
    fill(store)


# -- other writers ------------------------------------------------------------------------------------------


class Counting(MemoryStore):
    """Counts its calls. Before each of the first ``times`` compare-and-sets another writer changes the entry."""

    def __init__(self, inner: MemoryStore, times: int = 0, rival: bytes = b"") -> None:
        super().__init__()
        self.inner, self.times, self.rival, self.calls = inner, times, rival, 0

    def compare_and_set(self, writes: Sequence[ConditionalWrite]) -> dict[str, bytes | None]:
        self.calls += 1
        if writes[0].expected != READ and self.calls <= self.times:
            name = writes[0].key
            current = self.inner.compare_and_set([ConditionalWrite(name, READ, None, None, KEEP)])[name]
            self.inner.compare_and_set([ConditionalWrite(name, current, b"%s%d" % (self.rival, self.calls), None, 9.0)])
        return self.inner.compare_and_set(writes)

    def generation(self, generation_key: str) -> str:
        return self.inner.generation(generation_key)


@pytest.mark.parametrize("times", [1, 2, 5])
def test_an_entry_that_changed_is_read_again_and_invalidated(store: MemoryStore, times: int) -> None:
    """I6: only an entry that is unchanged since it was read is updated."""
    rival = Counting(store, times, rival=b"an entry of another writer ")
    counts = Invalidator(rival, "shop").apply([("k", token(1)), ("other", token(1))])
    assert (counts.applied, counts.discarded) == (2, 0)
    assert counts.retried == times - 1  # the first conflict serves as the read
    found = entry(store)
    assert found is not None
    assert found.tokens[SHARD] == token(1)


def test_an_error_names_a_key_that_keeps_changing(store: MemoryStore) -> None:
    rival = Counting(store, 10_000)
    with pytest.raises(RelayError, match="shop:k"):
        Invalidator(rival, "shop").apply([("k", token(1))])


def test_reading_first_and_guessing_have_the_same_outcome() -> None:
    tombstones = []
    for warmed in (False, True):
        store = MemoryStore()
        counting = Counting(store)
        invalidator = Invalidator(counting, "shop")
        keys = [f"k{n}" for n in range(10)]
        for key in keys[:8]:
            fill(store, key, {SHARD: token(5)})
        if warmed:  # most keys of this call are cached, so the next call starts by reading
            invalidator.apply([(key, token(4)) for key in keys[:8]])
        counting.calls = 0
        counts = invalidator.apply([(key, token(4 + n)) for n, key in enumerate(keys)])
        assert (counts.applied, counts.discarded, counts.retried) == (8, 2, 0)
        assert counting.calls == 2
        tombstones.append([(e.state, dict(e.tokens)) for key in keys if (e := entry(store, key))])
    assert tombstones[0] == tombstones[1]
