"""I7: the copy's rule ends in the same state whatever is applied again, and its fold is the rule one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from relay.change import REDRIVEN, Images, Operation, Snapshot
from relay.token import EventToken
from spark_consumers.fold import StoredRow, VerdictCounts, fold, store


@dataclass(frozen=True)
class Written:
    """A change of one item, as the rule sees it."""

    event_id: str
    operation: Operation
    new: Any
    images: Images
    token: EventToken | None
    snapshot: Snapshot | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)


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


def apply(stored: StoredRow | None, changes: list[Written]) -> StoredRow | None:
    for one in changes:
        stored = store(stored, one)[0]
    return stored


@given(histories(), st.data())
@settings(deadline=None)
def test_prefixes_applied_again_do_not_change_the_end(history: list[Written], data: st.DataObject) -> None:
    """Every replay begins somewhere before and goes on to the end, as after a restart."""
    clean = apply(None, history)
    state: StoredRow | None = None
    reached = 0
    for _ in range(data.draw(st.integers(0, 4))):
        begin = data.draw(st.integers(0, reached))
        end = data.draw(st.integers(begin, len(history)))
        state = apply(state, history[begin:end])
        reached = end  # whoever goes on begins there, or before
    begin = data.draw(st.integers(0, reached))
    assert apply(state, history[begin:]) == clean


@given(histories(), st.data())
@settings(deadline=None)
def test_folding_a_batch_is_applying_its_changes_one_by_one(history: list[Written], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(history)))
    stored = apply(None, history[:cut])
    batch = history[data.draw(st.integers(0, cut)) :]
    assert fold(stored, batch, VerdictCounts()) == apply(stored, batch)


def test_a_row_without_a_token_takes_any_change() -> None:
    assert apply(StoredRow("dumped", None, ""), [change(1)]) == StoredRow("v1", change(1).token, "e1")


def test_a_strictly_older_change_is_ignored() -> None:
    newer = apply(None, [change(5)])
    assert apply(newer, [change(4)]) == newer


def test_a_late_insert_does_not_revive_what_was_deleted_after_it() -> None:
    tombstone = apply(None, [change(5, deletes=True)])
    assert tombstone is not None
    assert tombstone.deleted
    assert apply(tombstone, [change(3)]) == tombstone
    assert apply(tombstone, [change(7)]) == StoredRow("v7", change(7).token, "e7")


def test_an_unknown_order_stores_and_is_counted() -> None:
    """I5"""
    counts = VerdictCounts()
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
    assert apply(streamed, [read(1006)]) == StoredRow("read", None, "r", read_as_of=1006)
    deleted = apply(None, [change(5, deletes=True)])
    assert apply(deleted, [read(1000)]) == deleted


def test_a_change_without_its_image_keeps_the_row_and_says_that_it_is_incomplete() -> None:
    """I8"""
    omitted = Written("o", Operation.UPDATE, None, Images.OMITTED, change(6).token)
    after = apply(apply(None, [change(5)]), [omitted])
    assert after == StoredRow("v5", omitted.token, "o", incomplete=True)
    redriven = Written("o", Operation.UPDATE, "whole", Images.NEW, omitted.token, attributes={REDRIVEN: "true"})
    assert apply(after, [redriven]) == StoredRow("whole", omitted.token, "o")


def stub(whole: Written) -> Written:
    return replace(whole, new=None, images=Images.OMITTED)


def sent_again(whole: Written) -> Written:
    return replace(whole, attributes={REDRIVEN: "true"})


@st.composite
def redriven_histories(draw: st.DrawFn) -> tuple[list[Written], list[Written]]:
    """One item's changes, and the topic with some as stubs, each sent again at any time after, perhaps twice."""
    history = draw(histories())
    topic = list(history)
    for whole in history:
        if draw(st.booleans()):
            topic[topic.index(whole)] = stub(whole)
            for _ in range(draw(st.integers(1, 2))):
                topic.insert(draw(st.integers(topic.index(stub(whole)) + 1, len(topic))), sent_again(whole))
    return history, topic


@given(redriven_histories(), st.data())
@settings(deadline=None)
def test_changes_sent_again_complete_the_row_and_undo_nothing(
    histories: tuple[list[Written], list[Written]], data: st.DataObject
) -> None:
    """I7: also where the order of two tokens is unknown, and whatever prefix of the topic is applied again."""
    history, topic = histories
    state = apply(None, topic)
    assert state == apply(None, history)
    for _ in range(data.draw(st.integers(0, 3))):
        state = apply(state, topic[data.draw(st.integers(0, len(topic))) :])
    assert state == apply(None, history)


def test_a_change_sent_again_is_ignored_where_its_tombstone_was_collected() -> None:
    assert apply(None, [sent_again(change(5))]) is None


def test_a_snapshot_row_that_came_after_a_stub_is_not_undone() -> None:
    later = Written("r", Operation.READ, "read", Images.NEW, None, Snapshot("one", 2000))
    state = apply(None, [stub(change(5)), later])
    assert state is not None
    assert state.token is None
    assert apply(state, [sent_again(change(5))]) == state


def test_a_snapshot_row_too_large_to_publish_is_completed_by_its_own_whole_alone() -> None:
    read = Written("r", Operation.READ, "read", Images.NEW, None, Snapshot("one", 2000))
    incomplete = apply(None, [change(5), stub(read)])
    assert incomplete == StoredRow("v5", None, "r", incomplete=True, read_as_of=2000)
    assert apply(incomplete, [sent_again(change(5))]) == incomplete
    assert apply(incomplete, [sent_again(read)]) == StoredRow("read", None, "r", read_as_of=2000)
