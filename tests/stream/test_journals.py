"""Shards that follow from the journals of reshards: the same for every worker, whoever writes what first."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.errors import RelayError
from relay.records import ReshardJournal, Shard, ShardCheckpoint, ShardState
from relay.stream.journals import renamed, shards_of
from tests.stream.journaled import CURRENT, EDGES, World, cut, reshard


def test_the_targets_of_a_split_begin_where_the_journal_says() -> None:
    world = World("-")
    world.end("-", reshard("1", "-", "-80 80-"))
    assert world.ready() == ["-80", "80-"]
    starts = {shard.id: shard.start for shard in shards_of(world.plan, world.checkpoints)}
    assert starts == {"-": None, "-80": {"gtid": "MariaDB/0-1-10"}, "80-": {"gtid": "MariaDB/0-1-11"}}


@pytest.mark.parametrize(("first", "last"), [("80-", "-80"), ("-80", "80-")])
def test_the_target_of_a_merge_waits_for_every_participant(first: str, last: str) -> None:
    """I2"""
    world = World("-80", "80-")
    merge = reshard("7", "-80 80-", "-")
    world.end(first, merge)
    assert world.ready() == [last]
    world.end(last, merge)
    assert world.ready() == ["-"]


def test_a_shard_called_as_one_before_it_is_another_shard() -> None:
    """Its positions may begin anew, so its tokens must not be compared with those of the first by position."""
    world = World("-")
    world.end("-", reshard("1", "-", "-80 80-"))
    merge = reshard("2", "-80 80-", "-")
    world.end("-80", merge)
    world.end("80-", merge)
    assert world.ready() == ["-@2"]
    world.end("-@2", reshard("3", "-", "-80 80-"))
    assert world.ready() == ["-80@2", "80-@2"]


def test_the_same_reshard_once_more_leads_to_other_shards() -> None:
    """Where journals are named by what they do, the second split of a shard is called as the first."""
    world = World("-")
    split, merge = reshard("split", "-", "-80 80-"), reshard("merge", "-80 80-", "-")
    for shard, journal in (
        ("-", split),
        ("-80", merge),
        ("80-", merge),
        ("-@2", split),
        ("80-@2", merge),
        ("-80@2", merge),
    ):
        world.end(shard, journal)
    assert world.ready() == ["-@3"]


def test_a_journal_that_does_not_name_the_shard_it_ended_is_refused() -> None:
    with pytest.raises(RelayError, match="journal 4 ended shard -80, but names only 80- as its participants"):
        World("-80", "80-").end("-80", reshard("4", "80-", "-"))


def test_a_shard_that_had_ended_is_another_one_after_a_reset() -> None:
    world = World("-")
    world.end("-", reshard("1", "-", "-80 80-"))
    world.checkpoints |= {"-80": ShardCheckpoint(ShardState.READING), "80-": ShardCheckpoint(ShardState.READING)}
    starts, past = renamed({"-80": CURRENT, "-": CURRENT, "c0-": CURRENT}, world.plan, world.checkpoints)
    assert list(starts) == ["-80", "-@2", "c0-"]
    assert past == ("-80", "-@2", "80-", "c0-")


def test_a_shard_is_another_one_after_a_reset_also_once_nothing_else_tells_of_the_first() -> None:
    """Resets forget the checkpoints: only the plan says which names were used."""
    world = World("-")
    world.end("-", reshard("1", "-", "-80 80-"))
    merge = reshard("2", "-80 80-", "-")
    for shard in ("-80", "80-"):
        world.end(shard, merge)
    starts, past = renamed({"-80": CURRENT, "80-": CURRENT}, world.plan, world.checkpoints)
    assert list(starts) == ["-80@2", "80-@2"]
    world.plan, world.checkpoints = replace(world.plan, shards=starts, past=past), {}
    again, _ = renamed({"-80": CURRENT, "80-": CURRENT}, world.plan, {})
    assert list(again) == ["-80@2", "80-@2"]  # nothing was read in between
    for shard in ("-80@2", "80-@2"):
        world.end(shard, merge)
    assert world.ready() == ["-@3"]


def test_a_reshard_with_a_shard_that_is_not_read_is_refused() -> None:
    """I10: its target would wait for it for ever."""
    with pytest.raises(RelayError, match="merges shard -40 with 40-80, but this source does not read 40-80"):
        World("-40").end("-40", reshard("1", "-40 40-80", "-80"))


def test_the_journal_survives_its_checkpoint() -> None:
    checkpoint = ShardCheckpoint(ShardState.FINISHED, journal=ReshardJournal("1", ("-",), {"-80": CURRENT}))
    assert ShardCheckpoint.from_json(checkpoint.to_json()) == checkpoint
    assert b"journal" not in replace(checkpoint, journal=None).to_json()


def test_two_journals_that_announce_one_shard_are_refused() -> None:
    """I1: the changes of one of them would be read by nobody."""
    world = World("-80", "80-")
    world.end("-80", reshard("1", "-80", "0"))
    world.end("80-", reshard("2", "80-", "0"))
    with pytest.raises(RelayError, match="shard 0 is announced twice: as successor of -80 and as successor of 80-"):
        world.ready()


@given(st.data())
def test_whatever_is_resharded_in_whatever_order_the_shards_that_are_ready_are_one_keyspace(
    data: st.DataObject,
) -> None:
    """Each participant reports each journal, in any order, and each may know only a part of it."""
    edges: frozenset[str] = data.draw(st.frozensets(st.sampled_from(EDGES)))
    world = World(*cut(edges))
    for number in range(data.draw(st.integers(0, 6))):
        following = data.draw(st.frozensets(st.sampled_from(EDGES)))
        # Only what changes takes part.
        before, after = set(cut(edges)), set(cut(following))
        participants, targets = sorted(before - after), sorted(after - before)
        if participants:
            told = reshard(str(number), " ".join(participants), " ".join(targets))
            ids = [shard for shard in world.ready() if Shard(shard).name in participants]
            seen = dict(world.checkpoints)
            for shard in data.draw(st.permutations(ids)):
                # Its worker may not see yet what the others have written.
                alone = World()
                alone.plan, alone.checkpoints = world.plan, dict(data.draw(st.sampled_from([seen, world.checkpoints])))
                alone.end(shard, told)
                world.checkpoints[shard] = alone.checkpoints[shard]
        edges = following
        for shard in world.ready():
            world.checkpoints.setdefault(shard, ShardCheckpoint(ShardState.READING))
    ready = world.ready()
    assert sorted(Shard(shard).name for shard in ready) == sorted(cut(edges))
