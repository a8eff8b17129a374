"""The floors of a namespace: what a read of a lagging copy has to reflect where the tombstones may be gone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.cache.entry import is_fresher
from relay.cache.floors import MOST_BYTES, Floors, announced, decode_floors, shortened
from relay.token import EventToken, OriginToken
from tests.cache.floor_tokens import LEFT, RIGHT, SERVER, TTL, token


class Announcements:
    """The floors of a namespace over some time, with changes that are published as they are announced."""

    def __init__(self) -> None:
        self.now = 50.0  # before the timestamps of tokens
        self.generation, self.losses = "g1", "0"
        self.floors: Floors | None = None
        self.number = 0

    def announce(
        self, *tokens: EventToken | None, published_since: str | None = None, tombstone_ttl: float = TTL
    ) -> None:
        self.number += 1
        self.floors = announced(
            self.floors,
            tokens,
            generation=self.generation,
            losses=self.losses,
            now=self.now,
            tombstone_ttl=tombstone_ttl,
            published_since=published_since,
            new_since=f"since {self.number}",
        )

    @property
    def since(self) -> str:
        assert self.floors is not None
        return self.floors.since

    @property
    def at_present(self) -> dict[str, EventToken | None]:
        assert self.floors is not None
        return self.floors.at(self.now, TTL)


@pytest.fixture
def floors() -> Announcements:
    return Announcements()


def test_a_floor_begins_only_with_a_change_published_since_the_announcements_began(floors: Announcements) -> None:
    """I6: a consumer that reads old changes again knows less than the cache once did."""
    floors.announce(token(5), published_since="")
    assert floors.at_present == {}
    floors.announce(token(6), published_since="another time")
    assert floors.at_present == {}
    floors.announce(token(7), published_since=floors.since)
    assert floors.at_present == {LEFT: token(7)}


def test_a_floor_begins_at_the_newest_change_that_anyone_has_announced(floors: Announcements) -> None:
    """I6"""
    floors.announce(token(9), published_since="")
    floors.now += TTL
    floors.announce(token(6), published_since=floors.since)
    assert floors.at_present == {LEFT: token(9)}


def test_a_change_that_is_published_long_after_its_commit_begins_no_floor(floors: Announcements) -> None:
    """I6: a relay that was reset, or lags behind another of the same source, publishes what was applied before."""
    floors.now = 100.5
    floors.announce(token(5), published_since="")
    floors.announce(token(6), published_since=floors.since)
    assert floors.at_present == {}
    floors.announce(replace(token(7), timestamp=101), published_since=floors.since)
    assert floors.at_present == {LEFT: replace(token(7), timestamp=101)}


def test_a_change_that_was_copied_from_a_parent_begins_no_floor(floors: Announcements) -> None:
    """I6: of two shards that are merged, the new one may have a change of one and lack an earlier one of the other."""
    merged = "shop/commerce/-"
    floors.announce(token(9), token(4, RIGHT), published_since="")
    origin = OriginToken(100, RIGHT, token(5, RIGHT).position)
    for vouched in floors.since, None:
        floors.announce(replace(token(5, merged), timestamp=101, origin=origin), published_since=vouched)
        assert merged not in floors.at_present
    later = replace(token(8, merged), timestamp=102)
    floors.announce(later, published_since=floors.since)
    assert floors.at_present == {merged: later}


@pytest.mark.parametrize(
    ("name", "next_name"),
    [("-80", "-80@t47a89783"), ("-80", "-80@2"), ("-", "-80"), ("0", "-80"), ("-80", "40-c0"), ("-80", "a/80-@t47")],
)
def test_a_floor_ends_with_a_change_of_a_shard_that_may_have_the_same_rows(
    floors: Announcements, name: str, next_name: str
) -> None:
    """I6: a copy that is read under the former name may lag behind that change, and its floor does not cover it."""
    former, next_ = f"shop/commerce/{name}", f"shop/commerce/{next_name}"
    floors.announce(token(5, former))
    floors.announce(token(9, next_), published_since="")
    assert floors.at_present == {}
    later = replace(token(10, next_), timestamp=101)
    floors.announce(later)
    assert floors.at_present == {next_: later}


@pytest.mark.parametrize("published_again", [True, False])
def test_a_parents_change_that_comes_late_begins_no_floor_and_ends_none(
    floors: Announcements, published_again: bool
) -> None:
    """I6: a consumer that lags, or starts again, announces it after changes of the child."""
    parent = "shop/commerce/-"
    floors.announce(token(5, parent), published_since="")
    child = replace(token(9), timestamp=102)
    floors.announce(token(6, parent), child, published_since=floors.since)
    for late in (5, 6, 7):
        vouched = floors.since if published_again else ""
        floors.announce(replace(token(late, parent), timestamp=101), published_since=vouched)
        assert floors.at_present == {LEFT: child}


@pytest.mark.parametrize("other", [RIGHT, "shop/crm/-80", "crm/commerce/-80", "shop/commerce/a-b"])
def test_a_change_of_a_shard_with_other_rows_ends_no_floor(floors: Announcements, other: str) -> None:
    floors.announce(token(5))
    floors.announce(token(7, other))
    assert floors.at_present == {LEFT: token(5), other: token(7, other)}


@pytest.mark.parametrize("reader", [TTL, 100 * TTL])
def test_the_shortest_time_of_tombstones_counts_for_all(floors: Announcements, reader: float) -> None:
    """I6: the settings of applications and consumers may differ, and change."""
    floors.announce(token(5), tombstone_ttl=100 * TTL)
    floors.announce(token(6), tombstone_ttl=TTL)
    floors.announce(token(7), tombstone_ttl=100 * TTL)
    assert floors.at_present == {LEFT: token(5)}
    floors.now += TTL
    assert floors.floors is not None
    assert floors.floors.at(floors.now, reader) == {LEFT: token(7)}
    assert floors.floors.at(floors.now - TTL / 2, TTL / 2) == {LEFT: token(7)}


def test_each_shard_has_a_floor_of_its_own(floors: Announcements) -> None:
    floors.announce(token(5), published_since="")
    floors.announce(token(7, RIGHT), published_since=floors.since)
    assert floors.at_present == {RIGHT: token(7, RIGHT)}


@pytest.mark.parametrize("behind", [0.0, TTL / 11])
def test_the_floor_covers_the_tombstones_that_have_expired_and_hardly_more(
    floors: Announcements, behind: float
) -> None:
    """I6, and a busy shard's replicas need not have the newest change. The reader's clock may be a little behind."""
    at: dict[float, int] = {}
    for number in range(1, 200):
        floors.announce(token(number))
        at[floors.now] = number
        assert floors.floors is not None
        floor = floors.floors.at(floors.now - behind, TTL)[LEFT]
        assert floor is not None
        expired = max((each for when, each in at.items() if when <= floors.now - TTL), default=1)
        by_then = max((each for when, each in at.items() if when <= floors.now - TTL / 2), default=1)
        assert expired <= int(floor.position.rpartition("-")[2]) <= by_then
        floors.now += 20.0
    assert floors.floors is not None
    assert len(floors.floors.periods) <= 6


def test_a_clock_that_is_set_back_does_not_freeze_the_floors(floors: Announcements) -> None:
    """I6: what is announced until it is again as late would be in no floor, whose tombstones are long gone."""
    floors.now = 100 * TTL
    floors.announce(token(5))
    floors.now = 50.0
    for number in range(6, 16):
        floors.announce(token(number))
        floors.now += TTL / 4
    floor = floors.at_present[LEFT]
    assert floor is not None
    assert int(floor.position.rpartition("-")[2]) >= 11  # announced a tombstone_ttl ago


def test_clocks_that_differ_a_little_raise_no_floor_early(floors: Announcements) -> None:
    floors.announce(token(5))
    for number in (6, 7):
        floors.now -= TTL / 25
        floors.announce(token(number))
    assert floors.at_present == {LEFT: token(5)}


def test_where_tombstones_may_be_lost_the_newest_announcement_counts_at_once(floors: Announcements) -> None:
    """I6"""
    floors.announce(token(5))
    floors.announce(token(9))
    assert floors.at_present == {LEFT: token(5)}
    floors.losses = "1"
    floors.announce(token(10))
    assert floors.at_present == {LEFT: token(9)}
    assert floors.floors is not None
    assert floors.floors.after_losses("2", floors.now).at(floors.now, TTL) == {LEFT: token(10)}


def test_another_generation_has_no_floors(floors: Announcements) -> None:
    """I9: changes were lost, or what was announced."""
    floors.announce(token(5))
    floors.generation = "g2"
    floors.announce(token(6), published_since="")
    assert floors.at_present == {}


@pytest.mark.parametrize("unknown", [None, EventToken(1, "", "MariaDB/0-1-1")])
def test_after_a_change_of_unknown_position_floors_begin_anew(
    floors: Announcements, unknown: EventToken | None
) -> None:
    """I6: no token is known to be newer."""
    floors.announce(token(5))
    before = floors.since
    floors.announce(unknown, token(6), published_since=before)
    assert floors.at_present == {}
    floors.announce(token(7), published_since=floors.since)
    assert floors.at_present == {LEFT: token(7)}


def test_of_two_changes_without_an_order_a_read_has_to_reflect_both(floors: Announcements) -> None:
    """I5, I6: after a failover that lost transactions no token of one server reaches the other's."""
    one, other = EventToken(100, LEFT, "MariaDB/0-1-7"), EventToken(100, LEFT, "MariaDB/0-2-7")
    floors.announce(one)
    floors.announce(other)
    floors.now += TTL
    assert floors.at_present == {LEFT: None}
    floors.announce(EventToken(101, LEFT, "MariaDB/0-2-8"))
    floors.now += TTL
    assert floors.at_present == {LEFT: EventToken(101, LEFT, "MariaDB/0-2-8")}


