from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from relay.cache import (
    Cached,
    ConditionalWrite,
    LoadedValue,
    MemoryStore,
    Outcome,
    TokenCache,
    entry_key,
    generation_key,
)
from relay.cache.entry import Tokens, decode
from relay.cache.store import StoredEntry
from tests.cache.clocked import Cache, hit
from tests.cache.sources import SHARD, Source, token


@pytest.fixture
def cache() -> Cache:
    return Cache()


# -- no entry, a value, a token only ----------------------------------------------------------------------------


def test_a_missing_entry_is_loaded_without_a_comparison_and_stored(cache: Cache) -> None:
    source = Source()
    assert cache.get_or_load("k", source.load) == Cached(b"one", Outcome.FILLED)
    assert source.asked == [("k", None)]


def test_a_cached_value_is_returned_without_a_load(cache: Cache) -> None:
    source = Source()
    cache.get_or_load("k", source.load)
    assert cache.get_or_load("k", source.load) == hit(b"one")
    assert len(source.asked) == 1


def test_a_tombstones_token_is_passed_to_the_loader_and_a_fresher_read_is_stored(cache: Cache) -> None:
    cache.change(5)
    source = Source(tokens={SHARD: token(6)}, fresher=None)
    assert cache.get_or_load("k", source.load) == Cached(b"one", Outcome.FILLED)
    assert source.asked == [("k", {SHARD: token(5)})]
    assert cache.get_or_load("k", source.load) == hit(b"one")


def test_a_read_that_is_not_fresher_is_returned_but_not_stored(cache: Cache) -> None:
    cache.change(5)
    lagging = Source(value=b"old", tokens={SHARD: token(4)}, fresher=None)
    for _ in range(2):  # the lease is released, so no reader waits for it
        assert cache.get_or_load("k", lagging.load) == Cached(b"old", Outcome.DROPPED)
    caught_up = Source(value=b"new", tokens={SHARD: token(5)}, fresher=None)
    assert cache.get_or_load("k", caught_up.load) == Cached(b"new", Outcome.FILLED)


def test_a_value_under_another_spelling_of_its_key_is_returned_each_time_and_not_stored(cache: Cache) -> None:
    """I6: the key is asked for as `007`, and changes invalidate the key of 7."""
    values = iter([b"one", b"two", None])

    def load(key: str, compare: Tokens | None) -> LoadedValue:
        return LoadedValue(next(values), {}, fresher=True, canonical=False)

    assert [cache.get_or_load("k:007", load) for _ in range(3)] == [
        Cached(value, Outcome.DROPPED) for value in (b"one", b"two", None)
    ]
    assert (cache.no_ops, cache.too_old) == (3, 0)


# -- fills that are too late --------------------------------------------------------------------------------


def test_an_invalidation_during_the_load_drops_the_fill(cache: Cache) -> None:
    """I6: only the caller gets the value."""
    source = Source(meanwhile=cache.change)
    assert cache.get_or_load("k", source.load) == Cached(b"one", Outcome.DROPPED)
    assert cache.get_or_load("k", Source(value=b"two").load) == Cached(b"two", Outcome.FILLED)


def test_an_invalidation_during_a_load_over_a_tombstone_drops_the_fill(cache: Cache) -> None:
    """I6."""
    cache.change(5)
    source = Source(meanwhile=lambda: cache.change(6))
    assert cache.get_or_load("k", source.load).outcome is Outcome.DROPPED


def test_a_replayed_invalidation_during_a_load_does_not_drop_the_fill(cache: Cache) -> None:
    cache.change(5)
    source = Source(meanwhile=lambda: cache.change(5))
    assert cache.get_or_load("k", source.load).outcome is Outcome.FILLED


def test_a_tombstone_that_is_evicted_before_the_fill_still_drops_it(cache: Cache) -> None:
    """I6: the fill needs its lease, not a missing entry."""

    def meanwhile() -> None:
        cache.change()
        cache.evict()

    assert cache.get_or_load("k", Source(meanwhile=meanwhile).load).outcome is Outcome.DROPPED


