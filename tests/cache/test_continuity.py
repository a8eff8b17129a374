"""Which starts of a consumer continue where its namespace was last invalidated (I6); the others invalidate it."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest

from relay.cache import Invalidator, generation_key
from relay.cache.continuity import Continuity, Offsets
from relay.errors import ConfigError
from relay.kafka.created_again import NO_ID
from tests.cache.tight import TightStore

IDS = {"orders": "a"}
ENDS = {"orders": {"0": 100, "1": 100}}


def at(*offsets: int) -> Offsets:
    return {"orders": {str(number): offset for number, offset in enumerate(offsets)}}


class Namespace:
    """A namespace and the consumers that start on it."""

    def __init__(self) -> None:
        self.store = TightStore(time.monotonic)

    @property
    def generation(self) -> str:
        return self.store.generation(generation_key("shop"))

    def consumer(self, keys: str = "k", relay: str = "r") -> Continuity:
        return Continuity(Invalidator(self.store, "shop"), relay, keys)

    def starts(
        self, start: Offsets, *, keys: str = "k", relay: str = "r", ids: Mapping[str, str] = IDS, ends: Offsets = ENDS
    ) -> str | None:
        """Begin as a consumer does; return why the namespace was invalidated, None if it was not."""
        before = self.generation
        doubt = self.consumer(keys, relay).begin(ids, start, ends)
        assert (doubt is not None) == (self.generation != before)
        return doubt


@pytest.fixture
def namespace() -> Namespace:
    return Namespace()


@pytest.fixture
def applied(namespace: Namespace) -> Namespace:
    """A namespace to which a consumer has applied 50 and 60 records of the two partitions."""
    consumer = namespace.consumer()
    consumer.begin(IDS, at(0, 0), ENDS)
    consumer.advance(at(50, 60))
    return namespace


def test_a_namespace_of_which_nothing_is_known_is_invalidated(namespace: Namespace) -> None:
    assert namespace.starts(at(0, 0)) == "how far it was invalidated is unknown"
    assert namespace.starts(at(0, 0)) is None


@pytest.mark.parametrize("start", [at(50, 60), at(0, 0), at(49, 7)])
def test_a_consumer_that_starts_where_the_last_one_ended_or_before_invalidates_nothing(
    applied: Namespace, start: Offsets
) -> None:
    assert applied.starts(start) is None


@pytest.mark.parametrize("start", [at(51, 60), at(50, 100), at(0, 61), at(50, 60, 1)])
def test_a_consumer_that_starts_past_the_last_one_invalidates_the_namespace(applied: Namespace, start: Offsets) -> None:
    """For example with --from latest, or where retention has removed records. It is the same for a new partition."""
    ends = {"orders": {"0": 100, "1": 100, "2": 100}}
    assert applied.starts(start, ends=ends) is not None
    assert applied.starts(start, ends=ends) is None


def test_a_partition_that_was_added_and_is_read_from_its_beginning_is_not_a_reason(applied: Namespace) -> None:
    assert applied.starts(at(50, 60, 0), ends={"orders": {"0": 100, "1": 100, "2": 5}}) is None


def test_where_offsets_may_be_those_of_another_cache_a_store_that_knows_nothing_is_refused(applied: Namespace) -> None:
    """I6: a store that has lost its last writes, such as after a failover, is invalidated as ever."""
    assert applied.consumer(keys="more").begin(IDS, at(50, 60), ENDS, "of another cache") is not None
    with pytest.raises(ConfigError, match="of another cache"):
        Namespace().consumer().begin(IDS, at(50, 60), ENDS, "of another cache")


def test_other_cache_keys_invalidate_the_namespace_back_and_forth(applied: Namespace) -> None:
    """What the other keys' entries have missed is not known."""
    assert applied.starts(at(50, 60), keys="more") == "the cache keys have changed"
    assert applied.starts(at(50, 60), keys="k") == "the cache keys have changed"


def test_a_topic_that_was_created_again_invalidates_the_namespace(applied: Namespace) -> None:
    """Its offsets mean other changes, and the last ones of the old topic may not have been applied."""
    assert applied.starts(at(50, 60), ids={"orders": "b"}) == "topic orders was created again"


