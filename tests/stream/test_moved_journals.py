"""Shards that follow from the journals of tables that are moved between keyspaces, and of reshards beside them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.errors import RelayError
from relay.keyrange import shard_range
from relay.records import ReshardJournal, Shard, ShardCheckpoint, ShardState, Start
from relay.stream.journals import renamed, shards_of
from relay.vitess.settings import Portion
from tests.stream.journaled import CURRENT, EDGES, World, cut, reshard

ALL = Portion()


def move(number: str, participants: str, targets: str, shard: str, *tables: str, of: Portion = ALL) -> ReshardJournal:
    """The journal of tables that leave ``shard``, which goes on without them. ``targets``: have them alone.

    ``of``: the tables that the stream had.
    """
    journal = reshard(number, participants, targets)
    starts: dict[str, Start] = {name: {**start, "only": [*tables]} for name, start in journal.targets.items()}
    if (rest := of.less(tables, [number])) is not None:
        starts[shard] = {"gtid": f"MariaDB/0-1-{number}9", **rest.to_json()}
    return replace(journal, targets=starts)


def narrowed(journal: ReshardJournal, **tables: list[str]) -> ReshardJournal:
    return replace(journal, targets={name: {**start, **tables} for name, start in journal.targets.items()})


@pytest.mark.parametrize(("first", "last"), [("80-", "-80"), ("-80", "80-")])
def test_each_shard_goes_on_by_itself_without_a_table_that_was_moved_from_all(first: str, last: str) -> None:
    """I2, I12: the moved table waits for both, and the rest of a shard for that shard alone."""
    world = World("-80", "80-")
    world.end(first, move("1", "-80 80-", "other/-", first, "a"))
    assert world.ready() == sorted([last, f"{first} without a"])
    world.end(last, move("1", "-80 80-", "other/-", last, "a"))
    assert world.ready() == ["-80 without a", "80- without a", "other/- only a"]


def test_a_table_that_is_moved_back_has_a_stream_of_its_own_beside_the_rest_of_its_shard() -> None:
    """I10: where several streams have a shard, the ones with the same tables end together."""
    world = World("-80", "80-")
    for shard in ("-80", "80-"):
        world.end(shard, move("1", "-80 80-", "other/-", shard, "a"))
    world.end("other/- only a", narrowed(reshard("2", "other/-", "-80 80-"), only=["a"]))
    assert world.ready() == ["-80 only a", "-80 without a", "80- only a", "80- without a"]
    merge = reshard("3", "-80 80-", "-")
    world.end("-80 without a", narrowed(merge, without=["a"]))
    assert world.ready() == ["-80 only a", "80- only a", "80- without a"]
    world.end("80- only a", narrowed(merge, only=["a"]))
    assert world.ready() == ["-80 only a", "80- without a"]
    world.end("80- without a", narrowed(merge, without=["a"]))
    assert world.ready() == ["- without a", "-80 only a"]
    world.end("-80 only a", narrowed(merge, only=["a"]))
    assert world.ready() == ["- only a", "- without a"]


def ended_at_once(world: World, *ends: tuple[str, ReshardJournal]) -> None:
    """End shards whose workers do not see each other's records."""
    seen = dict(world.checkpoints)
    for shard, journal in ends:
        alone = World()
        alone.plan, alone.checkpoints = world.plan, dict(seen)
        alone.end(shard, journal)
        world.checkpoints |= alone.checkpoints


def test_two_streams_of_a_shard_that_end_at_once_are_continued_by_streams_of_their_own() -> None:
    """I1: a stream that another one hides would be read by nobody."""
    world = World("0")
    world.end("0", move("1", "0", "c/-", "0", "a"))
    world.end("0 without a", move("2", "0", "c/-", "0", "b", of=Portion(without=("a",))))
    split = reshard("3", "c/-", "c/-80 c/80-")
    ended_at_once(world, ("c/- only a", narrowed(split, only=["a"])), ("c/- only b", narrowed(split, only=["b"])))
    assert world.ready() == ["0 without a b", "c/-80 only a", "c/-80 only b", "c/80- only a", "c/80- only b"]


