"""Row events of a binlog in the compiled core against plain Python: the same changes, records, positions, errors."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.avro.encode import ChangeEncoder, Unencodable
from relay.avro.schema import change_schema
from relay.change import Change
from relay.kafka.keys import KeyCodec
from relay.kafka.topic_writer import compiled_records
from relay.mysql.binlog.events import COMMIT, DELETE, UPDATE, WRITE, BinlogEvent, TransactionBegin
from relay.mysql.positions import BinlogPosition
from relay.mysql.relayed_tables import Layouts
from relay.mysql.transactions import ShardTransactions
from relay.source import STREAMED_PAGE
from tests import needs
from tests.examples import examples
from tests.mysql.encoder import ColumnType
from tests.mysql.logged_rows import ALL, BIGINT, FLOAT, LOCAL, PRICE, TEXT, Tables, binlogs, tables_of
from tests.mysql.row_cases import CASES, LATIN1, UTF8MB4, Case, decimals, text

HEADER = b"\xc3\x01header.."


@pytest.fixture(autouse=True)
def core() -> None:
    needs.compiled_core()


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
        transactions = ShardTransactions("-", layouts, position, floor, lambda gtid: gtid.startswith(LOCAL), time.time)
    outcome, totals, committed = Outcome(), [0, 0], []
    for first in range(0, len(events), at_once):
        transactions.feed(events[first : first + at_once])
        while True:
            consumed = transactions.consume()
            changes, size, tables, behind = transactions.take()
            statements = transactions.changes.take_schema_changes()
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
        transactions.changes.tally.token,
        transactions.position,
        transactions.executed_position,
        transactions.is_between_transactions,
        sorted(transactions.take_last_gtids()),
        transactions.statements.followed.layouts,
    ]
    return outcome


def shown(changes: Sequence[Change]) -> list[str]:
    """Return changes as text, which is equal for values that are not numbers, too."""
    return [repr(change) for change in changes]


def plainly(avro: dict[str, Any], changes: Sequence[Change]) -> list[bytes]:
    """Return the records of changes as plain Python writes them."""
    encoder = ChangeEncoder(avro, HEADER)
    return [encoder.encode(replace(one, resume_timestamp=5)) for one in changes]


@settings(deadline=None, max_examples=examples(150))
@given(st.data(), st.sampled_from([1, 2, 5, 1000]), st.sampled_from([0, 1000]), st.booleans())
def test_row_events_give_the_same_changes_positions_and_errors(
    data: st.DataObject, at_once: int, floor: int, is_partial: bool
) -> None:
    """I1, I2, I3, I4, I5: whatever is left to plain Python between them."""
    tables = Tables()
    events = data.draw(binlogs(data.draw(tables_of(tables))))
    partial = {"transaction": "0-1-101", "rows_done": 1, "rows_of": {"0-1-101": {"t": 1}}} if is_partial else None
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
    given_ = data.draw(tables_of(tables))
    seen = played(data.draw(binlogs(given_)), tables.layouts, compiled=True)
    for block in seen.blocks:
        schemas = [one.table.schema for one in given_ if one.table.name == block.table]
        written = []
        for schema in schemas:  # of the layouts of a table, that of the block
            avro = change_schema(schema)
            try:
                plain = plainly(avro, block)
            except Unencodable:
                continue
            writer = compiled_records(avro, HEADER, schema, KeyCodec(schema, "hash"), 6, 1 << 20)
            assert writer is not None
            records = writer.block_records(block, 5, 0)
            written.append([record and record[0] for record in records] == plain)
        assert any(written)


@pytest.mark.parametrize(
    ("own", "other"),
    [
        ([BIGINT, TEXT], [BIGINT, TEXT, PRICE]),
        ([BIGINT, TEXT, PRICE], [BIGINT, TEXT]),
        ([BIGINT, TEXT], [BIGINT, PRICE]),
        ([BIGINT, PRICE], [BIGINT, decimals(10, 3)]),
        ([BIGINT, FLOAT], [BIGINT, decimals(50, 2)]),
        ([BIGINT, TEXT], [TEXT, TEXT]),
    ],
)
def test_a_block_gives_no_records_under_the_schema_of_other_columns(own: list[Case], other: list[Case]) -> None:
    """I8: plain Python is asked, which compares each change with the schema."""
    tables = Tables()
    logged = tables.table("t", own)
    events: list[BinlogEvent] = [begin(101), logged.rows(WRITE, [(7, *[None] * (len(own) - 1))]), COMMIT]
    (block,) = played(events, tables.layouts, compiled=True).blocks
    for schema, is_own in ((logged.table.schema, True), (tables.table("t", other).table.schema, False)):
        codec = KeyCodec(schema, "hash")
        writer = compiled_records(change_schema(schema), HEADER, schema, codec, 6, 1 << 20)
        assert writer is not None
        (record,) = writer.block_records(block, 5, 0)
        assert (record is not None) == is_own


def begin(number: int) -> TransactionBegin:
    return TransactionBegin(f"0-1-{number}", f"MariaDB/0-1-{number}", 1000 + number, None)


def test_usual_transactions_make_no_objects() -> None:
    tables = Tables()
    t, u = tables.table("t", [BIGINT, TEXT, PRICE]), tables.table("u", [TEXT])
    events: list[BinlogEvent] = [
        *(begin(101), t.rows(WRITE, [(7, "a", None)]), u.rows(WRITE, [("x",)]), COMMIT),
        *(begin(102), t.rows(UPDATE, [(7, "a", None), (7, "b", None), (7, "b", None), (8, "b", None)]), COMMIT),
    ]
    seen = played(events, tables.layouts, compiled=True)
    assert sum(map(len, seen.blocks)) == len(seen.changes) == 5
    assert [one.table for one in seen.blocks] == ["t", "u", "t"]
    assert shown(seen.changes) == shown(played(events, tables.layouts, compiled=False).changes)


@pytest.mark.parametrize("case", ALL, ids=lambda case: f"{case.type.kind}-{case.type.meta.hex()}")
@settings(deadline=None, max_examples=examples(15))
@given(data=st.data())
def test_a_value_of_every_type_is_in_a_block(case: Case, data: st.DataObject) -> None:
    """I8: what Avro cannot hold, such as a time after the year 9999, is not."""
    tables = Tables()
    logged = tables.table("t", [BIGINT, case])
    images = [(at, data.draw(case.values | st.none())) for at in range(3)]
    events: list[BinlogEvent] = [begin(101), logged.rows(WRITE, images), COMMIT]
    seen, expected = (played(events, tables.layouts, compiled=each) for each in (True, False))
    assert shown(seen.changes) == shown(expected.changes)
    assert sum(map(len, seen.blocks)) == 3
    (block,) = seen.blocks
    avro, schema = change_schema(logged.table.schema), logged.table.schema
    writer = compiled_records(avro, HEADER, schema, KeyCodec(schema, "hash"), 6, 1 << 20)
    assert writer is not None
    assert [record and record[0] for record in writer.block_records(block, 5, 0)] == plainly(avro, expected.changes)


def test_a_value_that_only_python_takes_leaves_the_rest_of_its_transaction_to_it() -> None:
    """I8: and what came before it is in a block, with its place in the transaction."""
    tables = Tables()
    t = tables.table("t", [BIGINT, text(50, LATIN1)])
    u = tables.table("u", [CASES[0], Case(ColumnType(5, b"\x08", struct.Struct("<d").pack), "double", st.none())])
    events: list[BinlogEvent] = [
        *(begin(101), t.rows(WRITE, [(7, "a"), (8, "a")]), u.rows(WRITE, [(1, float("nan"))])),
        *(t.rows(DELETE, [(8, "a"), (9, "a")]), COMMIT, begin(102), t.rows(WRITE, [(7, "a")]), COMMIT),
    ]
    seen = played(events, tables.layouts, compiled=True)
    assert [len(block) for block in seen.blocks] == [2, 1]
    assert shown(seen.changes) == shown(played(events, tables.layouts, compiled=False).changes)
    assert [(one.transaction.order, one.transaction.last) for one in seen.changes if one.transaction] == [
        *((0, False), (1, False), (2, False), (3, False), (4, True), (0, True))
    ]


def test_a_page_ends_inside_a_transaction_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """I4, I11: and the next one continues there, after a crash too."""
    monkeypatch.setenv("RELAY_NATIVE", "required")
    tables = Tables()
    t = tables.table("t", [BIGINT, text(30_000, UTF8MB4)])
    inserted = [t.rows(WRITE, [(at, "x" * 10_000) for at in range(first, first + 10)]) for first in range(0, 100, 10)]
    events: list[BinlogEvent] = [begin(101), *inserted, COMMIT]
    pages: list[list[int]] = []
    start: dict[str, Any] = {"gtid": "MariaDB/0-1-100"}
    while start["gtid"] != "MariaDB/0-1-101":  # each page by a process of its own
        transactions = ShardTransactions(
            "-", tables.layouts, BinlogPosition.from_json(start), 0, lambda _: False, time.time
        )
        transactions.feed(events)
        transactions.consume()
        changes, size, _, _ = transactions.take()
        assert size < STREAMED_PAGE + 110_000
        start = transactions.position.to_json()
        pages.append([one.key["c0"] for one in changes if one.key])
    assert [number for page in pages for number in page] == list(range(100))
    assert len(pages) == 4


def test_an_event_of_many_rows_is_divided_among_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """I11"""
    monkeypatch.setenv("RELAY_NATIVE", "required")
    tables = Tables()
    t = tables.table("t", [BIGINT, text(30_000, UTF8MB4)])
    events: list[BinlogEvent] = [begin(101), t.rows(WRITE, [(at, "x" * 10_000) for at in range(100)]), COMMIT]
    start = BinlogPosition.from_json({"gtid": "MariaDB/0-1-100"})
    transactions = ShardTransactions("-", tables.layouts, start, 0, lambda _: False, time.time)
    transactions.feed(events)
    sizes = []
    while transactions.has_events:
        transactions.consume()
        sizes.append(transactions.take()[1])
    assert max(sizes) < STREAMED_PAGE + 11_000
    assert len(sizes) == 4


def test_keys_of_a_transaction_are_counted_on_by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """I3: the ids of the changes of a key are different, and the same as in plain Python."""
    tables = Tables()
    t = tables.table("t", [BIGINT, Case(ColumnType(5, b"\x08", struct.Struct("<d").pack), "double", st.none())])
    pairs = [(7, 1.0), (7, 2.0), (7, 2.0), (7, 3.0)]
    events: list[BinlogEvent] = [begin(101), t.rows(WRITE, [(7, 0.5)]), t.rows(UPDATE, pairs)]
    # The core makes the first change of this event, and takes it back.
    events += [t.rows(UPDATE, [(7, 3.0), (7, 4.0), (7, 4.0), (7, float("nan"))]), COMMIT]
    seen, expected = (played(events, tables.layouts, compiled=each) for each in (True, False))
    assert sum(map(len, seen.blocks)) == 3
    assert [one.event_id for one in seen.changes] == [one.event_id for one in expected.changes]
    assert len({one.event_id for one in seen.changes}) == 5


def test_a_column_of_a_size_that_the_core_does_not_know_is_left_to_plain_python() -> None:
    tables = Tables()
    column = ColumnType(247, b"\x03", lambda value: value.to_bytes(3, "little"), collation=UTF8MB4, members=("a", "b"))
    logged = tables.table("t", [BIGINT, Case(column, "string", st.none())])
    events: list[BinlogEvent] = [begin(101), logged.rows(WRITE, [(7, 2)]), COMMIT]
    seen = played(events, tables.layouts, compiled=True)
    assert (seen.blocks, [one.new for one in seen.changes]) == ([], [{"c0": 7, "c1": "b"}])


@settings(deadline=None, max_examples=examples(300))
@given(st.binary(max_size=60), st.lists(st.sampled_from(ALL), min_size=1, max_size=9), st.booleans())
def test_any_bytes_are_read_or_refused(raw: bytes, cases: list[Case], is_update: bool) -> None:
    """I8: with the message of plain Python, and neither a panic nor a loop."""
    tables = Tables()
    logged = tables.table("t", [BIGINT, *cases])
    events: list[BinlogEvent] = [begin(101), logged.rows(UPDATE if is_update else WRITE, [], lambda _: raw), COMMIT]
    seen, expected = (played(events, tables.layouts, compiled=each) for each in (True, False))
    assert (shown(seen.changes), seen.error) == (shown(expected.changes), expected.error)