def test_a_flush_during_the_load_drops_the_fill(cache: Cache) -> None:
    """I6."""
    assert cache.get_or_load("k", Source(meanwhile=cache.memory.lose_all).load).outcome is Outcome.DROPPED


def test_a_value_loaded_across_a_new_generation_is_never_served(cache: Cache) -> None:
    """I6, I9: its load started before the gap was known."""
    source = Source(meanwhile=lambda: cache.invalidator.bump("a gap"))
    cache.get_or_load("k", source.load)
    assert cache.get_or_load("k", Source(value=b"two").load) == Cached(b"two", Outcome.FILLED)


def test_a_namespace_that_is_bumped_while_its_entries_are_read_serves_none() -> None:
    """I6: the generation that counts is read after the entries."""

    class Bumped(MemoryStore):
        def read(self, keys: Sequence[str], generation_key: str) -> tuple[list[StoredEntry | None], str]:
            found, generation = super().read(keys, generation_key)
            return found, self.renew(generation_key) if any(found) else generation

    cache = TokenCache(Bumped(), "shop")
    cache.get_or_load("k", lambda key, compare: LoadedValue(b"before", {}, fresher=True))
    found = cache.get_or_load("k", lambda key, compare: LoadedValue(b"after", {}, fresher=True))
    assert found.value == b"after"


def test_a_lost_generation_invalidates_every_value(cache: Cache) -> None:
    """I6, I9: a store that lost one entry may have lost others."""
    cache.get_or_load("k", Source().load)
    cache.memory.lose(generation_key("shop"))
    assert cache.get_or_load("k", Source(value=b"two").load) == Cached(b"two", Outcome.FILLED)


def test_after_a_new_generation_no_read_with_tokens_replaces_an_older_entry(cache: Cache) -> None:
    """I5, I9: which invalidations were lost is not known, so no token reaches them."""
    cache.get_or_load("k", Source(tokens={SHARD: token(5)}).load)
    cache.invalidator.bump("a gap")
    replica = Source(tokens={SHARD: token(9)}, fresher=None)
    assert cache.get_or_load("k", replica.load).outcome is Outcome.DROPPED
    assert replica.asked == [("k", {SHARD: token(5), "": None})]


# -- leases -------------------------------------------------------------------------------------------------


def test_a_reader_waits_for_a_value_that_another_reader_is_loading(cache: Cache) -> None:
    other = Source(value=b"not asked")
    seen: list[Cached] = []

    def second_reader() -> None:
        cache.slept = []
        reader = TokenCache(cache.memory, "shop", clock=lambda: cache.now, sleep=first_finishes)
        seen.append(reader.get_or_load("k", other.load))

    def first_finishes(_: float) -> None:
        stored = cache.memory.read([entry_key("shop", "k")], generation_key("shop"))[0][0]
        assert stored is not None
        value = stored.meta.replace(b'"lease"', b'"value"').replace(b'"n":"', b'"n":"x')
        cache.memory.compare_and_set([ConditionalWrite(entry_key("shop", "k"), stored.meta, value, b"one", 600.0)])

    cache.get_or_load("k", Source(meanwhile=second_reader).load)
    assert seen == [hit(b"one")]
    assert other.asked == []


def test_a_reader_that_waited_too_long_loads_but_does_not_store(cache: Cache) -> None:
    other = Source(value=b"mine")
    seen: list[Cached] = []
    source = Source(meanwhile=lambda: seen.append(cache.get_or_load("k", other.load)))
    assert cache.get_or_load("k", source.load).outcome is Outcome.FILLED
    assert seen == [Cached(b"mine", Outcome.MISS)]
    assert cache.now == pytest.approx(1000.0 + cache.lease_ttl)
    assert cache.get_or_load("k", other.load) == hit(b"one")


def test_an_expired_lease_is_taken_over_and_its_fill_dropped(cache: Cache) -> None:
    """I6: only the second of the two is stored."""

    def too_long() -> None:
        cache.now += cache.lease_ttl
        assert cache.get_or_load("k", Source(value=b"two").load).outcome is Outcome.FILLED

    assert cache.get_or_load("k", Source(meanwhile=too_long).load).outcome is Outcome.DROPPED
    assert cache.get_or_load("k", Source().load) == hit(b"two")