def test_a_table_comes_back_to_a_shard_that_another_table_leaves_at_once() -> None:
    """I1"""
    world = World("0")
    world.end("0", move("1", "0", "c/-", "0", "a"))
    ended_at_once(
        world,
        ("c/- only a", narrowed(reshard("2", "c/-", "0"), only=["a"])),
        ("0 without a", move("3", "0", "c/-", "0", "b", of=Portion(without=("a",)))),
    )
    assert world.ready() == ["0 only a", "0 without a b", "c/- only b"]


@pytest.mark.parametrize("is_merged", [False, True])
def test_a_later_journal_waits_for_a_shard_that_is_behind(is_merged: bool) -> None:
    """I2, I3: the shard takes part as what is left of it then."""
    world, rest = World("-80", "80-"), Portion(without=("a",))
    merge = narrowed(reshard("2", "-80 80-", "-"), without=["a"])

    def second(shard: str) -> ReshardJournal:
        return merge if is_merged else move("2", "-80 80-", "c/-", shard, "b", of=rest)

    world.end("-80", move("1", "-80 80-", "c/-", "-80", "a"))
    world.end("-80 without a", second("-80"))
    left = [] if is_merged else ["-80 without a b"]
    assert world.ready() == [*left, "80-"]
    world.end("80-", move("1", "-80 80-", "c/-", "80-", "a"))
    assert world.ready() == [*left, "80- without a", "c/- only a"]
    world.end("80- without a", second("80-"))
    after = ["- without a"] if is_merged else ["-80 without a b", "80- without a b"]
    assert world.ready() == [*after, "c/- only a", *([] if is_merged else ["c/- only b"])]


def test_two_moves_may_come_in_another_order_in_each_shard() -> None:
    """I10: nothing waits for ever where the writes of two workflows are switched at once."""
    world = World("-80", "80-")
    for shard, first, last in (("-80", "a", "b"), ("80-", "b", "a")):
        numbers = {"a": "1", "b": "2"}
        world.end(shard, move(numbers[first], "-80 80-", "c/-", shard, first))
        rest = Portion(without=(first,))
        world.end(f"{shard} without {first}", move(numbers[last], "-80 80-", "c/-", shard, last, of=rest))
    assert world.ready() == ["-80 without a b", "80- without a b", "c/- only a", "c/- only b"]


def test_a_participant_that_is_behind_is_not_taken_for_one_that_is_not_read() -> None:
    """I10: a shard that is split before it takes part may have far to go."""
    world = World("-80", "80-")
    world.end("-80", reshard("2", "-80 80-c0", "-c0"))
    assert world.ready() == ["80-"]
    world.end("80-", reshard("1", "80-", "80-c0 c0-"))
    world.end("80-c0", reshard("2", "-80 80-c0", "-c0"))
    assert world.ready() == ["-c0", "c0-"]


def test_a_move_from_shards_that_are_not_all_read_says_what_to_do() -> None:
    """I10"""
    with pytest.raises(RelayError, match="takes tables from shard -80 and from 80-, but this source does not read 80-"):
        World("-80").end("-80", move("1", "-80 80-", "c/-", "-80", "a"))


def test_shards_that_no_longer_have_the_same_tables_and_are_merged_say_what_to_do() -> None:
    """I10: nothing would follow them, though every shard has ended. A reset is possible."""
    world, merge = World("-80", "80-"), reshard("3", "-80 80-", "-")
    world.end("-80", move("1", "-80", "other/-", "-80", "a"))
    world.end("other/- only a", narrowed(reshard("2", "other/-", "-80"), only=["a"]))
    world.end("-80 without a", narrowed(merge, without=["a"]))
    world.end("-80 only a", narrowed(merge, only=["a"]))
    assert world.ready() == ["80-"]
    world.end("80-", merge)
    with pytest.raises(RelayError, match=r"journal 3 ended .*, and what follows waits for .*Run `relay reset`"):
        world.ready()
    assert renamed({"-": CURRENT}, world.plan, world.checkpoints)[0] == {"-": CURRENT}


