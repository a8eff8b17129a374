"""A snapshot reads tables again that were emptied or renamed during the one before it (I7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from relay.records import Gap, SegmentCheckpoint, Shard, ShardCheckpoint, ShardState, SnapshotBeginning, SnapshotPart
from relay.snapshots.control import restarted
from relay.snapshots.emptied_tables import EVERY, MOST_REPETITIONS
from relay.source import LastPage, Page
from relay.table import KeyColumn, TableSchema
from tests.snapshots.snapshotting import TABLES, Snapshotting


class Emptying(Snapshotting):
    """Snapshots beside a shard that says what it has emptied."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.source.has_journals = True

    def shard(self, emptied: Mapping[str, float], *, reached: bool = False) -> None:
        self.emptied = dict(emptied)
        record = ShardCheckpoint(ShardState.READING, emptied=self.emptied, reached=self.now if reached else None)
        self.view.apply(self.source.stream.shard_key("-"), record.to_json())

    def read_all(self, at: float = 0.0) -> None:
        """Let all segments be finished, and all be published that was committed before. ``at``: by another clock."""
        self.finish_segments(at)
        assert self.step() is None
        assert self.snapshots.awaited == self.now
        self.shard(self.emptied, reached=True)

    def marked(self, kind: str) -> set[str]:
        return {change.table for change in self.snapshots.marked.marks(self.control, kind)}

    def drop(self, table: str) -> None:
        """Let the source no longer have a table, which was relayed before."""
        self.source.has = tuple(name for name in TABLES if name != table)
        self.source.gone = (TableSchema("shop", table, (KeyColumn("id", "S"),), 1),)


@pytest.mark.parametrize("asked", [(), ("small",)])
def test_all_tables_of_a_snapshot_are_read_again_if_too_many_were_emptied_to_be_named(asked: tuple[str, ...]) -> None:
    """I7: of all tables also those that were renamed."""
    relay = Emptying()
    relay.shard({})
    relay.ask(*asked)
    relay.begin()
    relay.shard({EVERY: 5.0, "small": 6.0})
    relay.read_all()
    assert relay.step() == "finished"
    assert relay.marked("end") == set()
    relay.tidy()
    relay.begin()
    assert (relay.control.tables, relay.control.repetitions) == (("small",) if asked else None, 1)
    relay.read_all()
    assert relay.step() == "finished"
    assert relay.marked("end") == set(asked or TABLES)
    assert relay.snapshots.is_settled()


def test_the_record_of_a_snapshot_of_many_tables_does_not_grow_when_they_are_read_again() -> None:
    """I10: no record could hold it, and the relay would stop for ever."""
    relay = Emptying()
    relay.source.has = tuple(f"table_with_a_long_name_{number}" for number in range(10_000))
    relay.shard({})
    relay.ask()
    relay.begin()
    parts = tuple(SnapshotPart("-", name) for name in relay.source.has)
    begun = replace(relay.control, begun=SnapshotBeginning(segments=len(parts), parts=parts)).to_json()
    relay.view.apply(relay.snapshots.stream.snapshot_key, begun)
    relay.shard({EVERY: 5.0})
    relay.read_all()
    assert relay.step() == "finished"
    assert relay.control.again == (EVERY,)
    assert len(relay.control.to_json()) < len(begun)


def test_of_too_many_tables_that_were_emptied_those_that_were_dropped_end_too() -> None:
    """I7"""
    relay = Emptying()
    relay.shard({})
    relay.ask()
    relay.begin()
    relay.drop("small")
    relay.shard({EVERY: 5.0})
    relay.read_all()
    assert relay.step() == "finished"
    relay.tidy()
    relay.begin()
    relay.read_all()
    assert relay.step() == "finished"
    assert relay.marked("end") == {"large", "small"}