def test_a_topic_that_is_no_longer_read_invalidates_the_namespace(applied: Namespace) -> None:
    """I6: the table may have got another topic, and the last changes on its old one may not have been applied."""
    start: Offsets = {"orders.2": {"0": 0}}
    ids, ends = {"orders.2": "b"}, {"orders.2": {"0": 5}}
    assert applied.starts(start, ids=ids, ends=ends) == "topic orders, which was applied up to now, is no longer read"
    assert applied.starts(start, ids=ids, ends=ends) is None


def test_a_topic_that_is_read_beside_the_others_from_now_on_is_not_a_reason(applied: Namespace) -> None:
    """A checkpoint of Spark has both topics of such a table."""
    both = {**at(50, 60), "orders.2": {"0": 0}}
    assert applied.starts(both, ids={**IDS, "orders.2": "b"}, ends={**ENDS, "orders.2": {"0": 5}}) is None


@pytest.mark.parametrize("first", [{}, {"orders": NO_ID}])
def test_a_topic_that_had_no_id_is_not_one_that_was_created_again(
    namespace: Namespace, first: Mapping[str, str]
) -> None:
    """Its brokers have begun to give ids; from then on they tell."""
    consumer = namespace.consumer()
    consumer.begin(first, at(0, 0), ENDS)
    consumer.advance(at(50, 60))
    assert namespace.starts(at(50, 60)) is None
    consumer = namespace.consumer()
    consumer.begin(IDS, at(50, 60), ENDS)
    consumer.advance(at(60, 60))
    assert namespace.starts(at(60, 60)) is None
    assert namespace.starts(at(60, 60), ids={"orders": "b"}) == "topic orders was created again"


def test_a_topic_that_lost_its_last_records_invalidates_the_namespace(applied: Namespace) -> None:
    assert applied.starts(at(10, 10), ends=at(100, 59)) is not None


def test_relays_that_share_a_namespace_have_offsets_of_their_own(applied: Namespace) -> None:
    assert applied.starts(at(0, 0), relay="other") is not None
    assert applied.starts(at(50, 60)) is None


def test_consumers_beside_each_other_do_not_set_each_other_back(applied: Namespace) -> None:
    ahead, behind = applied.consumer(), applied.consumer()
    for consumer in (ahead, behind):
        assert consumer.begin(IDS, at(50, 60), ENDS) is None
    ahead.advance(at(80, 80))
    behind.advance(at(51, 99))
    assert applied.starts(at(80, 99)) is None


def test_a_consumer_with_the_old_cache_keys_does_not_speak_for_the_new_ones(applied: Namespace) -> None:
    old = applied.consumer()
    old.begin(IDS, at(50, 60), ENDS)
    assert applied.starts(at(50, 60), keys="more") is not None
    old.advance(at(90, 90))
    assert applied.starts(at(90, 90), keys="more") is not None


def test_a_store_that_loses_what_was_applied_is_told_again_with_the_next_batch(applied: Namespace) -> None:
    consumer = applied.consumer()
    consumer.begin(IDS, at(50, 60), ENDS)
    applied.store.lose_all()
    consumer.advance(at(70, 70))
    assert applied.starts(at(70, 70)) is None


def test_a_crash_between_the_new_generation_and_its_note_leaves_the_doubt(
    applied: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as crash:
        crash.setattr(Continuity, "_write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            applied.consumer().begin(IDS, at(99, 99), ENDS)
    assert applied.starts(at(99, 99)) is not None


def test_a_consumer_goes_on_where_a_full_store_cannot_note_it_and_its_next_start_invalidates(
    applied: Namespace,
) -> None:
    """I6: those behind would else never be invalidated."""
    running = applied.consumer()
    running.begin(IDS, at(50, 60), ENDS)
    applied.store.refused = {"shop{applied.r}"}
    running.advance(at(70, 60))
    applied.store.refused = set()
    assert applied.starts(at(70, 60)) == "how far it was invalidated is unknown"
    assert applied.starts(at(70, 60)) is None
