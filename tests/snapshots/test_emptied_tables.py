"""What a shard says about tables that are emptied or renamed, which snapshots then read again (I7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from relay.change import AlteredTable, Change, ChangeParts, Images, Operation, SchemaChange, StatementText
from relay.records import Plan, Shard, ShardCheckpoint, ShardState, SnapshotBeginning, SnapshotControl, StreamId
from relay.snapshots.emptied_tables import EVERY, emptied_by, emptied_since, forget_before, is_published_to, noted
from relay.source import Page
from relay.token import EventToken
from tests.stream.latest import latest_of

SHARD, STREAM = Shard("-"), StreamId("shop", "shop")
PLAN = Plan("current", 900.0, {"-": {"gtid": "MariaDB/0-1-1"}}, {})
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
    now = [5000.0]
    found, committed = latest_of(STREAM, PLAN, lambda: now[0])

    def run_since(as_of: int) -> None:
        """Let the newest snapshot be one that began then."""
        committed.control = SnapshotControl(ShardState.READING, "1", begun=SnapshotBeginning(as_of))

    run_since(600)
    found.open(SHARD, ShardCheckpoint(ShardState.READING, emptied={"a": 10.0, "b": 20.0}))
    after = found.covering(page([truncation("a"), truncation("c")]))
    assert after is not None
    assert after.emptied == {"a": 5000.0, "b": 20.0, "c": 5000.0}
    assert ShardCheckpoint.from_json(after.to_json()) == after
    now[0] = 6000.0
    run_since(4600)
    after = found.covering(page([row("c")]))
    assert after is not None
    assert after.emptied == {"a": 5000.0, "c": 5000.0}
    now[0] = 7601.0
    run_since(7601)
    after = found.covering(page([row("c")]))
    assert after is not None
    assert (after.emptied, b"emptied" in after.to_json()) == ({}, False)


def test_an_idle_shard_says_at_once_that_it_is_published_as_far_as_a_snapshot_waits_for() -> None:
    """I10: not only with its next checkpoint, in some seconds."""
    found, _ = latest_of(STREAM, PLAN, lambda: 5000.0, snapshots=cast(Any, SimpleNamespace(awaited=4990.0)))
    found.open(SHARD, ShardCheckpoint(ShardState.READING, page().position, reached=4980.0, updated_at=5000.0))
    idle = Page(SHARD, (), page().position, None, None, 0.0)
    assert found.covering(replace(idle, reached=4989.0)) is None
    after = found.covering(replace(idle, reached=4991.0))
    assert after is not None
    assert after.reached == 4991.0
    assert found.covering(replace(idle, reached=4992.0)) is None


def test_a_shard_that_is_never_at_its_head_is_published_to_where_its_last_transaction_began() -> None:
    """I10: a snapshot would not end under load."""
    for shard, expected in (
        (ShardCheckpoint(ShardState.READING), False),
        (ShardCheckpoint(ShardState.READING, reached=99.0, token=replace(TOKEN, timestamp=99)), False),
        (ShardCheckpoint(ShardState.READING, reached=100.0), True),
        (ShardCheckpoint(ShardState.READING, reached=9.0, token=replace(TOKEN, timestamp=100)), True),
        (ShardCheckpoint(ShardState.FINISHED), True),
    ):
        assert is_published_to(100.0, shard) is expected


def test_a_checkpoint_with_many_tables_that_were_emptied_fits_into_a_record() -> None:
    """I10, I11: when a database with many tables is dropped, too."""
    names = [f"table_with_a_long_name_{number}" for number in range(30_000)]
    found: Mapping[str, float] = {}
    for begin, end in ((0, 400), (300, 401), (0, 30_000), (5, 6)):
        statements = [statement("DROP DATABASE", name) for name in names[begin:end]]
        found = noted(found, page((), statements), 1000.0, 0.0)
        assert len(ShardCheckpoint(ShardState.READING, emptied=found).to_json()) < 50_000
    assert found == pytest.approx({EVERY: 1000.002, names[5]: 1000.003}, abs=1e-6)


def test_what_is_emptied_later_is_later_by_the_clock_of_another_worker() -> None:
    """I7"""
    control = SnapshotControl(ShardState.READING, "1", begun=SnapshotBeginning(935, emptied={"-": 1000.0}))
    after = noted({"a": 1000.0}, page([truncation("a")]), 990.0, 0.0)
    assert emptied_since(control, {"-": ShardCheckpoint(ShardState.READING, emptied={"a": 1000.0})}) == []
    assert emptied_since(control, {"-": ShardCheckpoint(ShardState.READING, emptied=after)}) == ["a"]


def test_where_a_shard_cannot_name_what_was_emptied_a_snapshot_of_some_tables_takes_it_for_each_of_them() -> None:
    """I7"""
    begun = SnapshotBeginning(935, emptied={"-": 1000.0})
    control = SnapshotControl(ShardState.READING, "1", begun=begun, tables=("b", "a"))
    for when, found in (1000.0, []), (1001.0, ["a", "b"]):
        assert emptied_since(control, {"-": ShardCheckpoint(ShardState.READING, emptied={EVERY: when})}) == found
    unconcerned = {"-": ShardCheckpoint(ShardState.READING, emptied={"c": 1001.0, "b": 1001.0})}
    assert emptied_since(control, unconcerned) == ["b"]


def test_nothing_is_forgotten_that_happened_since_a_snapshot_was_planned() -> None:
    """I7: by whichever clock."""
    running = SnapshotControl(ShardState.PLANNED, "1", updated_at=1000.0)
    assert forget_before(running, 90_000.0) < 900.0
    began = SnapshotControl(ShardState.READING, "1", begun=SnapshotBeginning(935), updated_at=50_000.0)
    assert forget_before(began, 90_000.0) < 900.0
    for control in (None, replace(began, state=ShardState.FINISHED)):
        assert 80_000.0 < forget_before(control, 90_000.0) < 89_900.0
