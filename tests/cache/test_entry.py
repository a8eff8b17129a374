from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.cache.entry import (
    MAX_COMPONENTS,
    UNPLACED,
    UNREADABLE,
    Entry,
    Held,
    LoadedValue,
    State,
    Tokens,
    emptied,
    filled,
    fold,
    invalidated,
    is_fresher,
    leased,
    order_of,
    outlived,
)
from relay.token import EventToken, Order, OriginToken
from tests.cache.entries import LEFT, PARENT, RIGHT, UUID, G, by_shard, dynamo, mysql, tombstone, value

# -- invalidations ------------------------------------------------------------------------------------------


def test_no_entry_becomes_a_tombstone_with_the_token() -> None:
    """It keeps an older value from being stored."""
    assert invalidated(None, dynamo(5), G) == tombstone(by_shard(dynamo(5)))


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize(
    ("held", "token", "order"),
    [
        (dynamo(4), dynamo(5), Order.NEWER),
        (dynamo(5), dynamo(5), Order.EQUAL),
        (dynamo(6), dynamo(5), Order.OLDER),
        (dynamo(9), dynamo(10), Order.NEWER),  # numbers, not text
        (dynamo(10**38), dynamo(10**38 + 1), Order.NEWER),  # too long for a double
        (dynamo(10**38 + 1), dynamo(10**38), Order.OLDER),
        (dynamo(5, timestamp=200), dynamo(6, timestamp=100), Order.NEWER),  # positions take precedence over timestamps
        (mysql(57, LEFT), mysql(58, LEFT), Order.NEWER),
        (mysql(57, LEFT), mysql(57, LEFT), Order.EQUAL),
        (dynamo(5, timestamp=0), dynamo(6), Order.UNKNOWN),
        (EventToken(100, LEFT, "MariaDB/0-1-7"), EventToken(100, LEFT, "MariaDB/0-2-7"), Order.UNKNOWN),
    ],
)
def test_only_an_invalidation_known_to_be_included_is_discarded(
    state: State, held: EventToken, token: EventToken, order: Order
) -> None:
    """I5: equal and older ones are discarded, newer and unknown ones invalidate, in every state of the entry."""
    entry = Entry(state, G, by_shard(held))
    assert order_of(entry, token) is order
    written = invalidated(entry, token, G)
    if order in (Order.EQUAL, Order.OLDER):
        assert written is None
    else:
        assert written is not None
        assert written.state is State.TOMBSTONE
        assert written.tokens[token.shard] == token


def test_an_unknown_order_also_adds_the_unplaced_component() -> None:
    """I6: the new token may be the older one, so reaching it proves nothing."""
    held, token = EventToken(100, LEFT, "MariaDB/0-1-7"), EventToken(100, LEFT, "MariaDB/0-2-7")
    written = invalidated(tombstone(by_shard(held)), token, G)
    assert written == tombstone({LEFT: token, UNPLACED: None})
    assert not is_fresher(by_shard(EventToken(200, LEFT, "MariaDB/0-2-8")), written.tokens)


def test_a_missing_component_is_unknown_and_the_others_stay() -> None:
    """I6: else a fill could pass below an invalidation of another shard."""
    entry = value(mysql(57, LEFT), mysql(12, RIGHT))
    written = invalidated(entry, mysql(3, "shop/commerce/c0-"), G)
    assert order_of(entry, mysql(3, "shop/commerce/c0-")) is Order.UNKNOWN
    assert written == tombstone(by_shard(mysql(57, LEFT), mysql(12, RIGHT), mysql(3, "shop/commerce/c0-")))


def test_after_a_split_changes_of_child_shards_invalidate_at_any_timestamp() -> None:
    """I5: a component is only compared with tokens of its own shard."""
    entry = value(mysql(57, PARENT, timestamp=500))
    for child in (LEFT, RIGHT):
        written = invalidated(entry, mysql(1, child, timestamp=100), G)
        assert written is not None
        assert set(written.tokens) == {PARENT, child}
    late = invalidated(value(mysql(1, LEFT, timestamp=500)), mysql(57, PARENT, timestamp=100), G)
    assert late is not None


def test_a_token_of_one_dynamodb_shard_never_discards_one_of_another() -> None:
    entry = value(dynamo(10**30, "orders/stream/1", timestamp=900))
    assert invalidated(entry, dynamo(1, "orders/stream/2"), G) is not None