class Moving:
    """Keyspaces that are resharded, whose tables are moved, and a relay that may read each shard late.

    The time is the number of events so far. At each time, every table has a change in every part of the key space.
    """

    TABLES = ("a", "b", "c")
    PARTS = ("-40", "40-80", "80-c0", "c0-")

    def __init__(self) -> None:
        self.cuts = {"": ["-"], "c/": ["-"]}
        self.places = dict.fromkeys(self.TABLES, "")
        # By time, the keyspace of each table, and the event after it: its participants, targets and tables.
        self.history: list[tuple[dict[str, str], tuple[list[str], list[str], list[str]] | None]] = []
        self.world = World()
        self.world.plan = replace(self.world.plan, shards={"-": {"gtid": "MariaDB/0-1-0"}})
        self.published: list[tuple[str, str, int, str]] = []

    def reshard(self, keyspace: str, edges: frozenset[str]) -> None:
        before, after = self.cuts[keyspace], cut(edges)
        self.cuts[keyspace] = after
        names = [
            [keyspace + name for name in one if name not in other] for one, other in pairwise([before, after, before])
        ]
        self.history.append((dict(self.places), (names[0], names[1], []) if names[0] else None))

    def move(self, keyspace: str, tables: frozenset[str]) -> None:
        """Move the ones of ``tables`` that are in a keyspace to the other one."""
        moved = sorted(table for table in tables if self.places[table] == keyspace)
        other = "c/" if keyspace == "" else ""
        names = [[each + name for name in self.cuts[each]] for each in (keyspace, other)]
        self.history.append((dict(self.places), (names[0], names[1], moved) if moved else None))
        self.places |= dict.fromkeys(moved, other)

    def read(self, shard: Shard) -> None:
        """Read a shard to its end, or as far as there is something."""
        start = shard.start or self.world.plan.shards[shard.id]
        portion, begin = Portion.of(start), int(start["gtid"].rpartition("-")[2])
        for time, (_, event) in enumerate(self.history[begin:], begin + 1):
            self._publish(shard, portion, time)
            participants, targets, tables = event or ([], [], [])
            moved = [table for table in tables if portion.has(table)]
            if shard.name not in participants or (tables and not moved):
                continue
            tabled = Portion(tuple(moved)) if tables else replace(portion, moves=())
            at = {"gtid": f"MariaDB/0-1-{time}"}
            starts = {name: {**at, **tabled.to_json()} for name in targets}
            if tables and (rest := portion.less(moved, [str(time)])) is not None:
                starts[shard.name] = {**at, **rest.to_json()}
            self.world.end(shard.id, ReshardJournal(str(time), tuple(participants), starts))
            return
        self.world.checkpoints[shard.id] = ShardCheckpoint(ShardState.READING)

    def _publish(self, shard: Shard, portion: Portion, time: int) -> None:
        keyspace, _, name = shard.name.rpartition("/")
        parts = [part for part in self.PARTS if shard_range(name).intersects(shard_range(part))]
        where = f"{keyspace}/" if keyspace else ""
        self.published += [(table, part, time, where) for table in self.TABLES if portion.has(table) for part in parts]


@given(st.data())
def test_whatever_is_moved_and_resharded_each_change_is_read_once_and_in_order(data: st.DataObject) -> None:
    """I1, I2, I3, I10: what Vitess copies and replicates back, in the other keyspace, is never read."""
    moving = Moving()
    for _ in range(data.draw(st.integers(1, 7))):
        keyspace = data.draw(st.sampled_from(["", "c/"]))
        if data.draw(st.booleans()):
            moving.reshard(keyspace, data.draw(st.frozensets(st.sampled_from(EDGES))))
        else:
            moving.move(keyspace, data.draw(st.frozensets(st.sampled_from(Moving.TABLES), min_size=1)))
    world, known = moving.world, dict[str, Shard]()
    while ready := [shard for shard in world.readable() if shard.id not in world.checkpoints]:
        moving.read(data.draw(st.sampled_from(ready)))
        records = data.draw(st.permutations([*world.checkpoints]))
        found = {
            shard.id: shard for shard in shards_of(world.plan, {name: world.checkpoints[name] for name in records})
        }
        shards_of(world.plan, {name: world.checkpoints[name] for name in records[::2]})  # others may not be seen yet
        assert found.items() >= known.items()
        known = found
    expected = [
        (table, part, time, places[table])
        for table in Moving.TABLES
        for part in Moving.PARTS
        for time, (places, _) in enumerate(moving.history, 1)
    ]
    assert sorted(moving.published, key=lambda change: change[:2]) == expected
