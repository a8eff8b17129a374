"""What counts as a stall, and when a worker is ready: I10."""

from __future__ import annotations

from relay.lineage import Shard
from relay.observe.health import STALLED_AFTER, stalls, unready
from relay.observe.report import report
from tests.observe.known import NOW, WALL, finished, listed, polled, reading, source, status

LONG = STALLED_AFTER + 1


def test_a_shard_without_a_successful_poll_names_itself_and_its_last_error() -> None:
    """I10"""
    open_shards = {"a": polled(1), "b": polled(LONG, 12, "ThrottlingException at http://me:secret@db:8000/")}
    [stall] = stalls(status(source(open=open_shards)), NOW, NOW, WALL)
    assert (stall.source, stall.stream, stall.shard) == ("orders", "2026-01-01", "b")
    assert stall.seconds == LONG
    assert stall.error == "ThrottlingException at http://***@db:8000/"


def test_a_shard_that_fails_but_was_polled_not_long_ago_is_no_stall() -> None:
    assert stalls(status(source(open={"a": polled(STALLED_AFTER, 30, "throttled")})), NOW, NOW, WALL) == []


def test_a_segment_of_a_snapshot_that_is_not_read_is_a_stall() -> None:
    [stall] = stalls(status(source(segments={"s/0": polled(LONG)})), NOW, NOW, WALL)
    assert (stall.stream, stall.shard) == ("2026-01-01/snapshot", "s/0")


def test_a_shard_that_waits_for_its_parent_is_not_stalled_however_long() -> None:
    """I2, I10: it is not open, and the status says what it waits for."""
    known = status(
        source(
            listed=listed(Shard("parent"), Shard("child", ("parent", "trimmed"))),
            checkpoints={"parent": reading(WALL - 9000)},
            open={"parent": polled(1)},
        )
    )
    assert stalls(known, NOW, NOW, WALL) == []
    child = next(shard for shard in report(known, NOW, WALL)["shards"] if shard["shard"] == "child")
    assert child["waits_for"] == ["parent"]
    assert child["state"] == "listed"


def test_a_main_loop_that_does_not_turn_is_a_stall_although_no_new_status_comes() -> None:
    """I10: whoever asks has the time, not the worker."""
    known = status(source(open={"a": polled(0)}))
    assert stalls(known, NOW, NOW + STALLED_AFTER, WALL) == []
    found = stalls(known, NOW, NOW + LONG, WALL)
    assert found[0].what.startswith("the worker's main loop does not turn")
    assert (found[0].shard, found[0].seconds) == (None, LONG)


def test_a_worker_that_reads_and_cannot_commit_is_stalled() -> None:
    """I10: every shard is polled, every transaction is aborted."""
    known = status(source(open={"a": polled(0)}), unconfirmed_since=NOW - LONG)
    [stall] = stalls(known, NOW, NOW, WALL)
    assert (stall.what, stall.seconds) == ("what was read cannot be committed: see the log", LONG)
    assert stalls(status(source(), unconfirmed_since=NOW - 1), NOW, NOW, WALL) == []


def test_a_fence_that_is_held_up_for_longer_than_a_transaction_lives_is_a_stall() -> None:
    """I10, I3"""
    held = status(source(), gained=frozenset({1}), fencing_since=NOW - LONG - 29, barrier_timeout=30.0)
    assert stalls(held, NOW, NOW, WALL) == []
    assert len(stalls(held, NOW, NOW + 1, WALL)) == 1


def test_a_worker_whose_loop_has_not_begun_is_alive_and_not_ready() -> None:
    assert stalls(None, None, NOW, WALL) == []
    assert unready(None) == ["starting: connecting to the sources and to Kafka"]


def test_a_source_whose_shards_cannot_be_listed_is_a_stall() -> None:
    """I10: else the children of the shards that end would never be read, in silence."""
    late = source(listed_at=WALL - 61 - STALLED_AFTER)
    [stall] = stalls(status(late, source("other", listed_at=WALL - 70)), NOW, NOW, WALL)
    assert (stall.source, stall.shard) == ("orders", None)


def test_a_source_that_is_planned_and_was_never_listed_is_a_stall() -> None:
    """I10: after a restart, no shard of it is opened, so none of them can tell."""
    never = source(listed_at=0.0, wanted_at=WALL - 61 - STALLED_AFTER)
    [stall] = stalls(status(never), NOW, NOW, WALL)
    assert "cannot be listed" in stall.what
    assert stalls(status(source(listed_at=0.0, wanted_at=WALL - 10)), NOW, NOW, WALL) == []


def test_a_source_that_was_never_listed_is_not_ready_rather_than_stalled() -> None:
    known = status(source(plan=None, listed_at=0.0))
    assert stalls(known, NOW, NOW, WALL) == []
    assert unready(known) == ["source orders: not planned yet"]


def test_a_worker_is_ready_once_it_has_joined_and_passed_the_fence_and_all_is_planned() -> None:
    assert unready(status(source())) == []
    assert "not joined" in unready(status(source(), joined=False))[0]
    assert "3 partitions have not passed the fence" in unready(status(source(), gained=frozenset({1, 2, 3})))[0]


def test_lag_is_that_of_the_place_where_a_restart_would_begin() -> None:
    shards = {"a": reading(WALL - 40), "b": reading(WALL - 90), "c": finished(progress=1.0)}
    known = source(checkpoints=shards, resume_timestamp=int(WALL - 90))
    assert known.lag(WALL) == 90
    assert [known.shard_lag(shard, WALL) for shard in "abc"] == [40, 90, None]
    assert known.unfinished() == {"a", "b"}


def test_lag_grows_from_the_plan_while_a_shard_has_not_been_read_at_all() -> None:
    """I10: no progress is not no lag."""
    known = source(checkpoints={"a": reading(None)})
    assert known.lag(WALL + 7) == 507
    assert source(plan=None).lag(WALL) is None


def test_a_source_that_is_read_to_its_end_has_no_lag() -> None:
    assert source(checkpoints={"a": finished(progress=1.0)}).lag(WALL) == 0