@pytest.mark.parametrize("entry", [None, value(), value(dynamo(9)), tombstone({UNPLACED: None}), UNREADABLE])
def test_a_null_token_always_invalidates_and_is_stored(entry: Entry | None) -> None:
    """I5."""
    written = invalidated(entry, None, G)
    assert written is not None
    assert written.tokens[UNPLACED] is None
    assert set(entry.tokens if entry else ()) <= set(written.tokens)


def test_a_token_without_a_shard_counts_as_null() -> None:
    nowhere = EventToken(100, "", "DynamoDB/5")
    assert invalidated(None, nowhere, G) == tombstone({UNPLACED: None})
    assert invalidated(tombstone({UNPLACED: None}), nowhere, G) == tombstone({UNPLACED: None})


def test_any_invalidation_clears_a_value_read_without_a_token() -> None:
    """A consistent read adds no component, so an invalidation that looks old may be younger than the read."""
    lease = leased(tombstone(by_shard(dynamo(50, timestamp=900))), G, 10.0)
    entry = filled(lease, LoadedValue(b"x", {}, fresher=True), {})
    assert entry is not None
    assert entry.tokens == {}
    for token in (dynamo(1, timestamp=1), dynamo(50, timestamp=900), mysql(1, LEFT), None):
        assert invalidated(entry, token, G) is not None


def test_any_invalidation_replaces_a_lease_on_a_missing_entry() -> None:
    """I6: then its fill fails."""
    written = invalidated(leased(None, G, 10.0), dynamo(1), G)
    assert written == tombstone(by_shard(dynamo(1)))


def test_a_lease_over_a_tombstone_discards_what_the_tombstone_would() -> None:
    """Its fill has to be fresher than the tombstone anyway."""
    lease = leased(tombstone(by_shard(dynamo(5))), G, 10.0)
    assert invalidated(lease, dynamo(5), G) is None
    assert invalidated(lease, dynamo(6), G) == tombstone(by_shard(dynamo(6)))


def test_components_are_bounded_and_a_dropped_one_becomes_unplaced() -> None:
    """I6, I11: comparing with a dropped component is unknown, for invalidations and for fills."""
    entry: Entry | None = None
    shards = [f"orders/stream/{number}" for number in range(MAX_COMPONENTS + 2)]
    for shard in shards:
        entry = invalidated(entry, dynamo(5, shard), G)
    assert entry is not None
    assert set(entry.tokens) == {*shards[2:], UNPLACED}
    assert invalidated(entry, dynamo(4, shards[0]), G) is not None
    everything = {shard: dynamo(9, shard) for shard in shards}
    assert not is_fresher(everything, entry.tokens)
    kept = filled(leased(None, G, 1.0), LoadedValue(b"x", everything, fresher=True), {})
    assert kept is not None
    assert len(kept.tokens) == MAX_COMPONENTS + 1
    assert kept.tokens[UNPLACED] is None


def test_an_entry_of_another_generation_becomes_a_floor_that_no_token_reaches() -> None:
    """I9: its tokens lack the invalidations that were lost between the generations."""
    old = Entry(State.VALUE, "older", by_shard(dynamo(5)))
    expected = {**by_shard(dynamo(6)), UNPLACED: None}
    written = invalidated(old, dynamo(6), G)
    assert written is not None
    assert written.tokens == expected
    assert leased(old, G, 10.0).tokens == {**by_shard(dynamo(5)), UNPLACED: None}


def test_where_a_shard_has_a_floor_a_copy_can_replace_an_entry_of_another_generation() -> None:
    """I9: the floor knows what was lost, and every read of a copy has to reach it."""
    old = Entry(State.VALUE, "older", by_shard(mysql(5, LEFT)))
    assert leased(old, G, 10.0).tokens == by_shard(mysql(5, LEFT))
    assert invalidated(old, mysql(6, LEFT), G) == tombstone(by_shard(mysql(6, LEFT)))


def test_what_follows_a_value_of_the_primary_has_to_reflect_what_the_value_replaced() -> None:
    """I6: the value itself names no token, and so discards nothing."""
    lease = leased(tombstone(by_shard(mysql(7, LEFT))), G, 10.0)
    of_primary = filled(lease, LoadedValue(b"x", {}, fresher=True), {})
    assert of_primary == Entry(State.VALUE, G, {}, 0.0, by_shard(mysql(7, LEFT)))
    assert leased(of_primary, G, 10.0).tokens == by_shard(mysql(7, LEFT))
    assert invalidated(of_primary, mysql(5, LEFT), G) == tombstone(by_shard(mysql(7, LEFT)))
    assert invalidated(of_primary, mysql(8, LEFT), G) == tombstone(by_shard(mysql(8, LEFT)))
    assert invalidated(of_primary, mysql(3, RIGHT), G) == tombstone(by_shard(mysql(7, LEFT), mysql(3, RIGHT)))


