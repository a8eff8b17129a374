"""What health knows across fencing, aborts, other workers and new workers of the process (I10)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from relay.observe.health import STALLED_AFTER, Liveness, Stall, find_stalls
from relay.observe.status import Poll, SourceView, WorkerStatus
from relay.records import Shard, ShardCheckpoint, ShardState
from tests.clock import Clock
from tests.observe.known import NOW, WALL, finished, listed, reading, source, status

JUST_POLLED = Poll(NOW + 10_000, 0, None)


class Watched:
    """A worker's liveness, with a clock that the test holds."""

    def __init__(self) -> None:
        self.clock = Clock(NOW)
        self.liveness = Liveness(clock=self.clock)

    def pass_time(self, seconds: float, *sources: SourceView, waits: bool = False, **known: Any) -> list[Stall]:
        """Let ``seconds`` pass, and return what is red in the turn after that."""
        self.clock.now += seconds
        self.liveness.turn(waits=waits)
        self.liveness.look(self.status(*sources, **known))
        return self.stalls(*sources, **known)

    def stalls(self, *sources: SourceView, **known: Any) -> list[Stall]:
        now = self.clock.now
        return find_stalls(self.status(*sources, **known), now, now, WALL, liveness=self.liveness)

    def status(self, *sources: SourceView, **known: Any) -> WorkerStatus:
        read_at = dict.fromkeys(range(64), self.clock.now)
        return status(*sources, **{"checkpoints_read_at": read_at, "barrier_timeout": 30.0, **known})


def updated(at: float, **fields: Any) -> ShardCheckpoint:
    return reading(WALL, updated_at=at, **fields)


def test_a_worker_that_is_fenced_again_and_again_is_red_and_says_how_often_and_why() -> None:
    """I10: each time everything is dropped, fenced and opened again, and for some time nothing waits."""
    watched, shard = Watched(), source(open={"a": JUST_POLLED})
    watched.pass_time(0, shard, waits=True)
    for _ in range(6):
        assert watched.pass_time(5, shard, waits=True) == []
        watched.liveness.failed("fenced: commit: Local: This instance has been fenced at http://me:secret@kafka")
        assert watched.pass_time(3, shard) == []
        assert watched.pass_time(2, shard, gained=frozenset({1}), waits=True) == []
    [stall] = watched.pass_time(1, shard)
    assert (stall.what, stall.seconds) == ("no transaction has been committed", 61)
    assert stall.error == (
        "6 attempts failed; the last was fenced: commit: Local: This instance has been fenced at http://***@kafka"
    )
    assert stall.hangs
    watched.liveness.committed()
    assert watched.pass_time(0, shard) == []


@pytest.mark.parametrize("waits", [False, True])
def test_a_commit_that_nothing_follows_is_no_longer_waited_for(waits: bool) -> None:
    """I10: a relay with nothing to do stays green, though it does not know what became of its last transaction."""
    watched = Watched()
    watched.pass_time(0, waits=waits)
    watched.liveness.failed("fenced: a call was not answered")
    for _ in range(10):
        assert watched.pass_time(20) == []
    assert watched.liveness.uncommitted is None


def test_what_waits_for_its_first_commit_is_red_too() -> None:
    """I10: Kafka answers nothing, so that no attempt ends."""
    watched = Watched()
    assert watched.pass_time(0, waits=True) == []
    assert watched.pass_time(STALLED_AFTER, waits=True) == []
    [stall] = watched.pass_time(1, waits=True)
    assert (stall.what, stall.error) == ("no transaction has been committed", "no attempt has ended yet")


def test_a_source_that_nobody_has_planned_is_red_once_the_worker_has_not_joined_its_group_for_long() -> None:
    """I10: at a first start, without the group's coordinator, no shard is known whose checkpoint could be late."""
    watched, unplanned = Watched(), source(plan=None, listed_at=0.0)
    refused = source("other", plan=None, set_aside=((None, NOW, "no right"),))
    watched.pass_time(0, unplanned, joined=False)
    assert watched.pass_time(30 + STALLED_AFTER + 60, unplanned, joined=False) == []
    stall, other = watched.pass_time(1, unplanned, refused, source("known"), joined=False)
    assert (stall.source, stall.seconds, stall.hangs) == ("orders", 151, False)
    assert stall.what == "the source is not planned, and this worker has not joined group shop.relay; see the brokers"
    assert (other.source, other.error) == ("other", "no right")
    assert watched.pass_time(1, unplanned, joined=False, gained=frozenset({1})) == []
    # The next worker of the process, too, has its time to join.
    assert watched.pass_time(1000, unplanned, joined=False) == []
    assert watched.pass_time(1000, unplanned) == []  # another worker, which owns its plan, is planning it


