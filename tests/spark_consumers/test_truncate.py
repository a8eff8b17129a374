"""A TRUNCATE deletes the older rows of its own shard, and no row that another shard may still hold (I7, I8)."""

from __future__ import annotations

import pytest

from relay.change import REDRIVEN, Images, Operation, Snapshot
from relay.token import EventToken
from spark_consumers.fold import (
    ChangeHead,
    Place,
    StoredRow,
    Verdict,
    needed_later,
    split_at_truncations,
    store,
    sweep,
    truncate,
)
from tests.spark_consumers.heads import head


def truncation(token: EventToken | None) -> ChangeHead:
    return head("t", Operation.TRUNCATE, None, Images.NEW_AND_OLD, token)


def token(shard: str, number: int, timestamp: int | None = None) -> EventToken:
    return EventToken(timestamp or 1000 + number, f"s/k/{shard}", f"MariaDB/0-1-{number}")


def after(shard: str, number: int, truncated: str, at: int, **times: int) -> tuple[StoredRow, Verdict]:
    stored = StoredRow("row", token(shard, number), "e")
    return truncate(stored, truncation(token(truncated, at, **times)))


def test_an_older_row_of_the_same_shard_is_deleted() -> None:
    row, verdict = after("-80", 1, "-80", 2)
    assert (row.deleted, row.item, verdict) == (True, None, Verdict.APPLIED)


def test_a_row_written_after_it_stays() -> None:
    assert after("-80", 3, "-80", 2) == (StoredRow("row", token("-80", 3), "e"), Verdict.IGNORED)


def test_within_one_second_the_position_decides() -> None:
    assert after("-80", 1, "-80", 2, timestamp=1001)[0].deleted


@pytest.mark.parametrize(("shard", "truncated"), [("80-", "-80"), ("-40", "80-"), ("80-@3", "-80")])
def test_a_row_of_another_shard_stays_unchanged(shard: str, truncated: str) -> None:
    assert after(shard, 1, truncated, 2) == (StoredRow("row", token(shard, 1), "e"), Verdict.IGNORED)


@pytest.mark.parametrize(("shard", "truncated"), [("-", "-80"), ("-c0", "80-"), ("orders", "-80")])
def test_a_row_that_another_shard_may_hold_by_now_stays_and_is_marked_incomplete(shard: str, truncated: str) -> None:
    row, verdict = after(shard, 1, truncated, 2)
    assert (row.deleted, row.item, row.incomplete, verdict) == (False, "row", True, Verdict.UNKNOWN)
    assert truncate(row, truncation(token(truncated, 2))) == (row, Verdict.IGNORED)


def test_a_row_is_deleted_if_every_shard_that_may_hold_it_was_truncated() -> None:
    every = [token(shard, 9) for shard in ("-40", "40-80", "80-c0", "c0-")]
    first = truncation(every[0])
    for stored in (StoredRow("row", token("-", 1), "e"), StoredRow("row", None, "e")):
        assert truncate(stored, first, every)[0].deleted
        assert not truncate(stored, first, [*every[:2], every[3]])[0].deleted
    older = [*every[:3], token("c0-", 1, timestamp=900)]
    assert not truncate(StoredRow("row", token("-", 1), "e"), first, older)[0].deleted


def test_later_truncations_need_the_newest_of_each_shard_that_is_a_part_of_the_table() -> None:
    """I7: a driver that is behind may apply an earlier one again."""
    newest, other = token("-80", 5), token("80-", 3)
    assert needed_later([newest, other, token("-80", 2), token("-", 9), token("orders", 9), None]) == [newest, other]


@pytest.mark.parametrize(("shard", "truncated"), [("-80", "-"), ("40-80", "-80@2"), ("-80", "-80@2"), ("-8000", "-80")])
def test_a_row_is_deleted_with_the_only_shard_that_can_hold_it_after_a_reshard(shard: str, truncated: str) -> None:
    assert after(shard, 1, truncated, 2)[0].deleted


def at(partition: int, offset: int, event_id: str) -> ChangeHead:
    return head(event_id, Operation.UPDATE, place=Place("topic", partition, offset))


def test_changes_after_a_truncation_in_its_partition_are_applied_after_it() -> None:
    """A row that a snapshot reads after it has no token that would protect it."""
    changes = [at(0, 1, "a"), at(0, 3, "b"), at(1, 7, "c"), at(2, 9, "d"), at(0, 6, "e")]
    truncations = [at(0, 2, "t"), at(1, 8, "t"), at(0, 5, "u"), at(1, 9, "u")]
    found = [
        ([change.event_id for change in segment], [(each.event_id, partitions) for each, partitions in truncated])
        for segment, truncated in split_at_truncations(changes, truncations)
    ]
    assert found == [(["a", "c", "d"], [("t", [0, 1])]), (["b"], [("u", [0, 1])]), (["e"], [])]
    assert list(split_at_truncations([], [])) == []


def test_a_row_of_a_snapshot_is_deleted_by_its_time_and_a_tombstone_stays_unchanged() -> None:
    for read_as_of, deleted, incomplete in ((0, True, False), (900, False, True), (1100, False, False)):
        row = truncate(StoredRow("row", None, "e", read_as_of=read_as_of), truncation(token("0", 2)))[0]
        assert (row.deleted, row.incomplete) == (deleted, incomplete)
    tombstone = StoredRow(None, token("-80", 1), "e", deleted=True)
    assert truncate(tombstone, truncation(token("-80", 2))) == (tombstone, Verdict.IGNORED)


@pytest.mark.parametrize("ending", ["truncate", "snapshot"])
def test_a_row_that_came_as_a_stub_is_deleted_too_and_its_redrive_does_not_restore_it(ending: str) -> None:
    """I7: whether a row whose images were too large exists is not known."""
    stub = head("e", Operation.INSERT, None, Images.OMITTED, token("-80", 1))
    complete = head("e", Operation.INSERT, "row", token=token("-80", 1), attributes={REDRIVEN: "true"})
    stored, _ = store(None, stub)
    assert stored is not None
    assert store(stored, complete)[0] == StoredRow("row", complete.token, "e")
    if ending == "truncate":
        gone, verdict = truncate(stored, truncation(token("-80", 2)))
    else:
        gone, verdict = sweep(stored, head("end", Operation.READ, snapshot=Snapshot("s", 5000)))
    assert (gone.item, gone.is_known_deleted, verdict) == (None, True, Verdict.APPLIED)
    again, verdict = store(gone, complete)
    assert (again, verdict) == (gone, Verdict.IGNORED)
