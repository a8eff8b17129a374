"""Copied rows in the compiled core against plain Python: the same READs and records (I8)."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from relay import native
from relay.errors import RelayError
from relay.mysql_dialect.compiled_changes import copied_rows
from relay.vitess.client import EventKind, events_of
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.rows import VStreamRowDecoder, decoder, rows_of
from tests import needs
from tests.examples import examples
from tests.mysql_dialect.copied_reads import NOW, SNAPSHOT, compare, plain_reads
from tests.vitess.row_streams import SHARD, VALUES, Shape, rows, shapes


@pytest.fixture(autouse=True)
def core() -> None:
    needs.compiled_core()


def decoder_of(shape: Shape) -> VStreamRowDecoder:
    found = decoder(shape.event(), lambda _, columns, primary: shape.layout(columns, primary), copied=True)
    assert found is not None
    return found


def row_event(found: list[tuple[bytes | None, ...]]) -> pb.RowEvent:
    changes = [
        pb.RowChange(
            after=pb.Row(
                lengths=[-1 if value is None else len(value) for value in row],
                values=b"".join(value for value in row if value is not None),
            )
        )
        for row in found
    ]
    return pb.RowEvent(table_name="orders", row_changes=changes)


def answer_of(*found: pb.RowEvent) -> bytes:
    return pb.VStreamResponse(
        events=[pb.VEvent(type=EventKind.ROW, row_event=event) for event in found]
    ).SerializeToString()


@settings(deadline=None, max_examples=examples(200))
@given(st.data())
def test_copied_rows_give_the_same_reads_and_records(data: st.DataObject) -> None:
    shape = data.draw(shapes("orders"))
    assume(all(kind != "float" for kind, _ in shape.columns))  # refused, since SELECT rounds it
    read = decoder_of(shape)
    found = [data.draw(rows(shape)) for _ in range(data.draw(st.integers(0, 4)))]
    event = row_event(found)
    compiled = copied_rows(rows_of(SHARD, read, copied=True), "vstream", [answer_of(event)], SNAPSHOT, NOW)
    try:
        plain = plain_reads(read.table, "s", [change.after for change in event.row_changes], read.decode)
    except (ValueError, ArithmeticError, KeyError, RelayError):
        assert compiled is None  # I8: plain Python says what is wrong
        return
    if compiled is not None:
        compare(read.table, plain, compiled)


@settings(deadline=None, max_examples=examples(50))
@given(st.data())
def test_usual_values_of_every_type_are_in_a_block(data: st.DataObject) -> None:
    kinds = [
        kind
        for kind in VALUES
        if kind not in ("float", "tinyint(4)", "bigint(20) unsigned", "int(8) unsigned zerofill")
    ]
    shape = Shape("orders", 1, [("varchar(20)", True), *((kind, False) for kind in kinds)])
    usual: dict[str, Any] = {"bigint(20)": st.just(b"-5"), "decimal(12,0)": st.just(b"12"), "json": st.just(b"{}")}
    usual |= {"double": st.just(b"1.5E-07"), "decimal(10,2)": st.just(b"-12.50")}
    # What a server sends for these, and not what any client might.
    usual |= {"varchar(30)": st.just(b"caf\xc3\xa9"), "uuid": st.just(b"%032x" % 7), "binary(4)": st.just(b"abcd")}
    read = decoder_of(shape)
    row = (b"k", *(data.draw(usual.get(kind, VALUES[kind][1])) for kind in kinds))
    event = row_event([row, row])
    plain = plain_reads(read.table, "s", [one.after for one in event.row_changes], read.decode)
    compiled = copied_rows(rows_of(SHARD, read, copied=True), "vstream", [answer_of(event)], SNAPSHOT, NOW)
    assert compiled is not None
    compare(read.table, plain, compiled)


@settings(deadline=None, max_examples=examples(200))
@given(
    st.lists(
        st.sampled_from(
            [
                *[pb.VEvent(type=EventKind.ROW, row_event=row_event([(b"%d" % n,)] * n)) for n in range(3)],
                pb.VEvent(type=EventKind.ROW, timestamp=7, row_event=row_event([(b"of the binlog",)])),
                pb.VEvent(type=EventKind.ROW, event_gtid="0-1-2", row_event=row_event([(b"of the binlog",)])),
                pb.VEvent(type=EventKind.BEGIN),
                pb.VEvent(type=EventKind.COMMIT),
            ]
        )
    )
)
def test_the_core_finds_the_same_copied_rows_in_an_answer_as_python(events: list[pb.VEvent]) -> None:
    """I1: and the same other events, in the same order."""
    answer = pb.VStreamResponse(events=events).SerializeToString()
    core = native.core()
    assert core is not None
    parts = core.copied_parts(answer)
    assert parts is not None
    found = [event for count, raw in parts for event in (events_of(raw) if count else [pb.VEvent.FromString(raw)])]
    assert found == events
    for count, raw in parts:
        copied = [event for event in events_of(raw) if is_copied(event)] if count else []
        assert count == sum(len(event.row_event.row_changes) for event in copied)
        assert count or not is_copied(pb.VEvent.FromString(raw))


def is_copied(event: pb.VEvent) -> bool:
    return bool(event.row_event.row_changes) and not event.timestamp and not event.event_gtid


def test_an_answer_that_is_cut_off_is_left_to_python() -> None:
    core = native.core()
    assert core is not None
    answer = answer_of(row_event([(b"1",), (b"2",)]))
    assert all(core.copied_parts(answer[:end]) is None for end in range(1, len(answer)))


def test_tables_of_which_not_all_rows_are_published_are_left_to_python() -> None:
    shape = Shape("orders", 1, [("bigint(20)", True)], where={"c0": 7})
    assert rows_of(SHARD, decoder_of(shape), copied=True) is None


@pytest.mark.parametrize("setting", ["", "off"])
def test_an_installation_without_the_core_leaves_copied_rows_to_python(
    monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv("RELAY_NATIVE", setting)
    monkeypatch.setitem(sys.modules, "relay.native._core", None)
    assert rows_of(SHARD, decoder_of(Shape("orders", 1, [("bigint(20)", True)])), copied=True) is None
