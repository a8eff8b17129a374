"""Tables that are emptied or renamed while a snapshot reads them are read again (I7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from relay.change import AlteredTable, Change, ChangeParts, Images, Operation, SchemaChange, StatementText
from relay.engine.emptied_tables import (
    EVERY,
    MOST_REPETITIONS,
    emptied_by,
    emptied_since,
    ended,
    forget_before,
    is_published_to,
    noted,
)
from relay.engine.shard_checkpoints import ShardCheckpoints
from relay.engine.snapshot_records import is_partial, restarted
from relay.lineage import Checkpoint, Gap, Lineage, Plan, Shard, ShardState, StreamId
from relay.source import Page
from relay.table import KeyColumn, TableSchema
from relay.token import EventToken
from tests.engine.snapshotting import TABLES, Snapshotting

SHARD = Shard("-")
TOKEN = EventToken(1000, "shop/shop/-", "MariaDB/0-1-5")


def truncation(table: str) -> Change:
    return Change("e", Operation.TRUNCATE, "shop", table, None, None, None, Images.NEW_AND_OLD, TOKEN, 0)


def row(table: str) -> Change:
    return replace(truncation(table), operation=Operation.DELETE, key={"id": 1})


def statement(kind: str, table: str, renamed_to: str | None = None) -> SchemaChange:
    altered = AlteredTable(table, None, None, None, None, renamed_to)
    return SchemaChange("e", kind, "shop", "shop", "...", StatementText.COMPLETE, (altered,), TOKEN, "0-1-5", 0)


def page(changes: Any = (), statements: Iterable[SchemaChange] = ()) -> Page:
    return Page(SHARD, changes, {"gtid": "MariaDB/0-1-5"}, TOKEN, None, 0.0, schema_changes=tuple(statements))


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (page([row("a"), truncation("b"), row("c")]), {"b"}),
        (page(ChangeParts([[row("a")], [truncation("b")]])), {"b"}),
        (
            page((), [statement("DROP", "a"), statement("TRUNCATE", "b"), statement("DROP DATABASE", "c")]),
            {"a", "b", "c"},
        ),
        (page((), [statement("RENAME", "a", "b"), statement("ALTER", "c", "d")]), {"a", "b", "c", "d"}),
        (page((), [statement("ALTER", "a"), statement("CREATE", "b"), statement("INDEX", "c")]), set()),
    ],
)
def test_what_empties_a_table_or_gives_its_rows_another_name_is_noted(read: Page, expected: set[str]) -> None:
    assert emptied_by(read) == expected


def test_a_checkpoint_says_what_was_emptied_as_long_as_a_snapshot_may_ask() -> None:
    """I7, I11: in the transaction of what does it, and in no checkpoint for ever."""
    now, oldest = [5000.0], [0.0]
    plan = Plan("current", 900.0, {"-": {"gtid": "MariaDB/0-1-1"}}, {})
    found = ShardCheckpoints(
        Lineage(StreamId("shop", "shop")),
        lambda: plan,
        dict,
        has_journals=True,
        forget_before=lambda: oldest[0],
        clock=lambda: now[0],
    )
    found.open(SHARD, Checkpoint(ShardState.READING, emptied={"a": 10.0, "b": 20.0}))
    after = found.covering(page([truncation("a"), truncation("c")]))
    assert after is not None
    assert after.emptied == {"a": 5000.0, "b": 20.0, "c": 5000.0}
    assert Checkpoint.from_json(after.to_json()) == after
    oldest[0], now[0] = 4000.0, 6000.0
    after = found.covering(page([row("c")]))
    assert after is not None
    assert after.emptied == {"a": 5000.0, "c": 5000.0}
    oldest[0] = 7000.0
    after = found.covering(page([row("c")]))
    assert after is not None
    assert (after.emptied, b"emptied" in after.to_json()) == ({}, False)


def test_an_idle_shard_says_at_once_that_it_is_published_as_far_as_a_snapshot_waits_for() -> None:
    """I10: not only with its next checkpoint, in some seconds."""
    plan, awaited = Plan("current", 900.0, {"-": {"gtid": "MariaDB/0-1-1"}}, {}), [4990.0]
    lineage = Lineage(StreamId("shop", "shop"))
    found = ShardCheckpoints(
        lineage, lambda: plan, dict, has_journals=True, awaited=lambda: awaited[0], clock=lambda: 5000.0
    )
    found.open(SHARD, Checkpoint(ShardState.READING, page().position, reached=4980.0, updated_at=5000.0))
    idle = Page(SHARD, (), page().position, None, None, 0.0)
    assert found.covering(replace(idle, reached=4989.0)) is None
    after = found.covering(replace(idle, reached=4991.0))
    assert after is not None
    assert after.reached == 4991.0
    assert found.covering(replace(idle, reached=4992.0)) is None


def test_a_shard_that_is_never_at_its_head_is_published_to_where_its_last_transaction_began() -> None:
    """I10: a snapshot would not end under load."""
    for shard, expected in (
        (Checkpoint(ShardState.READING), False),
        (Checkpoint(ShardState.READING, reached=99.0, token=replace(TOKEN, timestamp=99)), False),
        (Checkpoint(ShardState.READING, reached=100.0), True),
        (Checkpoint(ShardState.READING, reached=9.0, token=replace(TOKEN, timestamp=100)), True),
        (Checkpoint(ShardState.FINISHED), True),
    ):
        assert is_published_to(100.0, shard) is expected


def test_a_checkpoint_with_many_tables_that_were_emptied_fits_into_a_record() -> None:
    """I10, I11: when a database with many tables is dropped, too."""
    names = [f"table_with_a_long_name_{number}" for number in range(30_000)]
    found: Mapping[str, float] = {}
    for begin, end in ((0, 400), (300, 401), (0, 30_000), (5, 6)):
        statements = [statement("DROP DATABASE", name) for name in names[begin:end]]
        found = noted(found, page((), statements), 1000.0, lambda: 0.0)
        assert len(Checkpoint(ShardState.READING, emptied=found).to_json()) < 50_000
    assert found == pytest.approx({EVERY: 1000.002, names[5]: 1000.003}, abs=1e-6)


def test_what_is_emptied_later_is_later_by_the_clock_of_another_worker() -> None:
    """I7"""
    control = Checkpoint(ShardState.READING, snapshot={"id": "1", "as_of": 935, "emptied": {"-": 1000.0}})
    after = noted({"a": 1000.0}, page([truncation("a")]), 990.0, lambda: 0.0)
    assert emptied_since(control, {"-": Checkpoint(ShardState.READING, emptied={"a": 1000.0})}) == []
    assert emptied_since(control, {"-": Checkpoint(ShardState.READING, emptied=after)}) == ["a"]


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
    assert (relay.fields.get("tables"), relay.fields["repetitions"]) == (["small"] if asked else None, 1)
    relay.read_all()
    assert relay.step() == "finished"
    assert relay.marked("end") == set(asked or TABLES)
    assert relay.snapshots.is_settled()


def test_the_record_of_a_snapshot_of_many_tables_does_not_grow_when_they_are_read_again() -> None:
    """I10: no record could hold it, and the relay would stop for ever."""
    names = [f"table_with_a_long_name_{number}" for number in range(10_000)]
    parts = [{"shard": "-", "table": name} for name in names]
    fields = {"id": "1", "as_of": 935, "segments": len(parts), "parts": parts, "covered": names}
    control = Checkpoint(ShardState.READING, snapshot=fields)
    source = Emptying().source
    source.has = tuple(names)
    published = {"-": Checkpoint(ShardState.READING, emptied={EVERY: 5.0})}
    last = replace(control, snapshot=ended(source, control, published, read_until=0.0))
    assert last.snapshot is not None
    assert last.snapshot["again"] == [EVERY]
    assert len(last.to_json()) < len(control.to_json())


def test_of_too_many_tables_that_were_emptied_those_that_were_dropped_end_too() -> None:
    """I7"""
    gone = TableSchema("shop", "small", (KeyColumn("id", "S"),), 1)
    relay = Emptying()
    relay.shard({})
    relay.ask()
    relay.begin()
    relay.source.has, relay.source.gone = ("large",), (gone,)
    relay.shard({EVERY: 5.0})
    relay.read_all()
    assert relay.step() == "finished"
    relay.tidy()
    relay.begin()
    relay.read_all()
    assert relay.step() == "finished"
    assert relay.marked("end") == {"large", "small"}


def test_nothing_is_forgotten_that_happened_since_a_snapshot_was_planned() -> None:
    """I7: by whichever clock."""
    running = Checkpoint(ShardState.PLANNED, snapshot={"id": "1", "as_of": None}, updated_at=1000.0)
    assert forget_before(running, 90_000.0) < 900.0
    began = Checkpoint(ShardState.READING, snapshot={"id": "1", "as_of": 935}, updated_at=50_000.0)
    assert forget_before(began, 90_000.0) < 900.0
    for control in (None, replace(began, state=ShardState.FINISHED)):
        assert 80_000.0 < forget_before(control, 90_000.0) < 89_900.0


class Emptying(Snapshotting):
    """Snapshots beside a shard that says what it has emptied."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.source.has_journals = True

    def shard(self, emptied: Mapping[str, float], *, reached: bool = False) -> None:
        self.emptied = dict(emptied)
        record = Checkpoint(ShardState.READING, emptied=self.emptied, reached=self.now if reached else None)
        self.view.apply(self.source.stream.checkpoint_key("-"), record.to_json())

    def read_all(self, at: float = 0.0) -> None:
        """Let all segments be finished, and all be published that was committed before. ``at``: by another clock."""
        for number in range(self.fields["segments"]):
            key = self.snapshots.stream.checkpoint_key(f"{self.fields['id']}/{number}")
            self.view.apply(key, Checkpoint(ShardState.FINISHED, updated_at=at).to_json())
        assert self.step() is None
        assert self.snapshots.awaited == self.now
        self.shard(self.emptied, reached=True)

    def marked(self, kind: str) -> set[str]:
        return {change.table for change in self.snapshots.mark(self.control, kind)}


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
    first = relay.fields["as_of"]
    relay.begin()
    assert (relay.fields["tables"], relay.fields["gaps"]) == (["small"], [])
    assert relay.fields["as_of"] > relay.fields["after"] > first
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
    assert relay.fields["tables"] == ["large", "larger"]


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
    assert (relay.fields["as_of"] > read_at - margin) == (ahead < margin)