def test_a_lease_counts_though_the_clock_of_its_holder_is_a_little_ahead(cache: Cache) -> None:
    seen: list[Outcome] = []

    def behind() -> None:
        cache.now -= cache.lease_ttl / 2
        seen.append(cache.get_or_load("k", Source(value=b"two").load).outcome)

    assert cache.get_or_load("k", Source(meanwhile=behind).load).outcome is Outcome.FILLED
    assert seen == [Outcome.MISS]


def test_no_reader_waits_for_a_lease_from_a_clock_far_ahead(cache: Cache) -> None:
    def behind() -> None:
        cache.now -= 3600.0
        assert cache.get_or_load("k", Source(value=b"two").load).outcome is Outcome.FILLED

    assert cache.get_or_load("k", Source(meanwhile=behind).load).outcome is Outcome.DROPPED


def test_a_lease_over_a_tombstone_still_acts_as_one_after_its_holder_died(cache: Cache) -> None:
    """I6: a reader that dies must not undo the invalidation."""
    cache.change(5)

    def dies() -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        cache.get_or_load("k", Source(meanwhile=dies).load)
    cache.now += cache.lease_ttl
    lagging = Source(value=b"old", tokens={SHARD: token(4)}, fresher=None)
    assert cache.get_or_load("k", lagging.load).outcome is Outcome.DROPPED
    assert lagging.asked == [("k", {SHARD: token(5)})]


def test_a_lease_does_not_extend_the_tombstone_it_replaced(cache: Cache) -> None:
    """Else a key that is often read from copies that cannot prove to be fresher would never be cached again."""
    cache.change(None)
    unproven = Source(tokens={SHARD: token(4)}, fresher=False)
    for _ in range(3):
        cache.now += 250.0
        outcome = cache.get_or_load("k", unproven.load).outcome
    assert outcome is Outcome.FILLED
    assert [compare for _, compare in unproven.asked] == [{"": None}, {"": None}, None]


@pytest.mark.parametrize("tombstone", [False, True])
def test_a_failed_load_releases_its_lease(cache: Cache, tombstone: bool) -> None:
    if tombstone:
        cache.change(5)

    def fails() -> None:
        raise TimeoutError("the database")

    with pytest.raises(TimeoutError, match="the database"):
        cache.get_or_load("k", Source(meanwhile=fails).load)
    source = Source()
    assert cache.get_or_load("k", source.load).outcome is Outcome.FILLED
    assert source.asked == [("k", {SHARD: token(5)} if tombstone else None)]
    assert cache.now == 1000.0


def test_no_reader_waits_for_a_lease_of_an_older_generation(cache: Cache) -> None:
    def bumped() -> None:
        cache.invalidator.bump("a gap")
        assert cache.get_or_load("k", Source(value=b"two").load).outcome is Outcome.FILLED

    assert cache.get_or_load("k", Source(meanwhile=bumped).load).outcome is Outcome.DROPPED


# -- negative entries, times, batches -----------------------------------------------------------------------


def test_a_missing_item_is_cached_until_it_is_inserted(cache: Cache) -> None:
    """A negative entry is invalidated like any other."""
    nothing = Source(value=None)
    assert cache.get_or_load("k", nothing.load) == Cached(None, Outcome.FILLED)
    assert cache.get_or_load("k", nothing.load) == hit(None)
    cache.change()
    assert cache.get_or_load("k", Source().load) == Cached(b"one", Outcome.FILLED)


def test_an_empty_value_is_a_value(cache: Cache) -> None:
    cache.get_or_load("k", Source(value=b"").load)
    assert cache.get_or_load("k", Source().load) == hit(b"")


def test_the_tokens_of_an_expired_value_still_keep_older_reads_out() -> None:
    """I6: the value's tokens last as long as a tombstone."""
    cache = Cache(value_ttl=60.0)
    cache.change(5)
    cache.get_or_load("k", Source(tokens={SHARD: token(6)}).load)
    cache.now += 59.0
    assert cache.get_or_load("k", Source().load) == hit(b"one")
    cache.now += 1.0
    lagging = Source(tokens={SHARD: token(4)}, fresher=None)
    assert cache.get_or_load("k", lagging.load).outcome is Outcome.DROPPED
    assert lagging.asked == [("k", {SHARD: token(6)})]


