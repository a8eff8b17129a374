"""Rows that are not published: the others have the same changes, wherever reading is interrupted (I1, I3)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.change import Change, Operation
from relay.errors import ConfigError
from relay.mysql_dialect.changes import TransactionChanges
from relay.mysql_dialect.tables import Row, Table, lay_out
from relay.table import Column

COLUMNS = [Column("id", "int"), Column("region", "string"), Column("v", "string")]
ALL = lay_out("s", "t", COLUMNS, ["region", "id"])
EU = lay_out("s", "t", COLUMNS, ["region", "id"], where={"REGION": "eu"})
OTHER = lay_out("s", "u", COLUMNS, ["id"])
ROWS = st.tuples(st.integers(0, 2), st.sampled_from(["eu", "us"]), st.sampled_from(["a", "b"]))
EVENTS = st.lists(
    st.tuples(st.sampled_from(["t", "u"]), ROWS | st.none(), ROWS | st.none()).filter(lambda each: any(each[1:])),
    max_size=8,
)
Event = tuple[str, Row | None, Row | None]


def begun(skip: Any = None) -> TransactionChanges:
    changes = TransactionChanges("s", "s/k/-")
    changes.begin("0-1-1", "MariaDB/0-1-1", 100, skip=skip)
    return changes


def play(changes: TransactionChanges, table: Table, events: list[Event]) -> list[Change]:
    for name, before, after in events:
        of = table if name == "t" else OTHER
        changes.row_of(of)(of, before, after, 1)
    return list(changes.take())


def ids(changes: list[Change]) -> list[tuple[str, Operation]]:
    return [(change.event_id, change.operation) for change in changes]


def published(changes: list[Change]) -> list[Change]:
    return [change for change in changes if change.table == "u" or (change.key or {})["region"] == "eu"]


@given(EVENTS, st.integers(0, 8))
def test_rows_are_left_out_wherever_the_transaction_is_interrupted(events: list[Event], cut: int) -> None:
    """I1, I3: also of a key that changes. What remains has the same ids, and the last change is marked."""
    complete = begun()
    everything = play(complete, ALL, events)
    complete.end()
    wanted = ids(published([*everything, *complete.take()]))
    changes = begun()
    found = play(changes, EU, events)
    changes.end()
    found += changes.take()
    assert ids(found) == wanted
    last = [change.transaction.last for change in found if change.transaction]
    assert last == [number == len(found) for number in range(1, len(found) + 1)]
    first = begun()
    before = play(first, EU, events[:cut])
    again = begun(first.tally.rows_of)
    after = play(again, EU, events)
    again.end()
    assert ids([*before, *after, *again.take()]) == wanted


@pytest.mark.parametrize(
    ("column", "value", "stored"),
    [
        (Column("k", "int"), 7, 7),
        (Column("k", "long"), "7", 7),
        (Column("k", "decimal(20,0)"), 7, 7),
        (Column("k", "string"), 7, "7"),
        (Column("k", "string"), "eu", "eu"),
    ],
)
def test_a_condition_is_about_the_value_whatever_its_notation(column: Column, value: str | int, stored: Any) -> None:
    table = lay_out("s", "t", [column], ["k"], where={"k": value})
    assert table.wanted is not None
    assert table.wanted((stored,))
    assert not table.wanted((stored + stored,))
    assert lay_out("s", "t", [column], ["k"]).wanted is None


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({"v": "a"}, r"source s: `where\.t\.v`: it is not part of the key.*; those are region, id"),
        ({"missing": "a"}, r"`where\.t\.missing`: it is not part of the key"),
        ({"id": "one"}, r"`where\.t\.id`: a column of type int cannot be equal to 'one'"),
    ],
)
def test_a_condition_on_what_may_change_or_can_never_be_is_refused(where: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        lay_out("s", "t", COLUMNS, ["region", "id"], where=where)