def test_a_segment_does_not_say_that_it_was_read_earlier_than_the_worker_before_said() -> None:
    """I7"""
    relay = Emptying()
    relay.shard({})
    relay.ask("small")
    relay.begin()
    name = f"{relay.fields['id']}/0"
    before = Checkpoint(ShardState.READING, {"type": "rows", "rows": 1}, updated_at=relay.now + 50)
    relay.view.apply(relay.snapshots.stream.checkpoint_key(name), before.to_json())
    relay.snapshots.open_ready_segments(set(range(64)))
    last = Page(Shard(name), (), {"type": "rows", "rows": 2}, None, None, 0.0, finished=True)
    after = relay.snapshots.checkpoint(last)
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
        read.append(relay.fields["tables"])
        relay.read_all()
        assert relay.step() == "finished"
    assert read == [["small"], ["large"]]
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
    begun = restarted(relay.view, stream, Gap("shop", stream.label, None, "reset", None, None, relay.now), 5)
    assert begun is not None
    assert (begun.state, is_partial(begun)) == (ShardState.PLANNED, False)


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
    assert (relay.fields["requests"], relay.fields.get("repetitions", 0)) == ([other.id], 0)


def test_a_table_that_was_dropped_ends_and_one_that_was_dropped_before_is_read_only_if_that_may_be_lost() -> None:
    """I7, I9: the relay may have started again since, and then the source no longer has the table."""
    gone = TableSchema("shop", "small", (KeyColumn("id", "S"),), 1)
    relay = Emptying()
    relay.shard({})
    relay.ask()
    relay.begin()
    relay.source.has, relay.source.gone = ("large",), (gone,)
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
    relay.source.has, relay.source.gone = ("large",), (TableSchema("shop", "small", (KeyColumn("id", "S"),), 1),)
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
