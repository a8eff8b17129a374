"""Pages, positions and refusals of a reader, with a scripted vtgate."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import event as note
from hypothesis import strategies as st

from relay.errors import RelayError, Unavailable
from relay.vitess.client import EventKind
from relay.vitess.proto import vtgate_pb2 as pb
from tests.examples import examples
from tests.vitess.reading import NOW, START, TABLES, failure, is_at_head, new, opened, read_all, summary, until
from tests.vitess.scripted import HOLDS, KEYSPACE, Fails, Log, ScriptedVtgate, Step, fields


def random_log(seed: int) -> Log:
    chance = random.Random(seed)
    log = Log(names=chance.random() < 0.7)
    if log.names and chance.random() < 0.6:
        log.chunk = chance.choice([1, 30, 200])
    for _ in range(chance.randint(1, 12)):
        kind = chance.random()
        if kind < 0.2:
            log.add(statement=chance.choice(["", "truncate table customer", "alter table other add index (v)"]))
            continue
        rows: list[Any] = []
        for _ in range(chance.choice([0, 1, 1, 2, 30])):
            row = (b"%d" % chance.randint(1, 4), b"n" * chance.randint(0, 40))
            other = (b"%d" % chance.randint(1, 4), b"n" * chance.randint(0, 40))
            before, after = chance.choice([(None, row), (row, None), (row, (row[0], b"new")), (row, other)])
            rows.append((chance.choice(["customer", "customer", "other"]), before, after))
        log.add(*rows)
    return log


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), page_bytes=st.sampled_from([1, 50, 300]))
def test_pages_of_any_size_resumed_after_any_page_give_the_same_changes(seed: int, page_bytes: int) -> None:
    log = random_log(seed)
    clean = summary(read_all(log))
    pages = read_all(log, page_bytes=page_bytes)
    assert summary(pages) == clean
    at = random.Random(seed).randrange(len(pages))
    note(f"in the middle of a transaction: {any('rows_done' in (page.position or {}) for page in pages)}")
    resumed = read_all(log, pages[at], page_bytes=random.Random(~seed).choice([1, 50, 300, 1 << 18]))
    assert summary(pages[: at + 1]) + summary(resumed) == clean


def test_answers_of_any_size_are_read_in_their_order_empty_ones_too() -> None:
    """I1, I2: small answers are joined by their mean size, which does not bound a single one."""
    log = Log()
    for number in range(300):
        log.add(*new(number % 7, text=b"n" * (30_000 if number % 97 == 5 else number % 50)))

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        yield from [b""] * 3
        for step in log.script(request):
            yield step
            yield b""

    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, START, tables=TABLES, now=NOW) as reader:
        pages = until(reader, is_at_head)
    assert summary(pages) == summary(read_all(log, page_bytes=1))
    assert [change.new["name"] for page in pages for change in page.changes if change.new] == [
        "n" * (30_000 if number % 97 == 5 else number % 50) for number in range(300)
    ]


def test_tokens_are_the_same_whether_the_gtid_comes_first_or_last() -> None:
    found = []
    for log in (Log(names=False), Log(names=True), Log(names=True, chunk=1)):
        log.add(*new(1, 2, 3))
        log.add(((b"1", b"x"), (b"1", b"y")))
        found.append(summary(read_all(log, page_bytes=1)))
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 4


@pytest.mark.parametrize(
    ("before", "named", "after"),
    [
        ("MariaDB/0-1-10,1-5-7", "1-5-8", "MariaDB/0-1-10,1-5-8"),
        ("MariaDB/0-1-10", "3-5-8", "MariaDB/0-1-10,3-5-8"),
        (
            "MySQL56/16b1039f-22b6-11ed-b765-0a43f95f28a3:1-5",
            "16b1039f-22b6-11ed-b765-0a43f95f28a3:6",
            "MySQL56/16b1039f-22b6-11ed-b765-0a43f95f28a3:1-6",
        ),
        (
            "MySQL56/16b1039f-22b6-11ed-b765-0a43f95f28a3:1-5",
            "06b1039f-22b6-11ed-b765-0a43f95f28a3:1",
            "MySQL56/06b1039f-22b6-11ed-b765-0a43f95f28a3:1,16b1039f-22b6-11ed-b765-0a43f95f28a3:1-5",
        ),
    ],
)
@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize("in_chunks", [True, False])
def test_a_transaction_adds_its_gtid_to_the_executed_set(
    before: str, named: str, after: str, names: bool, in_chunks: bool
) -> None:
    log = Log()
    about: dict[str, Any] = {"timestamp": 5, "event_gtid": named if names else "", "keyspace": KEYSPACE, "shard": "0"}
    change = pb.RowChange(after=pb.Row(lengths=[1, 1], values=b"1x"))
    row = pb.VEvent(type=EventKind.ROW, row_event=pb.RowEvent(table_name="customer", row_changes=[change]), **about)
    begun = [
        pb.VEvent(type=EventKind.BEGIN, **about),
        pb.VEvent(type=EventKind.FIELD, field_event=fields(), **about),
        row,
    ]
    ended = [log.vgtid(after), pb.VEvent(type=EventKind.COMMIT, **about)]

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid == "current":
            yield [log.vgtid(after)]
        elif in_chunks:
            yield begun
            yield [row]
            yield ended
        else:
            yield begun + ended
        yield HOLDS

    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, {"gtid": before}, page_bytes=1) as reader:
        pages = until(reader, is_at_head)
    changes = [change for page in pages for change in page.changes]
    assert {change.token.position for change in changes if change.token} == {after}
    assert {change.transaction.id for change in changes if change.transaction} == {named}
    assert pages[-1].position == {"gtid": after}


def test_a_transaction_too_large_to_wait_for_its_gtid_is_refused() -> None:
    log = Log(names=False, chunk=1)
    log.add(*new(*range(100), text=b"x" * 1000))
    with (
        ScriptedVtgate(log.script) as vtgate,
        opened(vtgate.address, START, largest_unnamed=20_000) as reader,
        pytest.raises(RelayError, match=r"shop/commerce/0: a transaction after MariaDB/0-1-10 exceeds .*v23"),
    ):
        until(reader, is_at_head)


def test_transactions_without_rows_advance_the_position_in_few_pages() -> None:
    log = Log()
    for _ in range(500):
        log.add()
    pages = read_all(log, wait=0.5)  # long enough for many to arrive, on a busy host too
    assert pages[-1].position == {"gtid": log.head}
    assert len(pages) < 20
    assert not any(page.changes for page in pages)


@pytest.mark.parametrize(
    "statement",
    [
        "alter table customer drop partition p0, p1",
        "alter table customer truncate partition all",
        "alter table customer exchange partition p0 with table swap",
        "alter table parts exchange partition p0 with table customer without validation",
        "alter table customer discard tablespace",
    ],
)
def test_dropping_a_partition_is_refused_with_table_statement_and_position(statement: str) -> None:
    log = Log()
    log.add(*new(1))
    log.add(statement=statement)
    log.add(*new(2))
    whole = list(log.play(log.transactions, set()))

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid == "current":
            yield [log.vgtid(log.head)]
        else:
            yield [event for answer in whole for event in answer]
        yield HOLDS

    message = (
        rf"shop/commerce/0: the statement at MariaDB/0-1-12 .* rows of customer, .*{re.escape(statement)}.*[Rr]eset"
    )
    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, START, tables=TABLES, now=NOW) as reader:
        # The changes before it are published, so that the source can be reset to a position after it.
        before = until(reader, lambda page: bool(page.changes))
        with pytest.raises(RelayError, match=message):
            until(reader, is_at_head)
    assert [change.key for change in before[-1].changes] == [{"id": 1}]


@pytest.mark.parametrize("statement", ['truncate table "customer"', 'rename table "customer" to old', "drop table [t]"])
def test_a_statement_whose_tables_cannot_be_read_is_refused(statement: str) -> None:
    """I1: such as one of a session with ANSI_QUOTES."""
    log = Log()
    log.add(statement=statement)
    with pytest.raises(RelayError, match=r"0-1-11 .* rows of tables whose names cannot be read, .*Reset the source"):
        read_all(log)


@pytest.mark.parametrize(
    "statement",
    ["alter table customer add partition (partition p1 values less than (9))", "alter table parts drop partition p0"],
)
def test_adding_a_partition_or_dropping_one_of_another_table_is_allowed(statement: str) -> None:
    log = Log()
    log.add(statement=statement)
    log.add(*new(2))
    assert [change.key for page in read_all(log) for change in page.changes] == [{"id": 2}]


@pytest.mark.parametrize("statement", ["drop table if exists other, customer", "truncate table other"])
@pytest.mark.parametrize("names", [None, TABLES, ("customer",)])
def test_emptying_a_table_that_was_dropped_before_the_relay_started_is_warned_of(
    statement: str, names: tuple[str, ...] | None, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log()
    log.add(statement=statement)
    log.add(statement="drop table _vt_hld_6ace8bcef73211ea87e9f875a4d24e90_20200915120410_")
    known = {"customer": NOW["customer"]}
    with ScriptedVtgate(log.script) as vtgate, opened(vtgate.address, START, tables=names, now=known) as reader:
        pages = until(reader, is_at_head)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    if names is not None and "other" not in names:
        assert not warnings
    else:
        (warning,) = warnings
        assert "table other was dropped before the relay started" in warning
        assert statement in warning
        assert "MariaDB/0-1-11" in warning
    emptied = [change.table for page in pages for change in page.changes]
    assert emptied == (["customer"] if "customer" in statement else [])


def test_a_page_ends_where_the_columns_of_its_table_change() -> None:
    log = Log()
    log.add(*new(1))
    log.add(statement="alter table customer add column age int")
    log.layouts["customer"] = fields(age="int(11)")
    first = log.transactions[0]
    first.changes = []
    log.add((None, (b"2", b"b", b"33")))
    before = Log()
    before.add(*new(1))

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid == "current":
            yield [log.vgtid(log.head)]
        else:
            old, rest = list(before.play(before.transactions, set())), list(log.play(log.transactions[1:], set()))
            yield [event for answer in old + rest for event in answer]
        yield HOLDS

    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, START) as reader:
        pages = [page for page in until(reader, is_at_head) if page.changes]
    assert [change.new for page in pages for change in page.changes] == [
        {"id": 1, "name": "x"},
        {"id": 2, "name": "b", "age": 33},
    ]
    assert [[len(schema.row or ()) for schema in page.tables] for page in pages] == [[2], [3]]


@pytest.mark.parametrize("position", ["current", "", "MariaDB/", "nonsense"])
def test_positions_that_cannot_be_resumed_at_are_refused(position: str) -> None:
    log = Log()
    log.add(*new(1))

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        for answer in log.play(log.transactions, set()):
            for event in answer:
                for at in event.vgtid.shard_gtids:
                    at.gtid = position
            yield answer
        yield HOLDS

    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, START) as reader:
        assert failure(reader)
        assert reader.position.to_json() == START
    with pytest.raises(RelayError, match="cannot start at"), opened("127.0.0.1:1", {"gtid": position}):
        pass


def test_partial_rows_are_refused_with_the_setting_to_change() -> None:
    log = Log()
    log.add(*new(1))

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        for answer in log.play(log.transactions, set()):
            for event in answer:
                for change in event.row_event.row_changes:
                    change.data_columns.count = 2
            yield answer

    with (
        ScriptedVtgate(script) as vtgate,
        opened(vtgate.address, START) as reader,
        pytest.raises(RelayError, match="customer in 0-1-11 lacks some of its columns: set binlog_row_image to FULL"),
    ):
        until(reader, is_at_head)


@pytest.mark.parametrize("after", [None, (b"2", b"new")])
def test_partly_logged_old_rows_are_refused_with_the_setting_to_change(after: tuple[bytes, bytes] | None) -> None:
    """I1: columns that were not logged arrive as NULL, without a mark."""
    log = Log()
    log.layouts["customer"].fields[1].flags = 1
    log.add(*new(1))
    log.add(((b"2", None), after))
    with ScriptedVtgate(log.script) as vtgate, opened(vtgate.address, START) as reader:
        pages = until(reader, lambda page: bool(page.changes))
        with pytest.raises(RelayError, match="customer in 0-1-12 lacks some of its columns: set binlog_row_image to"):
            until(reader, is_at_head)
    assert pages[-1].position == {"gtid": "MariaDB/0-1-11"}


def test_a_value_that_cannot_be_carried_is_reported_with_table_column_and_transaction() -> None:
    log = Log()
    log.add(*new(1), (None, (b"2", b"\xff\xfe")))
    with (
        ScriptedVtgate(log.script) as vtgate,
        opened(vtgate.address, START) as reader,
        pytest.raises(
            RelayError,
            match=r"key {'id': 2} at MariaDB/0-1-11 of shop/commerce/0, .*: column 'name': b'\\xff\\xfe' is not text",
        ),
    ):
        until(reader, is_at_head)


def test_changes_before_a_row_that_cannot_be_carried_are_published_first() -> None:
    """I1: so that the source can be reset to a position after it, even if all came in one answer."""
    log = Log()
    log.add(*new(1))
    log.add((None, (b"2", b"\xff\xfe")))

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        yield [event for answer in log.play(log.transactions, set()) for event in answer]
        yield HOLDS

    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, START) as reader:
        *_, page = until(reader, lambda page: bool(page.changes))
        assert [change.key for change in page.changes] == [{"id": 1}]
        assert page.position == {"gtid": "MariaDB/0-1-11"}
        for _ in range(2):
            with pytest.raises(
                RelayError, match=r"key {'id': 2} at MariaDB/0-1-12 of shop/commerce/0, cannot be carried"
            ):
                reader.read()


def test_changes_logged_as_statements_are_refused() -> None:
    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        yield [pb.VEvent(type=EventKind.BEGIN, timestamp=5), pb.VEvent(type=EventKind.UPDATE, timestamp=5)]

    with (
        ScriptedVtgate(script) as vtgate,
        opened(vtgate.address, START) as reader,
        pytest.raises(RelayError, match="binlog_format to ROW"),
    ):
        until(reader, is_at_head)


def test_rejected_credentials_are_final_and_an_unavailable_vtgate_is_not() -> None:
    codes = iter(["UNAVAILABLE", "UNAUTHENTICATED"])

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid != "current":
            yield Fails(next(codes), "so it is")
        yield HOLDS

    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, START) as reader:
        assert failure(reader) == "UNAVAILABLE: so it is"
        with pytest.raises(Unavailable, match="check `user` and `password`"):
            until(reader, lambda page: False)


def test_an_unreachable_vtgate_makes_the_shard_unreadable_for_now() -> None:
    with opened("127.0.0.1:1", START) as reader:
        assert failure(reader).startswith("UNAVAILABLE")


def test_a_transaction_that_vtgate_cuts_off_and_sends_again_is_published_once() -> None:
    """I3"""
    log = Log()
    log.add(*new(1, 2))

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        for step in log.script(request):
            if isinstance(step, list) and step[0].type == EventKind.BEGIN:
                yield step[:3]
            yield step

    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, START) as reader:
        pages = until(reader, is_at_head)
    assert [change.key for page in pages for change in page.changes] == [{"id": 1}, {"id": 2}]