def test_what_outlives_a_value_has_to_reflect_what_the_value_replaced_too() -> None:
    """I6: an expired value that discards an invalidation stays as a tombstone of all that it reflects."""
    lease = leased(tombstone(by_shard(mysql(7, RIGHT))), G, 10.0)
    read = filled(lease, LoadedValue(b"x", by_shard(mysql(5, LEFT)), fresher=True), {LEFT: mysql(1, LEFT)}, 50.0)
    assert read is not None
    assert invalidated(read, mysql(4, LEFT), G) is None
    assert outlived(read, 49.0) is None
    assert outlived(read, 50.0) == tombstone(by_shard(mysql(7, RIGHT), mysql(5, LEFT)))


_EVENTS = st.lists(
    st.builds(dynamo, st.integers(1, 9), st.sampled_from(["orders/stream/1", "orders/stream/2"]), st.just(100)),
    min_size=1,
    max_size=8,
)


@given(_EVENTS, st.data())
def test_invalidations_in_any_order_and_repetition_end_in_the_same_tombstone(
    events: list[EventToken], data: st.DataObject
) -> None:
    """Invalidations commute, so replays and several consumers are harmless."""
    again = data.draw(st.permutations(events + data.draw(st.lists(st.sampled_from(events)))))
    one, other = fold(None, events, G).entry, fold(None, again, G).entry
    assert one is not None
    assert one == other


@given(_EVENTS)
def test_folding_equals_writing_one_by_one(events: list[EventToken]) -> None:
    entry, discarded = None, 0
    for token in events:
        written = invalidated(entry, token, G)
        entry, discarded = written or entry, discarded + (written is None)
    folded = fold(None, events, G)
    assert folded.entry == entry
    assert (folded.applied, folded.discarded) == (len(events) - discarded, discarded)


def test_folding_included_invalidations_leaves_the_entry_unchanged() -> None:
    folded = fold(value(dynamo(5)), [dynamo(4), dynamo(5)], G)
    assert folded == (None, 0, 2, 0)
    assert fold(value(), [dynamo(4), dynamo(3), None], G)[1:] == (2, 1, 2)


# -- fills --------------------------------------------------------------------------------------------------


def test_a_value_has_exactly_the_tokens_of_its_read() -> None:
    lease = leased(tombstone(by_shard(mysql(5, LEFT), mysql(7, PARENT))), G, 10.0)
    floors = by_shard(mysql(9, LEFT))
    entry = filled(lease, LoadedValue(b"x", {"any name": mysql(9, LEFT)}, fresher=True), floors, until=70.0)
    assert entry == Entry(State.VALUE, G, by_shard(mysql(9, LEFT)), 70.0, by_shard(mysql(7, PARENT)))


def test_a_read_that_is_not_fresher_than_the_tombstone_is_not_stored() -> None:
    """I6"""
    lease = leased(tombstone(by_shard(mysql(5, LEFT))), G, 10.0)
    floors = by_shard(mysql(1, LEFT))
    assert filled(lease, LoadedValue(b"x", by_shard(mysql(9, LEFT)), fresher=False), floors) is None
    assert emptied(lease) == tombstone(by_shard(mysql(5, LEFT)))


def test_a_loader_whose_token_contradicts_it_is_not_trusted() -> None:
    """I6."""
    lease = leased(tombstone(by_shard(mysql(5, LEFT))), G, 10.0)
    floors = by_shard(mysql(1, LEFT))
    assert filled(lease, LoadedValue(b"x", by_shard(mysql(4, LEFT)), fresher=True), floors) is None


def test_a_consistent_read_fills_a_missing_entry_and_a_released_lease_leaves_none() -> None:
    lease = leased(None, G, 10.0)
    assert filled(lease, LoadedValue(None, {}, fresher=True), {}) == value()
    assert emptied(lease) is None


def test_a_read_that_says_nothing_of_its_age_is_not_stored() -> None:
    """I6: it may be a replica's, whose watch has ended."""
    assert filled(leased(None, G, 10.0), LoadedValue(b"x", {}, fresher=False), {}) is None


