"""The set of relayed tables changes while a transaction is half read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from relay.errors import RelayError
from relay.mysql_dialect.layout_cache import SkippedTables
from relay.mysql_dialect.tables import lay_out_keys
from relay.source import Page
from relay.vitess.client import EventKind
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.reader import VitessShardReader
from tests.reads import read_page
from tests.vitess.reading import NOW, START, TABLES, is_at_head, opened, until
from tests.vitess.scripted import HOLDS, Log, ScriptedVtgate, Step, fields


def script_of(log: Log) -> Callable[[pb.VStreamRequest], Iterator[Step]]:
    """Return the script of a vtgate that sends only the requested tables."""

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        own = request.vgtid.shard_gtids[0]
        if own.gtid == "current":
            yield from log.script(request)
        wanted = {rule.match for rule in request.filter.rules}

        def is_sent(event: pb.VEvent) -> bool:
            table = event.row_event.table_name or event.field_event.table_name
            return event.type not in (EventKind.ROW, EventKind.FIELD) or table in wanted

        for answer in log.play(log.after(own.gtid), set()):
            yield [event for event in answer if is_sent(event)]
        yield HOLDS

    return script


def published(pages: list[Page]) -> list[tuple[str, object]]:
    return [(change.table, change.key and change.key["id"]) for page in pages for change in page.changes]


def refused(reader: VitessShardReader) -> list[Page]:
    """Read until a row is refused, and return the pages before it."""
    pages: list[Page] = []

    def read_on() -> None:
        while True:
            pages.append(read_page(reader))

    with pytest.raises(RelayError, match="cannot be carried"):
        read_on()
    return pages


def test_leaving_out_the_table_of_a_refused_row_skips_no_row_of_another() -> None:
    """I1, I3."""
    log = Log()
    log.add(
        ("other", None, (b"1", b"o")),
        (None, (b"1", b"c")),
        (None, (b"2", b"c")),
        ("other", None, (b"2", b"\xff")),
        (None, (b"3", b"c")),
    )
    with ScriptedVtgate(script_of(log)) as vtgate:
        with opened(vtgate.address, START, tables=TABLES, now=NOW) as reader:
            pages = refused(reader)
        last = [page for page in pages if page.changes][-1]
        assert last.position is not None
        assert last.position["rows_done"] == len(published(pages))
        with opened(vtgate.address, START, tables=("customer",), now=NOW, after=last) as reader:
            pages += until(reader, is_at_head)
    assert [row for row in published(pages) if row[0] == "customer"] == [
        ("customer", 1),
        ("customer", 2),
        ("customer", 3),
    ]
    assert pages[-1].position == {"gtid": "MariaDB/0-1-11"}


def test_a_table_added_in_mid_transaction_is_read_from_its_start_and_no_row_twice() -> None:
    """I1, I3."""
    log = Log()
    log.add(
        ("other", None, (b"1", b"o")),
        (None, (b"1", b"c")),
        (None, (b"2", b"c")),
        ("other", None, (b"2", b"o")),
        (None, (b"3", b"\xff")),
    )
    with ScriptedVtgate(script_of(log)) as vtgate:
        with opened(vtgate.address, START, tables=("customer",), now=NOW) as reader:
            pages = refused(reader)
        last = [page for page in pages if page.changes][-1]
        with opened(vtgate.address, START, tables=TABLES, now=NOW, after=last) as reader:
            pages += refused(reader)
    assert sorted(published(pages)) == [("customer", 1), ("customer", 2), ("other", 1), ("other", 2)]


def test_the_position_does_not_go_back_while_the_start_of_a_transaction_is_read_again() -> None:
    """I3: a reader resumed there would publish the rows in between again."""
    log = Log()
    log.add(*((None, (b"%d" % number, b"c")) for number in range(5)))
    (answer,) = log.play(log.transactions, set())
    begun = [number for number, event in enumerate(answer) if event.type == EventKind.ROW][1]

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        yield answer[:begun]
        yield answer[begun : begun + 1]  # one page is exceeded, so rows do not wait
        yield HOLDS

    done = {"transaction": "0-1-11", "rows_done": 3, "rows_of": {"0-1-11": {"customer": 3}}}
    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, {**START, **done}, page_bytes=1) as reader:
        for _ in range(3):
            page = read_page(reader)
            assert not page.changes
            assert page.position == {**START, **done}


def test_rows_of_another_key_are_not_in_the_page_of_what_came_before_them() -> None:
    """I12: the plan refuses the page, and with it the rows of other tables."""
    log = Log()
    for table, key in (("other", b"1"), ("other", b"2"), ("customer", b"3"), ("other", b"4")):
        log.add((table, None, (key, b"x")))
    relayed = {"customer": lay_out_keys("shop", "customer", [["name", "string"]], None)}
    with (
        ScriptedVtgate(log.script) as vtgate,
        opened(vtgate.address, START, tables=TABLES, now=NOW, relayed=relayed) as reader,
    ):
        pages = [page for page in until(reader, is_at_head) if page.changes]
    assert published(pages) == [("other", 1), ("other", 2), ("customer", 3), ("other", 4)]
    assert all(published([page])[0] == ("customer", 3) for page in pages if ("customer", 3) in published([page]))


@pytest.mark.parametrize("emptied", [False, True])
def test_a_table_that_loses_its_key_is_left_out_between_two_gaps_wherever_reading_resumes(emptied: bool) -> None:
    """I9, I12: also in the middle of a transaction. Once it is emptied nothing of it is missing."""
    log = Log()
    others = [("other", None, (b"%d" % number, b"x")) for number in range(3)]
    log.add(*others, (None, (b"1", b"x")))
    log.add(*others, (None, (b"2", b"x")))
    log.add((None, (b"3", b"x")))
    if emptied:
        log.add(statement="truncate table customer")
    log.add((None, (b"4", b"x")))
    keyless = fields()
    keyless.fields[0].flags = 1

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        own = request.vgtid.shard_gtids[0]
        if own.gtid == "current":
            yield from log.script(request)
            return
        for one in log.after(own.gtid):
            log.layouts["customer"] = keyless if one.gtid in ("0-1-12", "0-1-13") else fields()
            yield from log.play([one], set())
        yield HOLDS

    def items(pages: list[Page]) -> list[object]:
        found: list[object] = []
        for page in pages:
            found += [(page.gap.reason[:27], page.gap.id)] if page.gap is not None else []
            found += [change.event_id for change in page.changes]
        return found

    def read(vtgate: ScriptedVtgate, after: Page | None = None) -> list[Page]:
        skipped = SkippedTables("shop", "commerce", ())
        skipped.keep(TABLES)
        with opened(vtgate.address, START, tables=None, now=NOW, skipped=skipped, after=after) as reader:
            pages = until(reader, is_at_head)
        assert not skipped.reasons
        return pages

    with ScriptedVtgate(script) as vtgate:
        pages = read(vtgate)
        assert [table for table, _ in published(pages)].count("customer") == 2 + emptied
        gaps = [each[0] for each in items(pages) if isinstance(each, tuple)]
        assert gaps == ["left out from here on, as i", "left out up to here, as it "][: 2 - emptied]
        assert ("left_out" in str(pages[-1].position)) is False
        for at, page in enumerate(pages[:-1]):
            assert items(read(vtgate, page)) == items(pages[at + 1 :])


def test_the_rows_of_a_table_without_a_key_are_a_gap_once_another_shard_has_relayed_it() -> None:
    """I1, I9: vtgate says its columns only once."""
    log = Log()
    for number in (b"1", b"2"):
        log.add((None, (number, b"x")))
        log.add(("other", None, (number, b"x")))
    keyless = fields()
    keyless.fields[0].flags = 1
    log.layouts["customer"] = keyless
    skipped = SkippedTables("shop", "commerce", ())
    relayed = threading.Event()

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        own = request.vgtid.shard_gtids[0]
        if own.gtid == "current":
            yield from log.script(request)
            return
        sent = set[str]()
        for one in log.after(own.gtid):
            if one.gtid == "0-1-13":
                assert relayed.wait(30)
            yield from log.play([one], sent)
        yield HOLDS

    with (
        ScriptedVtgate(script) as vtgate,
        opened(vtgate.address, START, tables=None, now=NOW, skipped=skipped) as reader,
    ):
        pages = until(reader, lambda page: bool(page.changes))
        skipped.keep(["customer"])
        relayed.set()
        pages += until(reader, is_at_head)
    assert published(pages) == [("other", 1), ("other", 2)]
    (gap,) = [page.gap for page in pages if page.gap is not None]
    assert gap.reason == "left out from here on, as it has no primary key: table customer"
    assert "customer" in skipped.reasons
