"""The floors of a cache that is filled from a replica which may lag."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from relay.cache import Cached, ConditionalWrite, Invalidator, LoadedValue, MemoryStore, Outcome, TokenCache
from relay.cache.continuity import Continuity
from relay.cache.entry import Tokens, is_fresher
from relay.cache.store import entry_key, floors_key, generation_key
from tests.cache.floor_tokens import LEFT, TTL, token
from tests.cache.tight import TightStore


class Replicated:
    """A cache in front of a replica, with a clock."""

    def __init__(self) -> None:
        self.now = 50.0  # before the timestamps of tokens
        self.store = TightStore(lambda: self.now)
        self.invalidator = Invalidator(self.store, "shop", tombstone_ttl=TTL, clock=lambda: self.now)
        self.cache = TokenCache(self.store, "shop", tombstone_ttl=TTL, clock=lambda: self.now)
        self.asked: list[Tokens | None] = []

    def read(self, last: int, key: str = "k") -> Outcome:
        """Read from a replica that has executed so much."""

        def load(_: str, compare: Tokens | None) -> LoadedValue:
            self.asked.append(compare)
            tokens = {LEFT: token(last)}
            return LoadedValue(str(last).encode(), tokens, is_fresher(tokens, compare))

        return self.cache.get_or_load(key, load).outcome

    def change(self, *last: int, key: str = "k") -> None:
        self.invalidator.apply([(key, token(each)) for each in last])


@pytest.fixture
def replicated() -> Replicated:
    return Replicated()


def test_nothing_that_a_replica_returns_is_stored_before_there_are_floors(replicated: Replicated) -> None:
    """I6"""
    assert replicated.read(5) is Outcome.DROPPED
    replicated.change(6, key="another")
    assert replicated.read(5) is Outcome.DROPPED
    assert replicated.read(6) is Outcome.FILLED
    assert replicated.read(0) is Outcome.HIT


def lose_tombstone(replicated: Replicated) -> None:
    replicated.store.lose(entry_key("shop", "k"))


def expire(replicated: Replicated) -> None:
    replicated.now += TTL


def lose_generation(replicated: Replicated) -> None:
    replicated.store.lose(generation_key("shop"))


def lose_floors(replicated: Replicated) -> None:
    replicated.store.lose(floors_key("shop"))
    lose_tombstone(replicated)


def lose_all(replicated: Replicated) -> None:
    replicated.store.lose_all()


def bump(replicated: Replicated) -> None:
    replicated.invalidator.bump("a test")
    lose_tombstone(replicated)


@pytest.mark.parametrize("happens", [lose_tombstone, expire, lose_generation, lose_floors, lose_all, bump])
def test_a_replica_that_lags_stays_out_although_the_tombstone_is_gone(replicated: Replicated, happens: object) -> None:
    """I6"""
    replicated.change(4)
    replicated.change(9)
    assert callable(happens)
    happens(replicated)
    assert replicated.read(8) is Outcome.DROPPED
    replicated.change(10, key="another")
    assert replicated.read(8) is Outcome.DROPPED
    assert replicated.read(10) is Outcome.FILLED


def test_the_floors_go_with_a_tombstone_for_which_there_is_no_room(replicated: Replicated) -> None:
    """I6: the change was announced, and its floor counts only once its tombstone may have expired."""
    replicated.change(4)
    replicated.change(6)
    replicated.store.refused = {entry_key("shop", "k")}
    replicated.change(9)
    replicated.store.refused = set()
    assert replicated.read(8) is Outcome.DROPPED
    replicated.change(10, key="another")
    assert replicated.read(8) is Outcome.DROPPED
    assert replicated.read(10) is Outcome.FILLED


def test_floors_that_could_not_be_raised_are_gone(replicated: Replicated) -> None:
    """I6: they do not cover the change, whose tombstone expires."""
    replicated.change(4)
    replicated.change(6)
    replicated.store.refused = {floors_key("shop")}
    replicated.change(9)
    replicated.store.refused = set()
    expire(replicated)
    assert replicated.read(8) is Outcome.DROPPED
    replicated.change(10, key="another")
    assert replicated.read(8) is Outcome.DROPPED
    assert replicated.read(10) is Outcome.FILLED


def test_a_reader_that_cannot_raise_the_floors_after_a_loss_has_none(replicated: Replicated) -> None:
    """I6"""
    replicated.change(4)
    replicated.change(9)
    replicated.store.refused = {floors_key("shop")}
    lose_tombstone(replicated)
    assert replicated.read(8) is Outcome.DROPPED
    assert replicated.cache.unreachable == 0


def test_an_application_deletes_a_value_for_whose_tombstone_there_is_no_room(replicated: Replicated) -> None:
    """I6"""
    replicated.change(4)
    replicated.change(6)
    assert replicated.read(6) is Outcome.FILLED
    replicated.store.refused = {entry_key("shop", "k")}
    assert replicated.cache.invalidate("k")
    assert replicated.read(6) is Outcome.MISS


def test_after_a_gap_no_replica_fills_the_cache_before_the_next_change(replicated: Replicated) -> None:
    """I9: which changes were lost is not known."""
    replicated.change(4)
    replicated.invalidator.bump("changes up to 9 were lost")
    assert replicated.read(8) is Outcome.DROPPED
    replicated.change(10, key="another")
    assert replicated.read(8) is Outcome.DROPPED
    assert replicated.read(10) is Outcome.FILLED


def test_a_value_that_is_evicted_is_not_refilled_from_a_replica_further_behind(replicated: Replicated) -> None:
    """I6: it had discarded the invalidation, so there is no tombstone of it."""
    replicated.change(1, key="another")
    assert replicated.read(9) is Outcome.FILLED
    replicated.change(8)
    assert replicated.read(0) is Outcome.HIT
    lose_tombstone(replicated)
    assert replicated.read(7) is Outcome.DROPPED


class Recording(MemoryStore):
    """A store that keeps the keys of its writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    def compare_and_set(self, writes: Sequence[ConditionalWrite]) -> dict[str, bytes | None]:
        self.written += [write.key for write in writes]
        return super().compare_and_set(writes)


