"""The compiled reader of whole transactions against plain Python: the same changes, records, positions, errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.avro.schema import change_schema
from relay.change import ChangeParts, Operation
from relay.config.protection import ColumnRule
from relay.errors import RelayError
from relay.kafka.keys import KeyCodec
from relay.kafka.topic_writer import TopicWriter, compiled_records
from relay.mysql_dialect.snapshot_times import LATENESS
from relay.vitess.client import EventKind
from relay.vitess.position import VStreamPosition
from relay.vitess.proto import vtgate_pb2 as pb
from tests import needs
from tests.examples import examples
from tests.kafka.plain_records import HEADER, PARTITIONS, AnySchema, Kept, Mode, plain_records
from tests.vitess.row_streams import START, Outcome, Shape, answers, fields_of, played, shapes, table_of, transaction

USUAL = Shape("orders", 1, [("bigint(20)", True), ("varchar(20)", True), ("int(8) unsigned zerofill", False)])
LINES = Shape("lines", 1, [("varchar(20)", True)])


@pytest.fixture(autouse=True)
def core() -> None:
    needs.compiled_core()


@settings(deadline=None, max_examples=examples(150))
@given(
    st.data(),
    st.integers(1, 3),
    st.sampled_from([1, 200, 1 << 40]),
    st.sampled_from([0, 1_700_000_000]),
    st.sampled_from([1_600_000_000, 1_699_999_970, 1_800_000_000]),
)
def test_whole_transactions_give_the_same_changes_positions_and_errors(
    data: st.DataObject, together: int, room: int, floor: int, now: int
) -> None:
    """I1, I2, I3, I4, I8: wherever the core leaves off."""
    tables = [data.draw(shapes("orders")), data.draw(shapes("lines"))]
    at, sent = data.draw(answers(tables))
    expected = played(sent, tables, compiled=False, together=together, position=at, floor=floor, clock=lambda: now)
    seen = played(
        sent, tables, compiled=True, together=together, room=room, position=at, floor=floor, clock=lambda: now
    )
    assert seen.error == expected.error
    assert seen.changes == expected.changes
    assert seen.state == expected.state


@settings(deadline=None, max_examples=examples(100))
@given(st.data(), st.sampled_from(["hash", "item"]), st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_a_block_gives_the_records_of_its_changes(
    data: st.DataObject, mode: Mode, resume_timestamp: int, relayed_at: int
) -> None:
    """I2, I3, I8"""
    shape = data.draw(shapes("orders"))
    at, sent = data.draw(answers([shape]))
    seen = played(sent, [shape], compiled=True, position=at)
    for part in (part for page in seen.parts if isinstance(page, ChangeParts) for part in page.parts):
        if isinstance(part, list):
            continue
        table = table_of(shape)
        schema = change_schema(table.schema)
        writer = compiled_records(schema, HEADER, table.schema, KeyCodec(table.schema, mode), PARTITIONS, 1 << 20)
        assert writer is not None
        times = resume_timestamp, relayed_at
        changes = list(part)
        assert writer.block_records(part, *times) == plain_records(changes, table.schema, mode, times)
        assert [(one.resume_timestamp, one.relayed_at) for one in part] == [times] * len(part)
        deleted = [one.operation is Operation.DELETE for one in changes]
        assert [part.deletes(at) for at in range(len(part))] == deleted


def is_compiled(outcome: Outcome) -> bool:
    """Whether the core has made all changes."""
    return all(
        isinstance(page, ChangeParts) and not any(isinstance(part, list) for part in page.parts)
        for page in outcome.parts
    )


NEW = (b"7", b"a", b"00000042")


def test_the_core_reads_usual_transactions() -> None:
    sent = [
        fields_of(USUAL, LINES),
        transaction(("orders", None, NEW), ("lines", None, (b"x",)), ("orders", NEW, (b"7", b"b", None))),
        transaction(("orders", (b"7", b"b", None), None), number=12),
    ]
    seen = played(sent, [USUAL, LINES], compiled=True)
    assert is_compiled(seen)
    assert [(one.table, one.operation) for one in seen.changes] == [
        ("orders", Operation.INSERT),
        ("lines", Operation.INSERT),
        ("orders", Operation.UPDATE),
        ("orders", Operation.DELETE),
    ]
    assert [one.transaction and (one.transaction.order, one.transaction.last) for one in seen.changes] == [
        (0, False),
        (1, False),
        (2, True),
        (0, True),
    ]
    assert seen.changes == played(sent, [USUAL, LINES], compiled=False).changes


def _split(one: pb.VStreamResponse, at: int) -> list[pb.VStreamResponse]:
    return [pb.VStreamResponse(events=one.events[:at]), pb.VStreamResponse(events=one.events[at:])]


def _without(one: pb.VStreamResponse, kind: EventKind) -> pb.VStreamResponse:
    return pb.VStreamResponse(events=[event for event in one.events if event.type != kind])


def _with_bitmap(one: pb.VStreamResponse) -> pb.VStreamResponse:
    one.events[1].row_event.row_changes[0].data_columns.count = 1
    return one


def _internal(one: pb.VStreamResponse) -> pb.VStreamResponse:
    one.events[1].row_event.is_internal_table = True
    return one


def _longer(one: pb.VStreamResponse) -> pb.VStreamResponse:
    one.events[1].row_event.row_changes[0].after.values += b"x"
    return one


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(lambda: [transaction(("orders", None, NEW), event_gtid="")], id="no GTID at its beginning"),
        pytest.param(lambda: [transaction(("orders", None, NEW), timestamp=0)], id="no time"),
        pytest.param(lambda: _split(transaction(("orders", None, NEW)), 2), id="in two answers"),
        pytest.param(lambda: [_without(transaction(("orders", None, NEW)), EventKind.VGTID)], id="no position"),
        pytest.param(lambda: [_without(transaction(("orders", None, NEW)), EventKind.COMMIT)], id="no end"),
        pytest.param(lambda: [_without(transaction(("orders", None, NEW)), EventKind.BEGIN)], id="no begin"),
        pytest.param(lambda: [_with_bitmap(transaction(("orders", None, NEW)))], id="a row in part"),
        pytest.param(lambda: [_internal(transaction(("orders", None, NEW)))], id="an internal table"),
        pytest.param(lambda: [_longer(transaction(("orders", None, NEW)))], id="more bytes than lengths"),
        pytest.param(lambda: [transaction(("orders", None, NEW[:2]))], id="too few values"),
        pytest.param(lambda: [transaction(("orders", None, (b"x", b"a", None)))], id="a value that is refused"),
        pytest.param(lambda: [transaction(("orders", None, (b"7", b"\xff", None)))], id="a text that is refused"),
        pytest.param(lambda: [transaction(("orders", (b"7", None, None), None))], id="only the key is sure"),
        pytest.param(lambda: [transaction(("orders", (b"7", None, b"1"), NEW))], id="an old row in part"),
        pytest.param(lambda: [transaction(("unknown", None, NEW))], id="an unknown table"),
        pytest.param(lambda: [transaction(("orders", None, None))], id="no row"),
    ],
)
def test_what_is_not_as_usual_is_left_to_python(sent: Callable[[], list[pb.VStreamResponse]]) -> None:
    """I4, I8: also what comes before and after it is right."""
    before, after = transaction(("orders", None, NEW), number=10), transaction(("orders", None, NEW), number=12)
    script = [fields_of(USUAL), before, *sent(), after]

    def outcome(compiled: bool) -> tuple[Any, ...]:
        try:
            seen = played(script, [USUAL], compiled=compiled, position=VStreamPosition("MariaDB/0-1-9"))
        except ValueError as error:
            return type(error), str(error)
        return seen.changes, seen.state, seen.error

    assert outcome(True) == outcome(False)


@pytest.mark.parametrize(
    "shape",
    [
        replace(USUAL, rules={"c1": ColumnRule("mask")}),
        replace(USUAL, rules={"c1": ColumnRule("exclude")}),
        replace(USUAL, where={"c0": 7}),
        Shape("orders", 1, [("timestamp(3)", True), ("varchar(20)", True), ("bigint(20)", False)]),
    ],
)
def test_tables_of_which_not_all_is_published_are_left_to_python(shape: Shape) -> None:
    row = (b"2024-01-01 00:00:00.125" if shape.columns[0][0] == "timestamp(3)" else b"7", b"a", b"1")
    sent = [fields_of(shape), transaction(("orders", None, row))]
    seen = played(sent, [shape], compiled=True)
    assert not is_compiled(seen)
    assert seen.changes == played(sent, [shape], compiled=False).changes


@pytest.mark.parametrize("compiled", [False, True])
def test_a_time_in_the_future_is_in_no_token(compiled: bool) -> None:
    """I7: later tokens have it at least, so until then no READ would replace a row that they have changed.

    A session may set its time, and a clock may have been wrong.
    """
    now = 1_700_000_000
    sent = [fields_of(USUAL)]
    for at, timestamp in enumerate((now, now + 500_000, now + 1)):
        sent.append(transaction(("orders", None, (b"%d" % at, b"a", None)), number=11 + at, timestamp=timestamp))
    seen = played(sent, [USUAL], compiled=compiled, clock=lambda: float(now))
    timestamps = [change.token.timestamp for change in seen.changes if change.token is not None]
    assert timestamps == [now, now + LATENESS, now + LATENESS]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_transaction_without_rows_makes_no_progress_into_the_future(compiled: bool) -> None:
    now = 1_700_000_000
    sent = [fields_of(USUAL), transaction(timestamp=now + 500_000)]
    *_, progress = played(sent, [USUAL], compiled=compiled, clock=lambda: float(now)).state[:5]
    assert progress == now + LATENESS


def test_rows_published_before_a_restart_are_skipped() -> None:
    """I3: the transaction that was published in part is not read whole."""
    sent = [
        fields_of(USUAL),
        transaction(("orders", None, NEW), ("orders", None, (b"8", b"b", None))),
        transaction(("orders", None, (b"9", b"c", None)), number=12),
    ]
    position = VStreamPosition(START.executed, "0-1-11", {"orders": 1})
    seen = played(sent, [USUAL], compiled=True, position=position)
    assert [one.key for one in seen.changes] == [{"c0": 8}, {"c0": 9}]
    assert seen.changes == played(sent, [USUAL], compiled=False, position=position).changes


def test_a_record_that_is_too_large_becomes_a_change_and_is_left_to_plain_python() -> None:
    """I8, I10"""
    large = (b"8", b"b" * 5000, None)
    sent = [fields_of(USUAL), transaction(("orders", None, NEW), ("orders", None, large))]
    (page,) = played(sent, [USUAL], compiled=True).parts
    assert isinstance(page, ChangeParts)
    (block,) = page.parts
    kept = Kept()
    table = table_of(USUAL)
    writer = TopicWriter(table.schema, "t", PARTITIONS, "hash", AnySchema(), largest=3000)
    with pytest.raises(RelayError, match=f"cannot publish change {page[1].event_id}: too large"):
        writer.send_page(kept, block, 0)
    assert [key for _, _, key, *_ in kept.records] == [b"7"]


def test_a_deletion_in_a_block_is_followed_by_a_tombstone() -> None:
    sent = [
        fields_of(USUAL),
        transaction(("orders", None, NEW), ("orders", NEW, (b"7", b"b", None)), ("orders", (b"7", b"b", None), None)),
    ]
    (page,) = played(sent, [USUAL], compiled=True).parts
    assert isinstance(page, ChangeParts)
    (block,) = page.parts
    kept, table = Kept(), table_of(USUAL)
    TopicWriter(table.schema, "t", PARTITIONS, "item", AnySchema(), tombstones=True).send_page(kept, block, 0)
    assert [value is None for _, value, *_ in kept.records] == [False, False, False, True]
    assert len({(key, where) for _, _, key, where, _ in kept.records[-2:]}) == 1


def test_changes_in_parts_are_a_sequence() -> None:
    sent = [fields_of(USUAL), *(transaction(("orders", None, NEW), number=number) for number in (11, 12, 13))]
    page = played(sent, [USUAL], compiled=True, together=2).parts[0]
    changes = list(page)
    assert len(page) == len(changes) == 3
    assert [page[0], page[1], page[-1]] == changes
    assert page[1:] == changes[1:]
    for beyond in (3, -4):
        with pytest.raises(IndexError):
            page[beyond]
