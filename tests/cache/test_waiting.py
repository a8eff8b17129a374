"""How long readers wait for each other, and what an application invalidates by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from relay.cache import Cached, LoadedValue, MemoryStore, Outcome, TokenCache, entry_key, generation_key
from relay.cache.entry import Tokens
from relay.token import EventToken
from tests.cache.clocked import Cache, hit
from tests.cache.sources import SHARD, Source, token


@pytest.fixture
def cache() -> Cache:
    return Cache()


def test_readers_wait_for_a_load_that_takes_long_instead_of_loading_too(cache: Cache) -> None:
    """Threads in real time."""
    shared = TokenCache(cache.memory, "shop", lease_ttl=600.0, lease_wait=600.0)
    loads: list[str] = []

    def load(key: str, compare: Tokens | None) -> LoadedValue:
        loads.append(key)
        time.sleep(0.5)
        return LoadedValue(b"one", {}, fresher=True)

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda _: shared.get_or_load("k", load), range(16)))
    assert loads == ["k"]
    assert sorted(each.outcome for each in found) == [Outcome.FILLED, *[Outcome.HIT] * 15]


def test_once_the_time_of_a_load_is_known_a_reader_waits_little_longer_for_one_that_does_not_end(cache: Cache) -> None:
    def takes(seconds: float) -> Callable[[], None]:
        def meanwhile() -> None:
            cache.now += seconds

        return meanwhile

    for number in range(20):
        cache.get_or_load(f"k{number}", Source(meanwhile=takes(0.02)).load)
    waited: list[float] = []

    def second_reader() -> None:
        began = cache.now
        assert cache.get_or_load("k", Source(value=b"mine").load) == Cached(b"mine", Outcome.MISS)
        waited.append(cache.now - began)

    cache.get_or_load("k", Source(meanwhile=second_reader).load)
    assert waited == [pytest.approx(0.02, rel=0.5)]


def test_a_clock_that_is_set_during_a_load_does_not_make_readers_wait_for_long(cache: Cache) -> None:
    def is_set(to: float) -> Callable[[], None]:
        def meanwhile() -> None:
            cache.now += to

        return meanwhile

    for number, seconds in enumerate([86400.0, -86400.0, *[0.02] * 80]):
        cache.get_or_load(f"k{number}", Source(meanwhile=is_set(seconds)).load)
    began = cache.now
    cache.get_or_load("k", Source(meanwhile=lambda: cache.get_or_load("k", Source().load)).load)
    assert cache.now - began < 0.1


def test_a_reader_may_wait_for_no_other(cache: Cache) -> None:
    impatient = TokenCache(cache.memory, "shop", lease_wait=0.0, clock=lambda: cache.now, sleep=cache._doze)
    seen: list[Cached] = []
    other = Source(value=b"mine")
    source = Source(meanwhile=lambda: seen.append(impatient.get_or_load("k", other.load)))
    cache.get_or_load("k", source.load)
    assert seen == [Cached(b"mine", Outcome.MISS)]
    assert cache.now == 1000.0


def test_an_application_invalidates_what_it_has_changed_before_the_stream_does(cache: Cache) -> None:
    cache.get_many(["k", "l", "m"], Source().load_many)
    assert cache.invalidate("k", "l")
    values = cache.get_many(["k", "l", "m"], Source(value=b"two").load_many)
    assert [values[key].value for key in "klm"] == [b"two", b"two", b"one"]
    cache.change(5)  # the stream is later, and unknown to the value
    assert cache.get_or_load("k", Source(value=b"three").load).value == b"three"


def test_an_application_drops_loads_that_began_before_its_change(cache: Cache) -> None:
    """Over nothing, over a tombstone, and where a fill comes between."""
    source = Source(meanwhile=lambda: cache.invalidate("k"))
    assert cache.get_or_load("k", source.load) == Cached(b"one", Outcome.DROPPED)
    cache.change(5)
    caught_up = {SHARD: token(5)}
    source = Source(tokens=caught_up, fresher=None, meanwhile=lambda: cache.invalidate("k"))
    assert cache.get_or_load("k", source.load) == Cached(b"one", Outcome.DROPPED)

    class FilledMeanwhile(MemoryStore):
        fill: Callable[[], object] | None = None

        def read(self, *args: Any) -> Any:
            found = super().read(*args)
            fill, self.fill = self.fill, None
            if fill:
                fill()
            return found

    store = FilledMeanwhile(lambda: cache.now)
    shared = TokenCache(store, "shop", clock=lambda: cache.now)
    shared.get_or_load("k", Source().load)
    store.fill = lambda: shared.get_or_load("k", Source(value=b"too").load, refused=b"one")
    shared.invalidate("k")
    assert shared.get_or_load("k", Source(value=b"two").load) == Cached(b"two", Outcome.FILLED)


def test_an_application_invalidates_and_the_tokens_stay_for_copies_to_reach(cache: Cache) -> None:
    """I6: what lags behind the value, or behind an invalidation that came before, is not stored."""
    at_five = Source(tokens={SHARD: token(5)}, fresher=None)
    cache.get_or_load("k", at_five.load)
    cache.change(5, key="l")
    assert cache.invalidate("k", "l", "never read")
    for key in "kl":
        lagging = Source(value=b"old", tokens={SHARD: token(4)}, fresher=None)
        assert cache.get_or_load(key, lagging.load).outcome is Outcome.DROPPED
        assert cache.get_or_load(key, at_five.load).outcome is Outcome.FILLED
    assert cache.get_or_load("never read", Source().load).outcome is Outcome.FILLED
    cache.change(6)
    assert cache.get_or_load("k", at_five.load).outcome is Outcome.DROPPED


def test_what_a_consistent_read_has_replaced_stays_for_copies_to_reach(cache: Cache) -> None:
    """I6: the value had no token of its own, but the invalidation before it did."""
    cache.change(5)
    assert cache.get_or_load("k", Source().load).outcome is Outcome.FILLED
    cache.invalidate("k")
    lagging = Source(value=b"old", tokens={SHARD: token(4)}, fresher=None)
    assert cache.get_or_load("k", lagging.load).outcome is Outcome.DROPPED


def test_the_token_of_an_applications_change_begins_no_floor(cache: Cache) -> None:
    """I6: nobody knows whether it is newer than all that was invalidated before, and forgotten."""
    shard = "legacy/db/-"
    assert cache.invalidate("k", token=EventToken(100, shard, "MariaDB/0-1-5"))
    replica = Source(tokens={shard: EventToken(100, shard, "MariaDB/0-1-9")}, fresher=None)
    assert cache.get_or_load("other", replica.load).outcome is Outcome.DROPPED


def test_a_key_that_an_application_invalidates_does_not_stay_for_ever(cache: Cache) -> None:
    cache.get_or_load("k", Source(tokens={SHARD: token(5)}, fresher=None).load)
    cache.invalidate("k")
    cache.now += 601.0
    assert cache.memory.read([entry_key("shop", "k")], generation_key("shop"))[0] == [None]


def test_an_invalidation_with_the_token_of_the_change_lets_reads_of_copies_fill_again(cache: Cache) -> None:
    cache.get_or_load("k", Source().load)
    assert cache.invalidate("k", token=token(5))
    lagging = Source(value=b"old", tokens={SHARD: token(4)}, fresher=None)
    assert cache.get_or_load("k", lagging.load).outcome is Outcome.DROPPED
    caught_up = Source(value=b"new", tokens={SHARD: token(5)}, fresher=None)
    assert cache.get_or_load("k", caught_up.load).outcome is Outcome.FILLED
    cache.change(5)
    assert cache.get_or_load("k", Source().load) == hit(b"new")


def test_a_value_that_the_caller_cannot_read_is_loaded_again(cache: Cache) -> None:
    cache.get_or_load("k", Source(value=b"old format").load)
    cache.get_or_load("gone", Source(value=None).load)
    new = Source(value=b"new format")
    assert cache.get_or_load("k", new.load, refused=b"old format") == Cached(b"new format", Outcome.FILLED)
    assert cache.get_or_load("k", new.load, refused=b"old format") == hit(b"new format")
    assert cache.get_or_load("gone", new.load, refused=b"old format") == hit(None)