def test_a_table_that_is_emptied_during_its_snapshot_has_no_end_in_it_and_is_read_again() -> None:
    """I7: the next one begins after the last row was read, so that its end deletes what that brought back."""
    relay = Emptying()
    relay.shard({"large": 5.0})
    request = relay.ask()
    relay.begin()
    relay.read_all()
    relay.shard({"large": 5.0, "small": relay.now}, reached=True)  # seen at the last moment
    assert relay.step() == "finished"
    assert relay.marked("end") == {"large"}
    assert not relay.snapshots.is_settled()
    assert relay.step() is None  # until nobody can take the request for one that waits
    assert relay.snapshots.fulfilled() == [request.key]
    relay.tidy()
    first = relay.control.begun.as_of
    relay.begin()
    assert (relay.control.tables, relay.control.gaps) == (("small",), ())
    assert relay.control.begun.as_of > relay.control.after > first
    assert relay.marked("begin") == {"small"}
    relay.read_all()
    assert relay.step() == "finished"
    assert relay.marked("end") == {"small"}
    assert relay.snapshots.is_settled()


def test_a_table_that_is_renamed_before_the_begin_but_after_the_measurement_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I1: it is in no segment under its new name, and its rows are in no change."""
    relay = Emptying()
    relay.shard({})
    relay.ask()
    may_begin = [False]
    monkeypatch.setattr(relay.tables, "may_begin", lambda as_of, published: may_begin[0])
    assert [relay.step(), relay.step()] == ["planned", None]
    relay.shard({"large": relay.now, "larger": relay.now})
    may_begin[0] = True
    assert relay.until() == "reading"
    relay.read_all()
    assert relay.step() == "finished"
    relay.tidy()
    assert relay.step() == "planned"
    assert relay.control.tables == ("large", "larger")


@pytest.mark.parametrize("ahead", [60.0, 1_000_000.0])
def test_a_table_is_read_again_later_than_it_was_read_by_any_clock(ahead: float) -> None:
    """I7, I10: the clock of the worker that has read it may be ahead, by less than the margin."""
    relay = Emptying()
    relay.shard({})
    relay.ask("small")
    relay.begin()
    relay.shard({"small": 1.0})
    read_at = relay.now + ahead
    relay.read_all(read_at)
    assert relay.step() == "finished"
    relay.tidy()
    relay.begin()
    margin = relay.tables.margin
    assert (relay.control.begun.as_of > read_at - margin) == (ahead < margin)


def test_a_segment_does_not_say_that_it_was_read_earlier_than_the_worker_before_said() -> None:
    """I7"""
    relay = Emptying()
    relay.shard({})
    relay.ask("small")
    relay.begin()
    name = f"{relay.control.id}/0"
    before = SegmentCheckpoint(ShardState.READING, {"type": "rows", "rows": 1}, updated_at=relay.now + 50)
    relay.view.apply(relay.snapshots.stream.segment_key(name), before.to_json())
    relay.snapshots.open_ready_segments(set(range(64)))
    last = Page(Shard(name), (), {"type": "rows", "rows": 2}, None, None, 0.0, end=LastPage())
    after = relay.snapshots.checkpoint(last, {})
    assert after is not None
    assert after.updated_at == before.updated_at
    relay.snapshots.close_segments()


def test_a_table_is_read_again_although_another_one_was_added_to_the_config_meanwhile() -> None:
    """I7: it has no end in the snapshot that it was emptied in."""
    relay = Emptying(initial=True, is_selective=True)
    relay.source.has = ("small",)
    relay.shard({})
    relay.begin()
    relay.shard({"small": 1.0})
    relay.source.has = TABLES
    relay.read_all()
    assert relay.step() == "finished"
    read = []
    for _ in range(2):
        relay.begin()
        read.append(relay.control.tables)
        relay.read_all()
        assert relay.step() == "finished"
    assert read == [("small",), ("large",)]
    assert relay.snapshots.is_settled()


def test_a_reset_leaves_no_table_without_its_end_that_was_to_be_read_again() -> None:
    """I7"""
    relay = Emptying()
    relay.shard({})
    request = relay.ask("small")
    relay.begin()
    relay.shard({"small": 1.0})
    relay.read_all()
    assert relay.step() == "finished"
    assert relay.snapshots.fulfilled() == [request.key]
    stream = relay.source.stream
    reset = Gap("shop", stream.label, None, "reset", None, None, relay.now)
    begun = restarted(relay.view.of(stream), relay.view.requests_of("shop"), reset, 5)
    assert begun is not None
    assert (begun.state, begun.tables) == (ShardState.PLANNED, None)


def test_a_snapshot_of_one_table_is_not_repeated_because_another_one_is_emptied() -> None:
    relay = Emptying()
    relay.shard({})
    relay.ask("small")
    relay.begin()
    relay.shard({"large": 7.0})
    relay.read_all()
    assert relay.step() == "finished"
    relay.tidy()
    assert relay.snapshots.is_settled()


def test_a_table_that_is_emptied_all_the_time_ends_after_some_repetitions(caplog: pytest.LogCaptureFixture) -> None:
    """I10: other snapshots wait for it."""
    relay = Emptying()
    relay.shard({})
    relay.ask("small")
    other = relay.ask("large")
    for repetition in range(MOST_REPETITIONS + 1):
        relay.begin()
        relay.shard({"small": float(repetition + 1)})
        relay.read_all()
        assert relay.step() == "finished"
        relay.tidy()
    assert relay.marked("end") == {"small"}
    assert "table small is emptied or renamed more often than it can be read" in caplog.text
    relay.begin()
    assert (relay.control.requests, relay.control.repetitions) == ((other.id,), 0)


def test_a_table_that_was_dropped_ends_and_one_that_was_dropped_before_is_read_only_if_that_may_be_lost() -> None:
    """I7, I9: the relay may have started again since, and then the source no longer has the table."""
    relay = Emptying()
    relay.shard({})
    relay.ask()
    relay.begin()
    relay.drop("small")
    relay.read_all()
    assert relay.step() == "finished"
    assert relay.marked("end") == {"large", "small"}
    relay.tidy()
    relay.ask()
    relay.begin()
    assert relay.marked("begin") == {"large"}
    relay.gaps = relay.repair = {"lost"}
    relay.begin()
    assert relay.marked("begin") == {"large", "small"}
    relay.read_all()
    assert relay.step() == "finished"
    assert relay.marked("end") == {"large", "small"}


def test_a_table_of_the_config_that_was_dropped_is_not_taken_for_one_that_was_taken_out_of_it() -> None:
    """I7: copies would keep its rows, and wait for its end."""
    relay = Emptying(initial=True, is_selective=True)
    relay.shard({})
    relay.begin()
    relay.drop("small")
    relay.shard({"small": 7.0})
    relay.read_all()
    assert relay.step() == "finished"
    assert relay.marked("end") == {"large"}
    relay.begin()
    assert relay.marked("begin") == {"small"}
    relay.read_all()
    assert relay.step() == "finished"
    assert relay.marked("end") == {"small"}
    assert relay.step() is None


def test_a_table_that_was_dropped_ends_in_the_snapshot_that_replaces_the_one_it_was_read_by() -> None:
    """I7: copies would keep the rows that were published after the change of the DROP."""
    relay = Emptying()
    relay.shard({})
    stopped = relay.ask("small")
    relay.begin()
    relay.drop("small")
    relay.write(stopped.changed(stopped=True, now=relay.now))
    relay.ask()
    relay.begin()
    assert relay.marked("begin") == {"large", "small"}
    relay.read_all()
    assert relay.step() == "finished"
    assert relay.marked("end") == {"large", "small"}
    relay.tidy()
    relay.ask()
    relay.begin()
    assert relay.marked("begin") == {"large"}


def test_a_snapshot_does_not_end_by_what_an_earlier_one_waited_for_that_another_worker_has_ended() -> None:
    """I7: what emptied a table while the later one was read may not be published yet."""
    relay = Emptying()
    relay.shard({})
    relay.ask()
    relay.begin()
    relay.finish_segments()
    assert relay.step() is None
    relay.shard({}, reached=True)
    later = replace(relay.control, id="later").to_json()  # another worker ends the snapshot, and begins the next one
    relay.view.apply(relay.snapshots.stream.snapshot_key, later)
    relay.finish_segments()
    assert relay.step() is None
    assert relay.snapshots.awaited == relay.now


def test_a_snapshot_that_repairs_a_gap_begins_later_than_the_reading_whose_rows_its_end_deletes() -> None:
    """I7: in the same second, its end would not tell them from its own."""
    relay = Emptying()
    relay.shard({})
    relay.ask()
    relay.begin()
    relay.shard({"small": 7.0})
    relay.read_all()
    assert relay.step() == "finished"
    read = relay.control.after
    assert read > 99_000
    relay.gaps = relay.repair = {"lost"}
    assert relay.step() == "planned"
    assert relay.control.after == read