def test_a_change_is_announced_before_its_tombstone_is_written() -> None:
    """I6: else it could be evicted before any floor covers the change."""
    store = Recording()
    Invalidator(store, "shop").apply([("k", token(1))])
    assert store.written[0] == floors_key("shop")
    assert entry_key("shop", "k") in store.written[1:]


def test_a_loader_is_told_the_floors(replicated: Replicated) -> None:
    replicated.change(3, key="another")
    replicated.read(3)
    (asked,) = replicated.asked
    assert asked == {}
    assert getattr(asked, "floors", None) == {LEFT: token(3)}


def test_the_next_change_after_a_loss_lets_replicas_fill_again(replicated: Replicated) -> None:
    replicated.change(3)
    lose_tombstone(replicated)
    assert replicated.read(2) is Outcome.DROPPED
    assert replicated.read(3) is Outcome.FILLED
    assert replicated.cache.get_or_load("k", lambda *_: LoadedValue(b"", {}, True)) == Cached(b"3", Outcome.HIT)


# -- how a consumer knows since when its changes were published --------------------------------------------------


def test_a_consumer_vouches_for_changes_beyond_the_ends_that_it_saw_later(replicated: Replicated) -> None:
    continuity = Continuity(replicated.invalidator, "shop", "keys")
    asked: list[str] = []

    def look(start: int, end: int) -> str:
        def ends() -> dict[str, dict[str, int]]:
            asked.append(str(end))
            return {"orders": {"0": end, "1": 0}}

        continuity.start_at({"orders": {"0": start}}, ends)
        return continuity.published_since

    def apply(positions: Sequence[int]) -> None:
        pairs = [("k", token(each)) for each in positions]
        replicated.invalidator.apply(pairs, published_since=continuity.published_since)

    assert look(0, 3) == ""
    apply([1, 2])
    lose_tombstone(replicated)
    assert look(2, 5) == ""  # those up to 5 may have been published before
    apply([3, 4])
    lose_tombstone(replicated)
    assert replicated.read(9) is Outcome.DROPPED
    assert look(4, 9) == ""
    assert look(5, 9) == replicated.invalidator.since() != ""
    assert asked == ["5"]
    apply([5, 6])
    lose_tombstone(replicated)
    assert replicated.read(5) is Outcome.DROPPED
    assert replicated.read(6) is Outcome.FILLED