def test_a_value_under_another_spelling_of_its_key_is_not_stored() -> None:
    """I6: no change would invalidate it."""
    of_primary = LoadedValue(b"x", {}, fresher=True, canonical=False)
    of_replica = LoadedValue(None, by_shard(mysql(9, LEFT)), fresher=True, canonical=False)
    for lease in (leased(None, G, 10.0), leased(tombstone(by_shard(mysql(5, LEFT))), G, 10.0)):
        assert filled(lease, of_primary, {}) is None
        assert filled(lease, of_replica, {LEFT: mysql(5, LEFT)}) is None


@pytest.mark.parametrize(
    ("read", "floors", "stored"),
    [
        (mysql(5, LEFT), by_shard(mysql(5, LEFT)), True),
        (mysql(6, LEFT), by_shard(mysql(5, LEFT), mysql(9, RIGHT)), True),  # the key has no row there
        (mysql(4, LEFT), by_shard(mysql(5, LEFT)), False),
        (mysql(9, LEFT), by_shard(mysql(5, RIGHT)), False),
        (mysql(9, LEFT), {LEFT: None}, False),
        (mysql(9, LEFT), {}, False),
        (dynamo(1), {}, True),
    ],
)
def test_a_read_of_a_copy_fills_a_missing_entry_only_if_it_reaches_the_floor_of_its_shard(
    read: EventToken, floors: Tokens, stored: bool
) -> None:
    """I6: whatever kept older reads out of this entry may be gone."""
    assert is_fresher(by_shard(read), Held({}, floors)) is stored
    filling = filled(leased(None, G, 10.0), LoadedValue(b"x", by_shard(read), fresher=True), floors)
    assert filling == (value(read) if stored else None)


@pytest.mark.parametrize(
    ("tokens", "held", "fresher"),
    [
        ([], None, True),
        ([], {}, True),
        ([mysql(5, LEFT)], by_shard(mysql(5, LEFT)), True),  # the token was taken before the read
        ([mysql(6, LEFT)], by_shard(mysql(5, LEFT)), True),
        ([mysql(4, LEFT)], by_shard(mysql(5, LEFT)), False),
        ([mysql(6, LEFT), mysql(1, RIGHT)], by_shard(mysql(5, LEFT), mysql(2, RIGHT)), False),
        ([mysql(6, LEFT), mysql(2, RIGHT)], by_shard(mysql(5, LEFT), mysql(2, RIGHT)), True),
        # Split since: the loader's clock is another one, so only an origin can decide.
        ([mysql(1, LEFT, 101), mysql(1, RIGHT, 101)], by_shard(mysql(9, PARENT, 100)), False),
        ([mysql(1, LEFT, 101), mysql(1, RIGHT, 100)], by_shard(mysql(9, PARENT, 100)), False),
        ([], by_shard(mysql(5, LEFT)), False),
        ([dynamo(9, timestamp=900)], by_shard(mysql(5, LEFT)), False),  # timestamps of another source do not count
        ([mysql(9, LEFT)], {UNPLACED: None}, False),
    ],
)
def test_a_read_is_fresher_only_if_every_component_is_reached(
    tokens: list[EventToken], held: Tokens | None, fresher: bool
) -> None:
    """I5, I6."""
    assert is_fresher(by_shard(*tokens), held) is fresher


def test_an_origin_decides_where_timestamps_do_not() -> None:
    child = EventToken(100, LEFT, f"MySQL56/{UUID}:1-3", OriginToken(100, PARENT, f"MySQL56/{UUID}:1-9"))
    assert is_fresher(by_shard(child), by_shard(mysql(9, PARENT)))
    assert not is_fresher(by_shard(child), by_shard(mysql(10, PARENT)))


def test_a_value_is_only_served_in_its_generation_and_before_it_expires() -> None:
    entry = Entry(State.VALUE, G, {}, until=50.0)
    assert entry.serves(G, 49.0)
    assert not entry.serves(G, 50.0)
    assert not entry.serves("newer", 49.0)
    assert not tombstone({}).serves(G, 1.0)
    assert value().serves(G, 1e12)


def test_an_entry_is_being_filled_while_the_fill_could_be_served() -> None:
    lease = leased(None, G, 50.0)
    assert lease.is_being_filled(G, 49.0, 10.0)
    assert not lease.is_being_filled(G, 50.0, 10.0)
    assert not lease.is_being_filled("newer", 49.0, 10.0)
    assert not lease.is_being_filled(G, 39.0, 10.0)  # from a clock that is ahead