def test_a_shard_that_no_worker_advances_is_red_in_every_worker() -> None:
    """I10: another worker owns it, and does not have its source."""
    watched = Watched()
    new = ShardCheckpoint(ShardState.PLANNED)
    for second in range(0, 200, 10):
        shards = {"read": updated(second), "unread": updated(0), "ended": finished(), "new": new}
        known = source(checkpoints=shards, listed=listed(Shard("unwritten"), Shard("child", ("read",))))
        stalls = watched.pass_time(10, known, owned=frozenset())
        is_late = second > STALLED_AFTER + 30 + 10
        assert {stall.shard for stall in stalls} == ({"new", "unread", "unwritten"} if is_late else set())
    assert len(stalls) == 3
    assert all("another worker owns it" in stall.what for stall in stalls)


def test_a_shard_does_not_become_green_by_being_opened_again_or_by_a_new_worker() -> None:
    """I10: a new worker of the process reads the checkpoints again, and they say nothing new."""
    watched, again = Watched(), {"a": updated(5)}
    watched.pass_time(0, source(checkpoints=again))
    for _ in range(10):
        again = {"a": replace(again["a"])}
        assert watched.pass_time(10, source(checkpoints=again, open={"a": JUST_POLLED})) == []
    [stall] = watched.pass_time(5, source(checkpoints=again, open={"a": JUST_POLLED}))
    assert (stall.shard, stall.seconds) == ("a", 105)
    assert "this worker owns it" in stall.what
    assert watched.pass_time(5, source(checkpoints={"a": updated(110)})) == []


def test_the_time_of_a_child_begins_when_its_parent_has_ended() -> None:
    """I2, I10"""
    watched, child = Watched(), Shard("child", ("parent",))
    for second in range(0, 300, 10):
        checkpoints = {"parent": updated(second), "child": ShardCheckpoint(ShardState.PLANNED, parents=("parent",))}
        assert watched.pass_time(10, source(checkpoints=checkpoints, listed=listed(child))) == []
    ended = {**checkpoints, "parent": finished()}
    assert watched.pass_time(10, source(checkpoints=ended, listed=listed(child))) == []
    [stall] = watched.pass_time(110, source(checkpoints=ended, listed=listed(child)))
    assert (stall.shard, stall.seconds) == ("child", 110)


def test_shards_that_are_read_rarely_because_there_are_many_are_not_red() -> None:
    watched = Watched()
    many = source(checkpoints={f"s{number}": updated(0) for number in range(25_000)})
    watched.pass_time(0, many)
    assert watched.pass_time(STALLED_AFTER + 30 + 100, many) == []
    assert len(watched.pass_time(1, many)) == 25_000


def test_what_the_view_has_not_read_is_not_held_against_shards() -> None:
    """The topic itself is red then."""
    watched = Watched()
    known, unread = source(checkpoints={"a": updated(0)}), dict.fromkeys(range(64), NOW)
    watched.pass_time(0, known)
    [stall] = watched.pass_time(200, known, checkpoints_read_at=unread, checkpoints="shop.checkpoints")
    assert stall.what.startswith("topic shop.checkpoints was not read to its end")


def test_a_worker_that_cannot_commit_says_so_once_and_not_for_each_of_its_shards() -> None:
    watched = Watched()
    known = source(checkpoints={"a": updated(0), "other": updated(0)}, open={"a": JUST_POLLED})
    watched.pass_time(0, known, waits=True)
    stalls = watched.pass_time(200, known, waits=True)
    assert [stall.shard for stall in stalls] == [None, "other"]


def test_a_worker_that_has_other_sources_than_another_is_red_once_that_lasts() -> None:
    """I10: nobody reads the shards of a source whose owner lacks it."""
    watched = Watched()
    others: dict[str, Any] = {"differences": [f"{each} differs" for each in ("one", "two", "three", "four")]}
    assert watched.pass_time(0, **others) == []
    assert watched.pass_time(STALLED_AFTER, **others) == []
    [stall] = watched.pass_time(1, **others)
    assert stall.what == "one differs; two differs; three differs; and 1 more. Give every worker the same config"
    assert watched.pass_time(1) == []
    assert watched.pass_time(1, **others) == []