def test_too_many_changes_without_an_order_begin_anew(floors: Announcements) -> None:
    """I11"""
    floors.announce(*(EventToken(100, LEFT, f"MariaDB/0-{server}-7") for server in range(1, 9)))
    assert floors.at_present == {}


@given(st.lists(st.tuples(st.sampled_from([LEFT, RIGHT]), st.integers(1, 60), st.booleans()), min_size=1, max_size=30))
def test_a_floor_is_never_below_any_change_it_stands_for(changes: list[tuple[str, int, bool]]) -> None:
    """I6, with positions that only partly have a common head."""
    floors = Announcements()
    tokens = [
        EventToken(100, shard, f"MySQL56/{SERVER}:1-{last}" if plain else f"MySQL56/{SERVER}:1-{last}:100-{last + 100}")
        for shard, last, plain in changes
    ]
    floors.announce(*tokens)
    for shard, bound in floors.at_present.items():
        for each in tokens:
            if each.shard == shard and bound is not None:
                assert is_fresher({shard: bound}, {shard: each})


def test_floors_survive_being_stored_and_other_bytes_are_none(floors: Announcements) -> None:
    floors.announce(token(5), token(7, RIGHT))
    assert floors.floors is not None
    assert decode_floors(floors.floors.to_json()) == floors.floors
    for text in (
        None,
        b"",
        b"{}",
        b"[]",
        b'{"generation":"","since":"","began":1,"tombstone_ttl":1,"losses":"","periods":[],"begun":[]}',
        b'{"generation":1,"since":2,"began":1,"tombstone_ttl":1,"losses":3,"periods":[{}],"begun":4}',
    ):
        assert decode_floors(text) is None


@pytest.mark.parametrize(("shards", "begun"), [(10, 10), (60, 0)])
def test_floors_of_many_long_positions_stay_short_and_ask_for_more(
    floors: Announcements, shards: int, begun: int
) -> None:
    """I6, I11: a server refuses long ones, and each miss reads them."""

    def long(last: int, shard: int) -> EventToken:
        servers = ",".join(f"{number:08x}-0000-11ee-b7b9-0242ac120002:1-{last}" for number in range(100))
        return EventToken(100, f"shop{shard}/commerce/0", f"MySQL56/{servers}")

    for last in range(1, 12):
        floors.announce(*(long(last, shard) for shard in range(shards)))
        floors.now += TTL / 4
        assert floors.floors is not None
        if len(floors.floors.to_json()) > MOST_BYTES:
            floors.floors = shortened(floors.floors, floors.now, f"shortened {last}")
            assert floors.at_present == {f"shop{shard}/commerce/0": long(last, shard) for shard in range(begun)}
        assert len(floors.floors.to_json()) <= MOST_BYTES
