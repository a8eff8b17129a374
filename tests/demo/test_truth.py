"""The demo's checks fail where something is missing, doubled or made up."""

from __future__ import annotations

from dataclasses import replace

from relay.demo.truth import check_snapshot, check_topic, stale_reads, versions_before
from relay.demo.workload import Item, Read, RecordedWrite
from tests.demo.received import received

OLD, NEW, CHANGED = ("a", "1"), ("a", "2"), ("b", "3")


def write(item: Item, version: int | None, *, streamed: bool = True) -> RecordedWrite:
    return RecordedWrite(item, version, 0.0, 0.0, streamed=streamed)


HISTORY = {
    OLD: [write(OLD, 1, streamed=False)],
    NEW: [write(NEW, 1)],
    CHANGED: [write(CHANGED, 1, streamed=False), write(CHANGED, 2), write(CHANGED, None)],
}
STREAMED = [
    received(NEW, 1, "INSERT"),
    replace(received(CHANGED, 2, "UPDATE", 1), offset=1),
    replace(received(CHANGED, None, "DELETE", 2), offset=2),
]


def test_a_row_from_before_the_relay_is_not_expected_in_the_stream() -> None:
    assert check_topic(HISTORY, STREAMED) == []
    assert check_topic(HISTORY, [received(OLD, 1, "INSERT"), *STREAMED])
    assert check_topic(HISTORY, STREAMED[:-1])
    as_new = [STREAMED[0], replace(received(CHANGED, 2, "INSERT"), offset=1), STREAMED[2]]
    assert check_topic(HISTORY, as_new) == [f"{CHANGED}: version 2 is INSERT over None, not UPDATE over 1"]


def test_the_records_of_a_key_are_in_one_partition() -> None:
    moved = [STREAMED[0], replace(STREAMED[1], partition=1), replace(STREAMED[2], partition=2)]
    assert check_topic(HISTORY, moved) == ["key b: in partitions [1, 2]"]
    other = {**HISTORY, ("b", "4"): [write(("b", "4"), 1)]}
    apart = [*STREAMED, received(("b", "4"), 1, "INSERT", partition=3)]
    assert check_topic(other, apart) == ["key b: in partitions [0, 3]"]
    assert check_topic(other, apart, key=lambda item: item) == []


def test_a_snapshot_reads_each_row_at_most_once_and_those_that_never_change_once() -> None:
    reads = [received(OLD, 1, "READ"), received(NEW, 1, "READ"), received(CHANGED, 2, "READ")]
    assert check_snapshot(HISTORY, reads) == []
    assert check_snapshot(HISTORY, reads[:1]) == []
    assert check_snapshot(HISTORY, reads[1:]) == [f"{OLD}: no READ, though nothing changed it"]
    assert check_snapshot(HISTORY, [*reads, reads[0]]) == [f"{OLD}: 2 READs"]
    made_up = [received(OLD, 7, "READ")]
    assert check_snapshot(HISTORY, made_up) == [f"{OLD}: a READ of version 7, which was never written"]


def test_a_read_of_a_row_from_before_the_relay_is_stale_only_after_a_later_invalidation() -> None:
    """I6"""
    before = versions_before(HISTORY)
    assert before == {OLD: 1, CHANGED: 1}
    of_item = {CHANGED: STREAMED[1:]}

    def found(version: int | None, at: float) -> list[str]:
        read = Read(CHANGED, version, at, hit=True)
        return stale_reads([read], of_item, before, lambda each: 20.0 if each.new is None else 10.0)

    assert found(1, 9.0) == []
    assert found(1, 11.0)
    assert found(2, 11.0) == []
    assert found(2, 21.0)
    assert found(None, 21.0) == []
