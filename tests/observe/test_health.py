"""Stalls and readiness of a worker (I10), and lag."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relay.kafka.checkpoints import partition_of
from relay.observe.health import STALLED_AFTER, Liveness, find_stalls, not_ready_reasons
from relay.observe.status import Poll, report
from relay.records import Shard
from tests.clock import Clock
from tests.observe.known import NOW, PLAN, WALL, finished, listed, polled, reading, source, status

LONG = STALLED_AFTER + 1


def test_a_shard_without_a_successful_poll_is_a_stall_with_its_name_and_last_error() -> None:
    """I10"""
    open_shards = {"a": polled(1), "b": polled(LONG, 12, "ThrottlingException at http://me:secret@db:8000/")}
    [stall] = find_stalls(status(source(open=open_shards)), NOW, NOW, WALL)
    assert (stall.source, stall.stream, stall.shard) == ("orders", "2026-01-01", "b")
    assert stall.seconds == LONG
    assert stall.error == "ThrottlingException at http://***@db:8000/"


def test_a_shard_that_waits_for_a_person_is_a_stall_at_once_with_the_reason() -> None:
    """I12: and so is a stream that is not begun."""
    known = status(source(set_aside=(("a", NOW - 1, "gap 1 of http://me:secret@db:8000/"), (None, NOW - 2, "gap 2"))))
    found = [(stall.shard, stall.seconds, stall.error, stall.hangs) for stall in find_stalls(known, NOW, NOW, WALL)]
    assert found == [("a", 1.0, "gap 1 of http://***@db:8000/", False), (None, 2.0, "gap 2", False)]


def test_a_source_that_is_not_read_is_a_stall_at_once_with_the_reason() -> None:
    """I12"""
    known = status(source(), absent=[("legacy", NOW - 7, "no server of shard - can be read")])
    [stall] = find_stalls(known, NOW, NOW, WALL)
    assert (stall.source, stall.seconds, stall.error) == ("legacy", 7, "no server of shard - can be read")
    assert not stall.hangs


def test_a_table_that_was_relayed_and_is_left_out_is_a_stall_with_the_reason_and_no_other_is() -> None:
    """I12"""
    plan = replace(PLAN, keys={"orders": (("id", "int"),)})
    known = status(source(plan=plan, left_out={"orders": "has no primary key", "bare": "has no primary key"}))
    [stall] = find_stalls(known, NOW, NOW, WALL)
    assert (stall.source, stall.what, stall.error) == (
        "orders",
        "table orders is not relayed",
        "The table has no primary key",
    )
    assert not stall.hangs


def test_a_failing_shard_that_was_polled_recently_is_not_stalled() -> None:
    assert find_stalls(status(source(open={"a": polled(STALLED_AFTER, 30, "throttled")})), NOW, NOW, WALL) == []


def test_a_shard_that_is_read_rarely_is_stalled_once_it_is_late() -> None:
    """I10: with many shards, or slow calls, each is read as often as the worker can."""
    rare, behind = Poll(NOW - LONG - 80, 0, None, wait=80.0), Poll(NOW - LONG, 0, None)
    assert find_stalls(status(source(open={"a": rare})), NOW - 1, NOW - 1, WALL) == []
    assert len(find_stalls(status(source(open={"a": rare})), NOW, NOW, WALL)) == 1
    assert find_stalls(status(source(open={"a": behind}), read_delay=30.0), NOW, NOW, WALL) == []


def test_a_listing_of_many_pages_may_take_long() -> None:
    """I10: DynamoDB answers ten pages a second, for all workers together."""
    late = source(listed_at=WALL - 61 - STALLED_AFTER, listing_took=90.0)
    assert find_stalls(status(late), NOW, NOW, WALL) == []


def test_a_snapshot_segment_without_a_successful_poll_is_a_stall() -> None:
    [stall] = find_stalls(status(source(segments={"s/0": polled(LONG)})), NOW, NOW, WALL)
    assert (stall.stream, stall.shard) == ("2026-01-01/snapshot", "s/0")


def test_a_shard_that_waits_for_its_parent_is_never_stalled() -> None:
    """I2, I10: it is not open, and the status names the parent."""
    known = status(
        source(
            listed=listed(Shard("parent"), Shard("child", ("parent", "trimmed"))),
            checkpoints={"parent": reading(WALL - 9000)},
            open={"parent": polled(1)},
        )
    )
    assert find_stalls(known, NOW, NOW, WALL) == []
    child = next(shard for shard in report(known, NOW, WALL)["shards"] if shard["shard"] == "child")
    assert child["waits_for"] == ["parent"]
    assert child["state"] == "listed"


def test_a_hanging_main_loop_is_a_stall_although_the_status_is_old() -> None:
    """I10: the age of the status is computed with the clock of the thread that asks."""
    known = status(source(open={"a": polled(0)}))
    assert find_stalls(known, NOW, NOW + STALLED_AFTER, WALL) == []
    found = find_stalls(known, NOW, NOW + LONG, WALL)
    assert found[0].what.startswith("the worker's main loop hangs")
    assert (found[0].shard, found[0].seconds) == (None, LONG)


def test_a_fence_held_up_for_longer_than_the_transaction_timeout_is_a_stall() -> None:
    """I10, I3"""
    held, liveness = status(source(), gained=frozenset({1}), barrier_timeout=30.0), Liveness(clock=Clock(NOW))
    liveness.turn(waits=True)
    assert find_stalls(held, None, NOW + LONG + 29, WALL, liveness=liveness) == []
    [stall] = find_stalls(held, None, NOW + LONG + 30, WALL, liveness=liveness)
    assert stall.what == "assigned partitions do not pass the fence; see the log"
    assert not stall.hangs


def test_checkpoints_that_are_not_read_to_their_end_are_a_stall_with_topic_and_partitions() -> None:
    """I10, I2: the children of a shard whose end is never seen would silently never be read."""
    seen = {0: NOW - 1, 3: NOW - LONG - 30, 7: NOW - LONG - 40, 8: NOW - LONG - 29}
    known = status(source(), barrier_timeout=30.0, checkpoints="shop.checkpoints", checkpoints_read_at=seen)
    [stall] = find_stalls(known, NOW, NOW, WALL)
    assert stall.what.startswith("topic shop.checkpoints was not read to its end in partitions 3, 7; ")
    assert stall.seconds == LONG + 40


def test_a_worker_that_is_still_starting_is_alive_but_not_ready() -> None:
    assert find_stalls(None, None, NOW, WALL) == []
    assert not_ready_reasons(None) == ["starting: connecting to the sources and to Kafka"]


def test_a_source_whose_shards_cannot_be_listed_is_a_stall() -> None:
    """I10: otherwise the children of ended shards would silently never be read."""
    late = source(listed_at=WALL - 61 - STALLED_AFTER)
    [stall] = find_stalls(status(late, source("other", listed_at=WALL - 70)), NOW, NOW, WALL)
    assert (stall.source, stall.shard) == ("orders", None)


def test_a_planned_source_that_was_never_listed_is_a_stall() -> None:
    """I10: after a restart none of its shards is open, so no poll can be late."""
    never = source(listed_at=0.0, listing_wanted_at=WALL - 61 - STALLED_AFTER)
    [stall] = find_stalls(status(never), NOW, NOW, WALL)
    assert "cannot be listed" in stall.what
    assert find_stalls(status(source(listed_at=0.0, listing_wanted_at=WALL - 10)), NOW, NOW, WALL) == []


def test_a_source_that_this_worker_cannot_plan_or_connect_to_is_a_stall() -> None:
    """I10: a call that never returns logs nothing, and no shard is open whose poll could be late."""
    hangs = source(plan=None, listed_at=0.0, held_up_since=WALL - 61 - STALLED_AFTER)
    [stall] = find_stalls(status(hangs, source("other", plan=None, held_up_since=WALL - 70)), NOW, NOW, WALL)
    assert (stall.source, stall.shard) == ("orders", None)
    assert "cannot be planned" in stall.what


def test_a_source_without_a_plan_is_not_ready_but_not_stalled() -> None:
    known = status(source(plan=None, listed_at=0.0))
    assert find_stalls(known, NOW, NOW, WALL) == []
    assert not_ready_reasons(known) == ["source orders: not planned yet"]


def test_a_rolling_update_does_not_wait_for_a_plan_that_another_worker_makes() -> None:
    """That worker may still have the config without the source, and is updated only once this one is ready."""
    known = status(source(plan=None, listed_at=0.0))
    others = known.owned - {partition_of(source().stream.plan_key)}
    assert not_ready_reasons(replace(known, owned=others)) == []


def test_a_worker_is_ready_once_it_has_joined_passed_the_fence_and_made_its_plans() -> None:
    assert not_ready_reasons(status(source())) == []
    assert "not joined" in not_ready_reasons(status(source(), joined=False))[0]
    assert (
        "3 partitions have not passed the fence" in not_ready_reasons(status(source(), gained=frozenset({1, 2, 3})))[0]
    )


def test_lag_is_measured_from_when_everything_that_the_source_had_shown_was_published() -> None:
    shards = {"a": reading(WALL - 40), "b": reading(WALL - 90), "c": finished(progress=1.0)}
    known = source(checkpoints=shards)
    assert known.lag(WALL) == 90
    assert [known.shard_lag(shard, WALL) for shard in "abc"] == [40, 90, None]
    assert known.unfinished() == {"a", "b"}


@pytest.mark.parametrize("head", ["reached", "quiet_at"])
def test_a_shard_that_was_read_to_its_head_is_not_behind_although_its_last_change_is_old(head: str) -> None:
    known = source(checkpoints={"a": reading(WALL - 60, **{head: WALL - 3})})
    assert known.lag(WALL) == known.shard_lag("a", WALL) == 3


def test_a_shard_that_was_not_read_yet_lags_since_the_end_of_its_parents() -> None:
    shards = {"a": finished(progress=WALL - 30), "b": reading(None, parents=("a",))}
    assert source(checkpoints=shards).lag(WALL) == 30


def test_lag_is_measured_from_the_plan_while_a_shard_has_no_progress() -> None:
    """I10: a shard that has never been read has lag."""
    known = source(checkpoints={"a": reading(None)})
    assert known.lag(WALL + 7) == 507
    assert source(plan=None).lag(WALL) is None


def test_a_source_whose_shards_have_all_ended_has_no_lag() -> None:
    assert source(checkpoints={"a": finished(progress=1.0)}).lag(WALL) == 0
