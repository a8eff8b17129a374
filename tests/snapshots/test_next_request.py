"""Which requested snapshot begins next, what it claims to repair, and what is kept of those before it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relay.kafka.checkpoints import partition_of
from relay.records import (
    PRUNE_AFTER,
    CommittedRecords,
    Gap,
    Plan,
    ShardState,
    SnapshotControl,
    SnapshotPart,
    SnapshotRequest,
    StreamId,
)
from relay.snapshots.control import is_unread, repaired_by, restarted, unfinished_repairs
from relay.stream.pruning import replaced
from tests.snapshots.snapshotting import TABLES, Snapshotting


def test_requested_snapshots_follow_one_another_and_each_request_is_served_once() -> None:
    relay = Snapshotting()
    assert relay.step() is None
    assert relay.snapshots.is_settled()
    first, second = relay.ask("small"), relay.ask("large")
    assert not relay.snapshots.is_settled()
    relay.begin()
    assert (relay.control.tables, relay.control.requests) == (("small",), (first.id,))
    assert relay.control.begun.parts == (SnapshotPart(table="small"),)
    assert {change.table for change in relay.snapshots.marked.marks(relay.control, "begin")} == {"small"}
    assert relay.snapshots.fulfilled() == []
    relay.end()
    assert relay.snapshots.fulfilled() == [first.key]
    assert relay.step() is None  # until nobody can take the first for one that waits
    assert not relay.snapshots.is_settled()
    relay.tidy()
    relay.begin()
    assert relay.control.requests == (second.id,)
    relay.end()
    relay.tidy()
    assert relay.step() is None
    assert relay.snapshots.is_settled()


def test_a_snapshot_of_all_tables_fulfils_all_requests_before_it() -> None:
    relay = Snapshotting()
    whole, part = relay.ask(), relay.ask("small")
    relay.begin()
    assert relay.control.tables is None
    assert {change.table for change in relay.snapshots.marked.marks(relay.control, "end")} == set(TABLES)
    after = relay.ask("small")
    relay.end()
    assert set(relay.snapshots.fulfilled()) == {whole.key, part.key}
    relay.tidy()
    relay.begin()
    assert relay.control.requests == (after.id,)


def test_a_snapshot_of_some_tables_fulfils_the_requests_of_these_and_leaves_those_of_others_and_stopped_ones() -> None:
    relay = Snapshotting()
    asked = [relay.ask("small"), relay.ask("small")]
    stopped, other = relay.ask("small"), relay.ask("large", "small")
    relay.write(stopped.changed(stopped=True, now=relay.now))
    relay.begin()
    assert set(relay.control.requests) == {each.id for each in asked}
    relay.end()
    relay.tidy()
    relay.begin()
    assert relay.control.requests == (other.id,)


def test_a_snapshot_of_one_table_repairs_no_gap_and_hides_none() -> None:
    """I9: neither the one that it would have to repair, nor those that were repaired before it."""
    relay = Snapshotting()
    relay.repair = {"repaired"}
    relay.begin()
    relay.end()
    relay.gaps = {"skipped"}
    relay.ask("small")
    relay.begin()
    assert (relay.control.gaps, relay.control.after) == ((), 99_000)
    assert repaired_by(relay.snapshots.control) == {"repaired"}
    relay.repair |= {"lost"}
    relay.begin()  # it replaces the one that runs
    assert relay.control.gaps == ("lost", "repaired", "skipped")
    assert relay.control.requests == ()
    relay.end()
    relay.begin()
    assert relay.control.tables == ("small",)


def test_a_snapshot_of_all_tables_repairs_the_gaps_that_were_skipped() -> None:
    """I9: it begins after everything that was published before them."""
    relay = Snapshotting()
    relay.gaps = {"skipped"}
    relay.ask()
    relay.begin()
    assert (relay.control.gaps, relay.control.after) == (("skipped",), 99_000)
    relay.end()
    relay.tidy()
    relay.ask()
    relay.begin()
    assert relay.control.after == 0  # it has not to wait for what is repaired


@pytest.mark.parametrize("tables", [(), ("small",)])
def test_the_initial_snapshot_is_not_repeated_after_a_requested_one(tables: tuple[str, ...]) -> None:
    relay = Snapshotting(initial=True)
    relay.begin()
    relay.end()
    assert not is_unread(relay.view, "shop")
    relay.ask(*tables)
    relay.begin()
    assert not is_unread(relay.view, "shop")  # also not by a stream that follows
    relay.end()
    relay.tidy()
    assert relay.step() is None
    assert not is_unread(relay.view, "shop")


def test_a_snapshot_of_one_table_is_not_the_initial_one() -> None:
    """I1"""
    relay = Snapshotting()
    relay.ask("small")
    relay.begin()
    relay.end()
    relay.tidy()
    assert is_unread(relay.view, "shop")
    relay.tables.initial = True
    relay.begin()
    assert relay.control.tables is None


def test_the_control_record_of_a_replaced_stream_stays_while_it_alone_proves_the_initial_snapshot() -> None:
    """I1"""
    old, new = StreamId("shop", "2025"), StreamId("shop", "2026")
    for read in (True, False):
        view = CommittedRecords()
        for stream in (old, new):
            view.apply(stream.plan_key, Plan("latest", 0.0, {}, {}).to_json())
        control = SnapshotControl(ShardState.FINISHED, "1", tables=("small",), read=read)
        view.apply(old.snapshot_key, control.to_json())
        assert (old.snapshot_key not in replaced(view, new, PRUNE_AFTER + 1.0)) == read


def test_a_stopped_snapshot_reads_on_once_the_worker_sees_how_far_it_was_published() -> None:
    """I3: rows would be read twice."""
    relay = Snapshotting()
    request = relay.ask()
    relay.begin()
    every = set(range(64))
    relay.snapshots.open_ready_segments(every)
    names = set(relay.snapshots.open)
    assert len(names) == 2
    relay.write(request.changed(stopped=True, now=relay.now))
    assert (relay.snapshots.is_settled(), relay.snapshots.progress()) == (True, None)
    relay.snapshots.close_stopped()
    relay.snapshots.open_ready_segments(every)
    assert relay.snapshots.open == {}
    relay.write(request)
    assert not relay.snapshots.is_settled()
    relay.snapshots.close_stopped()
    relay.snapshots.open_ready_segments(every)
    assert relay.snapshots.open == {}
    assert relay.snapshots.unseen == {partition_of(relay.snapshots.stream.segment_key(name)) for name in names}
    relay.snapshots.unseen.clear()  # the worker has waited for them
    relay.snapshots.open_ready_segments(every)
    assert set(relay.snapshots.open) == names
    relay.snapshots.close_segments()


def test_a_stopped_snapshot_is_replaced_by_one_of_all_tables_only() -> None:
    """I7, I10: copies wait for the end of what has begun. The other one is not stopped, too."""
    relay = Snapshotting()
    stopped = relay.ask("small")
    relay.begin()
    relay.write(stopped.changed(stopped=True, now=relay.now))
    relay.ask("large")
    assert relay.step() is None
    whole = relay.ask()
    assert relay.step() == "planned"
    assert {stopped.id, whole.id} < set(relay.control.requests)
    assert not relay.snapshots.is_stopped  # I10
    assert relay.until() == "reading"
    relay.end()
    assert {stopped.key, whole.key} < set(relay.snapshots.fulfilled())


def test_a_request_that_is_stopped_before_it_has_begun_waits_until_it_is_resumed() -> None:
    relay = Snapshotting()
    request = relay.ask("small")
    relay.write(request.changed(stopped=True, now=relay.now))
    assert relay.step() is None
    assert relay.snapshots.is_settled()
    relay.write(request)
    relay.begin()


def test_a_request_of_a_table_that_the_worker_does_not_read_waits_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """I10"""
    relay = Snapshotting()
    relay.ask("unknown")
    assert relay.step() is None
    assert relay.step() is None
    assert relay.snapshots.is_settled()
    (said,) = [record.getMessage() for record in caplog.records]
    assert "this worker does not read table unknown" in said
    relay.ask("small")
    relay.begin()


def test_the_stream_that_follows_and_a_reset_leave_a_requested_snapshot_to_its_request() -> None:
    """I9: none of its gaps has to be repaired, and it is served once."""
    relay = Snapshotting()
    relay.gaps = {"skipped"}
    request = relay.ask()
    relay.begin()
    stream = relay.source.stream
    reset = Gap("shop", stream.label, None, "reset", None, None, relay.now)
    assert unfinished_repairs(relay.view.of(stream)) == set()
    assert restarted(relay.view.of(stream), relay.view.requests_of("shop"), reset, 0) is None
    relay.view.apply(request.key, None)
    again = restarted(relay.view.of(stream), relay.view.requests_of("shop"), reset, 0)
    assert again is not None
    assert again.gaps == tuple(sorted(["skipped", reset.id]))


def of_statement(*tables: str, after: int) -> SnapshotRequest:
    return SnapshotRequest("shop", f"{after}-{tables[0]}", tables, float(after), after=after)


def test_the_tables_that_statements_have_changed_are_read_together_and_later_than_the_last_of_the_statements() -> None:
    """I7: a READ replaces no change of its own time, and the rows have the values from before the statement."""
    relay = Snapshotting()
    asked = [of_statement("small", after=100_020), of_statement("large", after=100_040)]
    for request in asked:
        relay.write(request)
    relay.now = 100_040.0
    other = relay.ask("small", "large")
    stopped = of_statement("small", after=100_050).changed(stopped=True, now=relay.now)
    relay.write(stopped)
    relay.begin()
    assert relay.control.tables == ("large", "small")
    assert relay.control.begun.as_of > 100_040
    assert set(relay.control.requests) == {each.id for each in asked}
    relay.end()
    relay.tidy()
    relay.begin()
    assert relay.control.requests == (other.id,)


def altered(table: str, after: int) -> SnapshotRequest:
    gap = Gap("shop", "label", None, "altered", None, None, float(after), table, "ALTER")
    return replace(of_statement(table, after=after), gap=gap)


def test_a_snapshot_of_an_altered_table_begins_after_the_statement_and_then_nothing_is_noted_any_more() -> None:
    """I7, I12: nothing begins by itself, and the note of another table stays."""
    relay = Snapshotting()
    notes = [altered("small", 100_100), altered("large", 100_200)]
    for each in notes:
        relay.write(each)
    assert relay.step() is None
    assert relay.snapshots.is_settled()
    relay.ask("small")
    other = relay.ask("large")
    relay.begin()
    assert 100_100 < relay.control.begun.as_of < 100_200
    late = altered("small", relay.control.begun.as_of)
    relay.write(late)
    relay.end()
    assert relay.snapshots.fulfilled()[1:] == [notes[0].key]
    relay.view.apply(relay.snapshots.fulfilled()[0], None)
    assert relay.step() is None  # the next snapshot would say nothing of this one
    relay.tidy()
    assert relay.view.altered_of("shop") == [late, notes[1]]
    relay.begin()
    assert relay.control.requests == (other.id,)


def test_a_snapshot_that_leaves_an_altered_table_out_leaves_its_note() -> None:
    """I7"""
    relay = Snapshotting()
    note = altered("small", 100_010)
    relay.write(note)
    relay.tables.left_out = ("small",)
    for left_out in (("small",), ()):
        relay.tables.left_out = left_out
        asked = relay.ask()
        relay.begin()
        relay.end()
        assert relay.snapshots.fulfilled() == [asked.key, *([] if left_out else [note.key])]
        relay.tidy()


def test_the_request_of_a_statement_ends_even_if_its_table_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    """I10: nobody would withdraw it."""
    relay = Snapshotting()
    request = of_statement("dropped", after=100_020)
    relay.write(request)
    assert not relay.snapshots.is_settled()
    assert relay.step() == "planned"
    assert relay.until() == "reading"
    relay.end()
    assert relay.snapshots.fulfilled() == [request.key]
    relay.tidy()
    assert relay.snapshots.is_settled()
    assert "does not read table" not in caplog.text


def test_a_snapshot_of_all_tables_fulfils_the_requests_of_statements() -> None:
    relay = Snapshotting()
    whole = relay.ask()
    request = of_statement("small", after=100_090)
    relay.write(request)
    relay.begin()
    assert (relay.control.tables, set(relay.control.requests)) == (None, {whole.id, request.id})
    assert relay.control.begun.as_of > 100_090
