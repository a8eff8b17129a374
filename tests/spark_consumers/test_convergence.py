"""I7: the copy's rule ends in the same state whatever is applied again, and its fold is the rule one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from relay.change import Images, Operation, Snapshot
from relay.token import EventToken
from spark_consumers.fold import Counts, Stored, fold, store


@dataclass(frozen=True)
class Written:
    """A change of one item, as the rule sees it."""

    event_id: str
    operation: Operation
    new: Any
    images: Images
    token: EventToken | None
    snapshot: Snapshot | None = None


def change(number: int, shard: str = "s/l/a", *, deletes: bool = False, timestamp: int | None = None) -> Written:
    operation = Operation.DELETE if deletes else Operation.UPDATE
    token = EventToken(timestamp or 1000 + number, shard, f"DynamoDB/{number}")
    return Written(f"e{number}", operation, None if deletes else f"v{number}", Images.NEW, token)


@st.composite
def histories(draw: st.DrawFn) -> list[Written]:
    """One item's changes in their order: deletes among them, across splits of its shard, timestamps rising."""
    timestamp, shard, found = 1000, 0, []
    for number in range(draw(st.integers(1, 8))):
        timestamp += draw(st.integers(0, 2))
        # A split in the same second leaves the order of two tokens unknown.
        shard += draw(st.integers(0, 1))
        found.append(change(number, f"s/l/{shard}", deletes=draw(st.booleans()), timestamp=timestamp))
    return found


def apply(stored: Stored | None, changes: list[Written]) -> Stored | None:
    for one in changes:
        stored = store(stored, one)[0]
    return stored


@given(histories(), st.data())
@settings(deadline=None)
def test_prefixes_applied_again_do_not_change_the_end(history: list[Written], data: st.DataObject) -> None:
    """Every replay begins somewhere before and goes on to the end, as after a restart."""
    clean = apply(None, history)
    state: Stored | None = None
    reached = 0
    for _ in range(data.draw(st.integers(0, 4))):
        begin = data.draw(st.integers(0, reached))
        end = data.draw(st.integers(begin, len(history)))
        state = apply(state, history[begin:end])
        reached = max(reached, end)
    begin = data.draw(st.integers(0, reached))
    assert apply(state, history[begin:]) == clean


@given(histories(), st.data())
@settings(deadline=None)
def test_folding_a_batch_is_applying_its_changes_one_by_one(history: list[Written], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(history)))
    stored = apply(None, history[:cut])
    batch = history[data.draw(st.integers(0, cut)) :]
    assert fold(stored, batch, Counts()) == apply(stored, batch)


def test_a_row_without_a_token_takes_any_change() -> None:
    assert apply(Stored("dumped", None, ""), [change(1)]) == Stored("v1", change(1).token, "e1")


def test_a_strictly_older_change_is_ignored() -> None:
    newer = apply(None, [change(5)])
    assert apply(newer, [change(4)]) == newer


def test_a_late_insert_does_not_revive_what_was_deleted_after_it() -> None:
    tombstone = apply(None, [change(5, deletes=True)])
    assert tombstone is not None
    assert tombstone.deleted
    assert apply(tombstone, [change(3)]) == tombstone
    assert apply(tombstone, [change(7)]) == Stored("v7", change(7).token, "e7")


def test_an_unknown_order_stores_and_is_counted() -> None:
    """I5"""
    counts = Counts()
    stored = apply(None, [change(1, "s/l/a", timestamp=1000)])
    other = change(2, "s/l/b", timestamp=1000)
    after = fold(stored, [other], counts)
    assert after is not None
    assert (after.item, counts.unknown) == ("v2", 1)


def test_a_snapshot_row_replaces_only_what_is_older_than_it() -> None:
    def read(as_of: int) -> Written:
        return Written("r", Operation.READ, "read", Images.NEW, None, Snapshot("one", as_of))

    streamed = apply(None, [change(5)])  # its timestamp is 1005
    assert apply(streamed, [read(1005)]) == streamed
    assert apply(streamed, [read(1006)]) == Stored("read", None, "r", read_as_of=1006)
    deleted = apply(None, [change(5, deletes=True)])
    assert apply(deleted, [read(1000)]) == deleted


def test_a_change_without_its_image_keeps_the_row_and_says_that_it_is_incomplete() -> None:
    """I8"""
    omitted = Written("o", Operation.UPDATE, None, Images.OMITTED, change(6).token)
    after = apply(apply(None, [change(5)]), [omitted])
    assert after == Stored("v5", omitted.token, "o", incomplete=True)
    redriven = Written("o", Operation.UPDATE, "whole", Images.NEW, omitted.token)
    assert apply(after, [redriven]) == Stored("whole", omitted.token, "o")
