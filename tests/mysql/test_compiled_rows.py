"""Whole transactions of a binlog in the compiled core against plain Python: the same changes, records, positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.avro.encode import ChangeEncoder, Unencodable
from relay.avro.schema import change_schema
from relay.change import Change
from relay.kafka.compiled_records import compiled_records
from relay.kafka.keys import KeyCodec
from relay.lineage import StreamId
from relay.mysql.binlog.events import COMMIT, BinlogEvent, Rows, Statement, TransactionBegin
from relay.mysql.layouts import Layouts
from relay.mysql.origins import OriginBegin
from relay.mysql.positions import BinlogPosition
from relay.mysql.transactions import ShardTransactions
from relay.sql.tables import Table
from relay.table import Column
from tests import needs
from tests.avro.strategies import ANYTHING, KINDS, LONGS, VALUES
from tests.examples import examples
from tests.mysql.shards import config

HEADER = b"\xc3\x01header.."
LOCAL = "0-9-"
KEYS = {"long": st.integers(7, 9) | LONGS, "string": st.sampled_from(["a", "é"]), "bytes": st.binary(max_size=2)}


@pytest.fixture(autouse=True)
def core() -> None:
    needs.compiled_core()


class Tables:
    """The layouts of one source, some with other columns than before."""

    def __init__(self) -> None:
        self.layouts = Layouts(config("d", {"-": ["localhost:3306"]}, where={"some": {"id": 7}}))

    def table(self, name: str, kinds: Sequence[str], keys: int = 1) -> Table:
        columns = [Column("id" if not at else f"c{at}", kind) for at, kind in enumerate(kinds)]
        made = self.layouts("d", name, columns, [column.name for column in columns[:keys]])
        assert made is not None
        return made


@st.composite
def layouts_of(draw: st.DrawFn, tables: Tables) -> list[Table]:
    kinds = [kind for kind in KINDS if kind not in ("json", "rest", "boolean")]
    found = []
    for name in ("t", "t", "u"):
        keys = draw(st.lists(st.sampled_from([*KEYS, "timestamp", "decimal(5,2)"]), min_size=1, max_size=2))
        others = draw(st.lists(st.sampled_from(kinds), max_size=3))
        found.append(tables.table(name, [*keys, *others], len(keys)))
    return [*found, tables.table("some", ["long", "string"])]


@st.composite
def rows_of(draw: st.DrawFn, table: Table) -> tuple[Any, ...]:
    def value(at: int, column: Column) -> Any:
        if at in table.key and column.type == "timestamp":
            return draw(st.integers(1, 1 << 40))
        if at in table.key:
            return draw(KEYS.get(column.type, VALUES.get(column.type, ANYTHING)))
        return draw(st.none() | VALUES.get(column.type, ANYTHING) | ANYTHING)

    return tuple(value(at, column) for at, column in enumerate(table.columns))


@st.composite
def binlogs(draw: st.DrawFn, tables: list[Table]) -> list[BinlogEvent]:
    """Return mostly whole transactions of rows; others have no end, a statement, or a GTID of one server."""
    events: list[BinlogEvent] = []
    for number in range(101, 101 + draw(st.integers(1, 5))):
        gtid = f"{draw(st.sampled_from(['0-1-'] * 6 + [LOCAL]))}{number}"
        kind = draw(st.sampled_from([TransactionBegin] * 6 + [OriginBegin]))
        time = 1000 + draw(st.integers(-5, 5))
        committed_at = draw(st.none() | st.just(time * 1_000_000 + 7))
        events.append(kind(gtid, f"MariaDB/{gtid}", time, committed_at, False))
        for _ in range(draw(st.integers(0, 3))):
            table = draw(st.sampled_from(tables))
            changes = []
            for _ in range(draw(st.integers(1, 3))):
                before, after = draw(rows_of(table)), draw(rows_of(table))
                same = (*before[: len(table.key)], *after[len(table.key) :])
                changes.append(draw(st.sampled_from([(None, after), (before, None), (before, after), (before, same)])))
            events.append(Rows(table, changes, draw(st.sampled_from([10, 1000, 300_000]))))
        ending = draw(st.integers(0, 9))
        if ending == 0 and type(events[-1]) is kind:
            continue  # the server died; it sends no rows of such a transaction
        if ending == 1:
            events.append(Statement("CREATE TABLE d.x (id int primary key)", "d", time, False))
        events.append(COMMIT)
    return events


@dataclass
class Outcome:
    changes: list[Change] = field(default_factory=list)
    blocks: list[Any] = field(default_factory=list)
    state: list[Any] = field(default_factory=list)
    error: str = ""


def played(
    events: Sequence[BinlogEvent],
    layouts: Layouts,
    *,
    compiled: bool,
    at_once: int = 1000,
    partial: dict[str, Any] | None = None,
    floor: int = 0,
) -> Outcome:
    """Feed events, ``at_once`` together, and take a page whenever one is full."""
    position = BinlogPosition.from_json({"gtid": "MariaDB/0-1-100", **(partial or {})})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAY_NATIVE", "required" if compiled else "off")
        transactions = ShardTransactions(
            StreamId("shop", "d"), "-", layouts, position, floor, lambda gtid: gtid.startswith(LOCAL)
        )
    outcome, totals, committed = Outcome(), [0, 0], []
    for first in range(0, len(events), at_once):
        transactions.feed(events[first : first + at_once])
        while True:
            consumed = transactions.consume()
            changes, size, tables, behind = transactions.take()
            statements = transactions.take_schema_changes()
            assert {one.table for one in changes} <= {one.table for one in tables}
            outcome.changes += changes
            outcome.blocks += [one for one in getattr(changes, "parts", ()) if not isinstance(one, list)]
            outcome.state += statements
            totals = [totals[0] + size, totals[1] + behind]
            committed.append(consumed.committed)
            if consumed.error is not None:
                outcome.error = str(consumed.error)
            if consumed.error is not None or not consumed.is_full:
                break
        if outcome.error:
            break
    outcome.state += [
        totals,
        [each for each in committed if each is not None][-1:],
        transactions.last_token,
        transactions.position,
        transactions.executed_position,
        transactions.is_between_transactions,
        sorted(transactions.take_last_gtids()),
        transactions.followed.layouts,
    ]
    return outcome


def shown(changes: Sequence[Change]) -> list[str]:
    """Return changes as text, which is equal for values that are not numbers, too."""
    return [repr(change) for change in changes]


@settings(deadline=None, max_examples=examples(150))
@given(st.data(), st.sampled_from([1, 2, 5, 1000]), st.sampled_from([0, 1000]), st.booleans())
def test_whole_transactions_give_the_same_changes_and_positions(
    data: st.DataObject, at_once: int, floor: int, is_partial: bool
) -> None:
    """I1, I2, I3, I4, I5: whatever is left to plain Python between them."""
    tables = Tables()
    events = data.draw(binlogs(data.draw(layouts_of(tables))))
    partial = {"transaction": "0-1-101", "rows_done": 1, "rows_of": {"t": 1}} if is_partial else None
    expected = played(events, tables.layouts, compiled=False, at_once=at_once, partial=partial, floor=floor)
    seen = played(events, tables.layouts, compiled=True, at_once=at_once, partial=partial, floor=floor)
    assert shown(seen.changes) == shown(expected.changes)
    assert seen.state == expected.state
    assert seen.error == expected.error


@settings(deadline=None, max_examples=examples(100))
@given(st.data())
def test_a_block_gives_the_records_of_its_changes(data: st.DataObject) -> None:
    """I2, I8: what cannot be carried is never in a block."""
    tables = Tables()
    given_ = data.draw(layouts_of(tables))
    seen = played(data.draw(binlogs(given_)), tables.layouts, compiled=True)
    for block in seen.blocks:
        schemas = [one.schema for one in given_ if one.name == block.table]
        written = []
        for schema in schemas:  # of the layouts of a table, that of the block
            avro = change_schema(schema)
            try:
                plain = [ChangeEncoder(avro, HEADER).encode(replace(one, resume_timestamp=5)) for one in block]
            except Unencodable:
                continue
            writer = compiled_records(avro, HEADER, schema, KeyCodec(schema, "hash"), 6, 1 << 20)
            assert writer is not None
            records = writer.block_records(block, 5, 0)
            written.append([record and record[0] for record in records] == plain)
        assert any(written)


def begin(number: int) -> TransactionBegin:
    return TransactionBegin(f"0-1-{number}", f"MariaDB/0-1-{number}", 1000 + number, None, False)


def test_usual_transactions_make_no_objects() -> None:
    tables = Tables()
    t, u = tables.table("t", ["long", "string", "decimal(10,2)"]), tables.table("u", ["string"])
    events: list[BinlogEvent] = [
        *(begin(101), Rows(t, [(None, (7, "a", None))], 10), Rows(u, [(None, ("x",))], 5), COMMIT),
        *(begin(102), Rows(t, [((7, "a", None), (7, "b", None)), ((7, "b", None), (8, "b", None))], 20), COMMIT),
    ]
    seen = played(events, tables.layouts, compiled=True)
    assert sum(map(len, seen.blocks)) == len(seen.changes) == 5
    assert [one.table for one in seen.blocks] == ["t", "u", "t"]
    assert shown(seen.changes) == shown(played(events, tables.layouts, compiled=False).changes)


@pytest.mark.parametrize("value", ["\ud800", 1 << 40])
def test_a_value_that_cannot_be_carried_leaves_its_transaction_to_plain_python(value: Any) -> None:
    """I8: and what came before it."""
    tables = Tables()
    t = tables.table("t", ["long", "string" if isinstance(value, str) else "int"])
    usual = "a" if isinstance(value, str) else 1
    events: list[BinlogEvent] = []
    for number, each in ((101, usual), (102, value), (103, usual)):
        events += [begin(number), Rows(t, [(None, (7, usual)), (None, (8, each))], 10), COMMIT]
    seen = played(events, tables.layouts, compiled=True)
    assert sum(map(len, seen.blocks)) == 4
    assert shown(seen.changes) == shown(played(events, tables.layouts, compiled=False).changes)


def test_a_page_ends_before_a_transaction_that_does_not_fit() -> None:
    """I11"""
    tables = Tables()
    t = tables.table("t", ["long"])
    events: list[BinlogEvent] = []
    for number in range(101, 106):
        events += [begin(number), Rows(t, [(None, (number,))], 100_000), COMMIT]
    layouts = tables.layouts
    transactions = ShardTransactions(
        StreamId("shop", "d"), "-", layouts, BinlogPosition.from_json({"gtid": "MariaDB/0-1-100"}), 0, lambda _: False
    )
    transactions.feed(events)
    pages = []
    while True:
        is_full = transactions.consume().is_full
        pages.append((len(transactions.take()[0]), transactions.executed_position))
        if not is_full:
            break
    assert pages == [(2, "MariaDB/0-1-102"), (2, "MariaDB/0-1-104"), (1, "MariaDB/0-1-105")]
