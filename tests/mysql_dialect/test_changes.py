"""Transactions become changes: the same wherever reading is interrupted, each with its place, none below the floor."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.change import Change, Operation, Snapshot, StatementText, Transaction, Uncarriable
from relay.errors import RelayError
from relay.mysql_dialect.changes import TransactionChanges
from relay.mysql_dialect.charsets import NotText
from relay.mysql_dialect.followed_tables import AppliedStatement
from relay.mysql_dialect.snapshot_times import reads
from relay.mysql_dialect.streamed_transaction import Origin, furthest, position_fields
from relay.mysql_dialect.tables import Row, Table, lay_out
from relay.table import Column
from relay.token import EventToken, OriginToken

SHARD = "s/k/-80"
TABLE = lay_out("s", "t", [Column("id", "int"), Column("v", "string")], ["id"])
STRICT = replace(TABLE, is_strict=True)
OTHER = lay_out("s", "u", [Column("a", "string"), Column("b", "bytes"), Column("v", "int")], ["b", "a"])

Rows = Sequence[tuple[Table, Row | None, Row | None]]


def play(changes: TransactionChanges, gtid: int, rows: Rows, timestamp: int = 100, **options: Any) -> list[Change]:
    changes.begin(f"0-1-{gtid}", f"MariaDB/0-1-{gtid}", timestamp, **options)
    for table, before, after in rows:
        changes.row_of(table)(table, before, after)
    changes.end()
    return list(changes.take())


def test_an_insert_an_update_and_a_delete_keep_their_images() -> None:
    made = play(
        TransactionChanges("s", SHARD),
        1,
        [(TABLE, None, (1, "a")), (TABLE, (1, "a"), (1, "b")), (TABLE, (1, "b"), None)],
    )
    assert [(c.operation, c.old, c.new) for c in made] == [
        (Operation.INSERT, None, {"id": 1, "v": "a"}),
        (Operation.UPDATE, {"id": 1, "v": "a"}, {"id": 1, "v": "b"}),
        (Operation.DELETE, {"id": 1, "v": "b"}, None),
    ]
    assert len({c.event_id for c in made}) == 3
    assert {c.key["id"] for c in made if c.key} == {1}


def test_an_update_of_the_key_is_a_delete_and_an_insert() -> None:
    gone, come = play(TransactionChanges("s", SHARD), 1, [(TABLE, (1, "a"), (2, "a"))])
    assert (gone.operation, gone.key, gone.new) == (Operation.DELETE, {"id": 1}, None)
    assert (come.operation, come.key, come.old) == (Operation.INSERT, {"id": 2}, None)
    assert (gone.transaction, come.transaction) == (Transaction("0-1-1", 0, False), Transaction("0-1-1", 1, True))


def test_the_last_change_of_a_transaction_is_held_back_until_its_end_and_marked_as_last() -> None:
    changes = TransactionChanges("s", SHARD)
    changes.begin("0-1-1", "MariaDB/0-1-1", 100)
    for number in range(3):
        changes.row_of(TABLE)(TABLE, None, (number, "a"))
    assert [c.transaction for c in changes.take()] == [Transaction("0-1-1", 0, False), Transaction("0-1-1", 1, False)]
    assert changes.tally.rows_of == {"t": 2}
    changes.end()
    assert [c.transaction for c in changes.take()] == [Transaction("0-1-1", 2, True)]


def test_a_table_that_is_not_read_again_is_warned_of_beside_one_that_is(caplog: pytest.LogCaptureFixture) -> None:
    """I7."""
    changes = TransactionChanges("s", SHARD)
    changes.begin("0-1-1", "MariaDB/0-1-1", 100)
    unseen = dict.fromkeys(("one", "other"), "has other rows now")
    changes.statement("k", AppliedStatement("RENAME", "", StatementText.COMPLETE, (), unseen, ("one",), "RENAME"))
    assert [(made.reread, made.shown) for made in changes.take_schema_changes()] == [(("one",), "RENAME")]
    assert "`relay snapshot CONFIG s other`" in caplog.text
    assert "CONFIG s one`" not in caplog.text


def test_changes_of_rows_that_python_reads_are_one_list_whether_the_compiled_core_is_there_or_not() -> None:
    changes = TransactionChanges("s", SHARD)
    for number in (1, 2, 3):
        changes.begin(f"0-1-{number}", f"MariaDB/0-1-{number}", 100)
        changes.row_of(TABLE)(TABLE, None, (number, "a"))
        changes.end()
    made = changes.take()
    assert isinstance(made, list)
    assert [change.key for change in made] == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_the_size_is_that_of_the_changes_that_are_ready() -> None:
    """A reader waits while the size is 0, and ends a page by it, so a row that is held back does not count."""
    changes = TransactionChanges("s", SHARD)
    changes.begin("0-1-1", "MariaDB/0-1-1", 100)
    changes.row_of(TABLE)(TABLE, None, (1, "a"), 30)
    assert changes.size == 0
    changes.row_of(TABLE)(TABLE, None, (2, "a"), 50)
    assert changes.size == 30
    assert len(changes.take()) == 1
    assert changes.size == 0
    changes.end()
    assert changes.size == 50
    assert len(changes.take()) == 1
    changes.begin("0-1-2", "MariaDB/0-1-2", 100)
    changes.truncate(TABLE)
    changes.end()
    assert changes.size > 0


def test_no_token_is_below_the_floor_and_the_commit_time_is_kept() -> None:
    changes = TransactionChanges("s", SHARD, floor=150)
    early, late = (play(changes, n, [(TABLE, None, (n, "a"))], at)[0] for n, at in ((1, 100), (2, 200)))
    again = play(changes, 3, [(TABLE, None, (3, "a"))], 180)[0]
    assert [c.token and c.token.timestamp for c in (early, late, again)] == [150, 200, 200]
    assert [c.committed_at for c in (early, late, again)] == [100_000_000, 200_000_000, 180_000_000]
    assert changes.tally.behind == 2
    assert changes.tally.token == EventToken(200, SHARD, "MariaDB/0-1-3")


def test_a_change_that_a_reshard_replicated_has_the_event_id_of_its_origin() -> None:
    rows: Rows = [(TABLE, None, (1, "a")), (TABLE, (1, "a"), (1, "b"))]
    origin = OriginToken(100, "s/k/-", "MariaDB/0-7-9")
    there = TransactionChanges("s", "s/k/-")
    there.begin("0-7-9", "MariaDB/0-7-9", 100)
    for table, before, after in rows:
        there.row_of(table)(table, before, after)
    there.end()
    here = play(TransactionChanges("s", SHARD), 4, rows, origin=Origin(origin, "0-7-9"))
    assert [c.event_id for c in here] == [c.event_id for c in there.take()]
    assert {c.token and c.token.origin for c in here} == {origin}


def test_a_truncate_is_one_change_without_a_key() -> None:
    changes = TransactionChanges("s", SHARD)
    changes.begin("0-1-1", "MariaDB/0-1-1", 100)
    changes.truncate(TABLE)
    changes.end()
    (made,) = changes.take()
    assert (made.operation, made.key, made.transaction) == (Operation.TRUNCATE, None, Transaction("0-1-1", 0, True))


def test_a_copied_row_has_no_token_and_the_same_id_each_time_it_is_read() -> None:
    first, again = reads("s", TABLE, [(1, "a"), (1, "a")], Snapshot("copy", 40), 105.5)
    assert (first.operation, first.token, first.snapshot) == (Operation.READ, None, Snapshot("copy", 40))
    assert first.event_id == again.event_id


def test_a_row_outside_of_any_transaction_is_refused() -> None:
    with pytest.raises(RelayError, match="outside of any transaction"):
        TransactionChanges("s", SHARD).row_of(TABLE)(TABLE, None, (1, "a"))


def test_a_key_that_is_null_is_refused_with_its_table_and_columns() -> None:
    changes = TransactionChanges("s", SHARD)
    changes.begin("0-1-1", "MariaDB/0-1-1", 100)
    with pytest.raises(RelayError, match=r"\{'id': None\} cannot be a key of t"):
        changes.row_of(TABLE)(TABLE, None, (None, "a"))


ODD = NotText(b"\xa4")


def test_a_row_with_bytes_that_are_not_text_is_refused_or_cannot_be_carried() -> None:
    """I8, I12: before or after the change. The rows before it are published."""
    for before, after in ((None, (2, ODD)), ((2, "a"), (2, ODD)), ((2, ODD), (2, "a")), ((2, ODD), None)):
        _, made, _ = play(
            TransactionChanges("s", SHARD),
            1,
            [(TABLE, None, (row, "a")) if row else (TABLE, before, after) for row in (1, 0, 3)],
        )
        reasons = [image.reason for image in (made.old, made.new) if isinstance(image, Uncarriable)]
        assert reasons == ["column 'v': b'\\xa4' is not text in the column's character set"]
        changes = TransactionChanges("s", SHARD)
        changes.begin("0-1-1", "MariaDB/0-1-1", 100)
        changes.row_of(STRICT)(STRICT, None, (1, "a"))
        with pytest.raises(RelayError, match=r"key \{'id': 2\} at MariaDB/0-1-1 of s/k/-80, .*'v': .* dead_letter"):
            changes.row_of(STRICT)(STRICT, before, after)
        assert [change.key for change in changes.take()] == [{"id": 1}]
    (read,) = reads("s", TABLE, [(2, ODD)], Snapshot("copy", 40), 105.5)
    assert isinstance(read.new, Uncarriable)
    with pytest.raises(RelayError, match=r"key \{'id': 2\} in snapshot copy, .*'v': .* dead_letter"):
        reads("s", STRICT, [(2, ODD)], Snapshot("copy", 40), 105.5)


def test_a_row_that_was_published_with_such_bytes_is_not_refused_when_it_is_read_again() -> None:
    """I3: by then, the config may refuse it."""
    skip = {"t": 1}
    (made,) = play(TransactionChanges("s", SHARD), 1, [(STRICT, None, (2, ODD)), (STRICT, None, (3, "a"))], skip=skip)
    assert made.key == {"id": 3}


def test_the_text_of_long_bytes_is_short() -> None:
    assert len(str(NotText(b"\xa4" * 1000))) < 400


_ids = st.integers(0, 3)
_row_of_t = st.tuples(_ids, st.sampled_from("ab"))
_row_of_u = st.tuples(st.sampled_from(["", "a", "b"]), st.sampled_from([b"", b"a", b"\0"]), _ids)


def _changed(table: Table, rows: st.SearchStrategy[tuple[Any, ...]]) -> st.SearchStrategy[tuple[Table, Any, Any]]:
    pairs = st.tuples(st.none() | rows, st.none() | rows).filter(any)
    return pairs.map(lambda pair: (table, *pair))


@given(st.lists(st.lists(_changed(TABLE, _row_of_t) | _changed(OTHER, _row_of_u), max_size=8), max_size=4), st.data())
def test_a_transaction_read_again_from_any_row_continues_with_the_same_changes(
    transactions: list[list[tuple[Table, Any, Any]]], data: st.DataObject
) -> None:
    whole = TransactionChanges("s", SHARD)
    for number, rows in enumerate(transactions):
        expected = play(whole, number, rows)
        assert len({c.event_id for c in expected}) == len(expected)
        assert [c.transaction and c.transaction.order for c in expected] == list(range(len(expected)))
        # Stopped after some rows, and read again by another process that skips what was published.
        first, stop = TransactionChanges("s", SHARD), data.draw(st.integers(0, len(rows)))
        first.begin(f"0-1-{number}", f"MariaDB/0-1-{number}", 100)
        for table, before, after in rows[:stop]:
            first.row_of(table)(table, before, after)
        published = list(first.take())
        rest = play(TransactionChanges("s", SHARD), number, rows, skip=first.tally.rows_of)
        assert published + rest == expected


_TABLES = st.sets(st.sampled_from(["t", "u"]), min_size=1)


@given(st.lists(_changed(TABLE, _row_of_t) | _changed(OTHER, _row_of_u), max_size=8), _TABLES, _TABLES, st.data())
def test_the_remaining_rows_of_a_transaction_are_published_once_if_other_tables_are_relayed_by_then(
    rows: list[tuple[Table, Any, Any]], before: set[str], now: set[str], data: st.DataObject
) -> None:
    """I1, I3."""

    def of(tables: set[str]) -> list[tuple[Table, Any, Any]]:
        return [each for each in rows if each[0].name in tables]

    first = TransactionChanges("s", SHARD)
    first.begin("0-1-1", "MariaDB/0-1-1", 100)
    for table, was, became in of(before)[: data.draw(st.integers(0, len(rows)))]:
        first.row_of(table)(table, was, became)
    published = first.take()
    position = position_fields({"0-1-1": first.tally.rows_of}) if first.tally.rows_of else {}
    assert position.get("rows_done", 0) == sum(first.tally.rows_of.values())
    rest = play(TransactionChanges("s", SHARD), 1, of(now), skip=position.get("rows_of", {}).get("0-1-1"))
    expected = play(TransactionChanges("s", SHARD), 1, rows)
    for name in now:
        told = [each.event_id for each in (*published, *rest) if each.table == name]
        assert told == [each.event_id for each in expected if each.table == name]


@given(
    st.dictionaries(st.sampled_from("tuv"), st.integers(1, 9)),
    st.dictionaries(st.sampled_from("tuv"), st.integers(1, 9)),
)
def test_the_number_of_published_rows_never_decreases(one: dict[str, int], other: dict[str, int]) -> None:
    both = furthest(one, other)
    assert both == furthest(other, one)
    assert all(both[table] >= rows for each in (one, other) for table, rows in each.items())


def test_the_functions_for_old_layouts_are_forgotten() -> None:
    """I11: a table may be altered again and again."""
    changes = TransactionChanges("s", SHARD)
    for number in range(1500):
        table = lay_out("forgotten", "t", [Column("id", "int"), Column(f"c{number}", "int")], ["id"])
        assert len(play(changes, number + 1, [(table, None, (1, 2))])) == 1
    kept = [each for each in gc.get_objects() if isinstance(each, Table) and each.schema.source == "forgotten"]
    assert len(kept) <= 1002