def test_several_keys_are_loaded_together_and_each_once(cache: Cache) -> None:
    cache.get_or_load("hit", Source(value=b"cached").load)
    cache.change(5, key="tombstone")
    source = Source()
    calls: list[Sequence[str]] = []

    def load_many(wanted: Mapping[str, Tokens | None]) -> Mapping[str, LoadedValue]:
        calls.append(list(wanted))
        return source.load_many(wanted)

    assert cache.get_many(["a", "hit", "tombstone", "a"], load_many) == {
        "a": Cached(b"one", Outcome.FILLED),
        "hit": hit(b"cached"),
        "tombstone": Cached(b"one", Outcome.FILLED),
    }
    assert calls == [["a", "tombstone"]]
    assert dict(source.asked) == {"a": None, "tombstone": {SHARD: token(5)}}
    assert cache.get_many([], load_many) == {}


def test_a_reader_stores_its_own_keys_before_it_waits_for_others(cache: Cache) -> None:
    source = Source()
    seen: list[dict[str, Cached]] = []
    outer = Source(meanwhile=lambda: seen.append(cache.get_many(["theirs", "mine"], source.load_many)))
    cache.get_or_load("theirs", outer.load)
    assert seen == [{"mine": Cached(b"one", Outcome.FILLED), "theirs": Cached(b"one", Outcome.MISS)}]
    assert [key for key, _ in source.asked] == ["mine", "theirs"]


def test_a_loader_that_omits_a_key_is_an_error(cache: Cache) -> None:
    with pytest.raises(KeyError, match="k"):
        cache.get_many(["k"], lambda wanted: {})


def test_the_counters_say_what_became_of_each_key(cache: Cache) -> None:
    def counts() -> tuple[int, ...]:
        return cache.hits, cache.misses, cache.adds, cache.compare_and_sets, cache.no_ops, cache.unreachable

    cache.get_many(["a", "b"], Source().load_many)
    assert counts() == (0, 2, 2, 0, 0, 0)
    cache.get_many(["a", "c"], Source(value=None).load_many)
    assert counts() == (1, 3, 3, 0, 0, 0)
    cache.change(key="a")
    cache.get_or_load("a", Source().load)
    assert counts() == (1, 4, 3, 1, 0, 0)
    cache.get_or_load("d", Source(meanwhile=lambda: cache.change(key="d")).load)
    assert counts() == (1, 5, 3, 1, 1, 0)
    cache.get_or_load("d", Source(fresher=False).load)
    assert counts() == (1, 6, 3, 1, 2, 0)
    cache.get_or_load("e", Source(meanwhile=lambda: cache.get_or_load("e", Source().load)).load)
    assert counts() == (1, 8, 4, 1, 3, 0)


def test_a_consistent_read_replaces_bytes_that_are_not_an_entry(cache: Cache) -> None:
    name = entry_key("shop", "k")
    cache.memory.compare_and_set([ConditionalWrite(name, None, b"\xff not ours", b"junk", 600.0)])
    assert cache.get_or_load("k", Source(fresher=False).load).outcome is Outcome.DROPPED
    assert cache.get_or_load("k", Source().load).outcome is Outcome.FILLED
    stored = cache.memory.read([name], generation_key("shop"))[0][0]
    assert stored is not None
    assert decode(stored.meta).tokens == {}


def test_a_load_may_not_take_longer_than_what_it_has_to_reflect_is_remembered() -> None:
    with pytest.raises(ValueError, match=r"lease_ttl, 5 s, must be at most tombstone_ttl, 4 s"):
        TokenCache(MemoryStore(), "shop", tombstone_ttl=4.0)
    assert TokenCache(MemoryStore(), "shop", tombstone_ttl=4.0, lease_ttl=4.0).lease_ttl == 4.0
