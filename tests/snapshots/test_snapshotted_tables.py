"""Which tables a snapshot reads, and ends for, when the config changes meanwhile."""

from __future__ import annotations

import pytest

from relay.records import ShardState, SnapshotBeginning, SnapshotControl
from tests.snapshots.snapshotting import TABLES, Snapshotting


def test_a_table_that_is_added_to_the_config_is_read_alone_and_once() -> None:
    """I1: its rows from before are not in what is read of the stream."""
    relay = Snapshotting(initial=True, is_selective=True)
    relay.source.has = ("small",)
    relay.begin()
    relay.end()
    assert relay.step() is None
    relay.source.has = TABLES
    assert not relay.snapshots.is_settled()
    relay.begin()
    assert (relay.control.tables, relay.control.gaps) == (("large",), ())
    relay.end()
    assert relay.step() is None
    assert relay.snapshots.is_settled()
    relay.ask("small")
    relay.begin()
    relay.end()
    relay.tidy()
    assert relay.step() is None


def test_a_table_that_is_taken_out_of_the_config_and_added_again_is_read_again() -> None:
    """I1: its changes in between are not in the stream."""
    relay = Snapshotting(initial=True, is_selective=True)
    relay.begin()
    relay.end()
    assert relay.step() is None
    relay.source.has = ("small",)
    assert relay.step() == "finished"
    assert relay.step() is None
    assert relay.snapshots.is_settled()
    relay.source.has = TABLES
    relay.begin()
    assert relay.control.tables == ("large",)
    relay.end()
    assert relay.step() is None


@pytest.mark.parametrize("tables", [(), ("large",)])
def test_a_snapshot_does_not_end_for_a_table_that_was_taken_out_of_the_config_while_it_ran(
    tables: tuple[str, ...],
) -> None:
    """I7: its rows were not all read, so copies would delete the others at the end mark."""
    relay = Snapshotting(initial=True, is_selective=True)
    relay.begin()
    if tables:
        relay.end()
        relay.ask(*tables)
        relay.begin()
    relay.source.has = ("small",)
    assert relay.step() == "reading"
    assert relay.step() is None
    relay.source.has = TABLES
    relay.end()
    marked = {change.table for change in relay.snapshots.marked.marks(relay.control, "end")}
    assert marked == (set() if tables else {"small"})
    relay.tidy()
    relay.begin()
    assert relay.control.tables == ("large",)
    assert {change.table for change in relay.snapshots.marked.marks(relay.control, "begin")} == {"large"}
    relay.end()
    assert relay.step() is None


def test_a_table_that_is_gone_before_a_snapshot_begins_and_back_when_it_does_is_read_by_it() -> None:
    relay = Snapshotting(initial=True, is_selective=True)
    relay.begin()
    relay.end()
    relay.ask()
    assert relay.step() == "planned"
    relay.source.has = ("small",)
    relay.step()
    relay.source.has = TABLES
    assert relay.until() == "reading"
    assert {change.table for change in relay.snapshots.marked.marks(relay.control, "begin")} == set(TABLES)
    relay.end()
    relay.tidy()
    assert relay.step() is None


def test_a_table_that_is_created_is_not_read_where_the_config_names_none() -> None:
    relay = Snapshotting(initial=True)
    relay.source.has = ("small",)
    relay.begin()
    relay.end()
    relay.source.has = TABLES
    assert relay.step() is None


def test_tables_are_not_read_again_after_an_initial_snapshot_that_did_not_say_which_it_read() -> None:
    relay = Snapshotting(initial=True, is_selective=True)
    control = SnapshotControl(ShardState.FINISHED, "1", begun=SnapshotBeginning(segments=2, rows=7))
    relay.view.apply(relay.snapshots.stream.snapshot_key, control.to_json())
    relay.ask("small")
    relay.begin()
    relay.end()
    relay.tidy()
    assert relay.step() is None


def test_a_request_that_was_fulfilled_is_not_served_again_for_a_table_that_was_added_meanwhile() -> None:
    """The record of the next snapshot would no longer say that the request is fulfilled."""
    relay = Snapshotting(initial=True, is_selective=True)
    relay.source.has = ("small",)
    relay.begin()
    relay.end()
    relay.ask("small")
    relay.begin()
    relay.source.has = TABLES
    relay.end()
    assert relay.step() is None
    relay.tidy()
    relay.begin()
    assert relay.control.tables == ("large",)
    relay.end()
    assert relay.step() is None


def test_a_snapshot_does_not_end_for_a_table_that_is_left_out_since_it_lost_its_key() -> None:
    """I7: it is not read, and copies would delete all of its rows at the end mark. Whatever a worker knows then."""
    relay = Snapshotting()
    relay.tables.left_out = ("large",)
    relay.source.left_out = {"small": "has no primary key"}
    relay.ask()
    relay.begin()
    relay.tables.left_out = ()
    assert {change.table for change in relay.snapshots.marked.marks(relay.control, "end")} == set(TABLES) - {"large"}
