"""Copies that vtgate interrupts anywhere give every row, and every change of the copied rows."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from relay.change import COPIED, MARK, Operation
from relay.lineage import Shard
from relay.source import Page
from relay.token import EventToken
from relay.vitess.events import EventKind
from relay.vitess.position import VStreamPosition
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.rows import decoder
from tests.vitess.reading import NOW, TABLES, failure, is_at_head, layout, new, opened, until
from tests.vitess.scripted import Fails, Log, ScriptedVtgate, Step, copy_script, fields


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_a_copy_that_is_interrupted_anywhere_gives_every_row_and_every_change_of_copied_rows(
    batch: int, seed: int
) -> None:
    log = Log(names=seed % 2 == 0)
    chance = random.Random(seed)
    rows: dict[str, list[tuple[bytes | None, ...]]] = {
        "customer": [(b"%d" % i, b"c") for i in range(1, 9)],
        "other": [(b"%d" % i, b"o") for i in range(1, 6)],
    }
    log.add(*new(1))
    state: dict[str, dict[int, bytes | None]] = {"customer": {}, "other": {}}
    page: Page | None = None
    pages: list[Page] = []
    with ScriptedVtgate(copy_script(log, rows, batch, seed)) as vtgate:
        for _ in range(100):
            with opened(vtgate.address, {"type": "copy"}, after=page, tables=TABLES, page_bytes=1) as reader:
                for _ in range(chance.randint(1, 6)):
                    read = reader.read()
                    if not isinstance(read, Page):
                        continue
                    page = read
                    pages.append(page)
                    for change in page.changes:
                        if change.key is None:
                            assert change.attributes == {MARK: COPIED}
                            continue
                        if change.operation is Operation.READ:
                            state[change.table].setdefault(change.key["id"], None)
                            assert change.token is None
                            assert change.snapshot is not None
                        else:
                            assert change.transaction is not None
                            assert (change.transaction.order, change.transaction.last) == (0, True)
                        state[change.table][change.key["id"]] = change.new["name"].encode() if change.new else None
            if page is not None and page.position is not None and "copied" not in page.position:
                break
            # Change a row during the copy: in the log, and in what remains to be copied.
            table = chance.choice(TABLES)
            key, text = b"%d" % chance.randint(1, 5), b"v%d" % len(log.transactions)
            rows[table] = [(key, text) if row[0] == key else row for row in rows[table]]
            log.add((table, (key, b"?"), (key, text)))
        with opened(vtgate.address, {"type": "copy"}, after=page, tables=TABLES) as reader:
            for last in until(reader, is_at_head):
                for change in last.changes:
                    assert change.key is not None
                    assert change.new is not None
                    state[change.table][change.key["id"]] = change.new["name"].encode()
    for table in TABLES:
        assert state[table] == {int(row[0] or b""): row[1] for row in rows[table]}
    assert len({change.snapshot.id for page in pages for change in page.changes if change.snapshot}) == 1
    assert all(len(request.flags.tables_to_copy) <= 1 for request in vtgate.reads)


def test_the_end_of_the_copy_of_each_table_is_marked_once_also_of_an_empty_one() -> None:
    """I6: of rows that were deleted before they were copied, nothing else tells."""
    log = Log()
    log.add(*new(1))
    rows: dict[str, list[tuple[bytes | None, ...]]] = {"customer": [(b"1", b"x"), (b"2", b"x")], "other": []}
    with (
        ScriptedVtgate(copy_script(log, rows, batch=1, seed=1)) as vtgate,
        opened(vtgate.address, {"type": "copy"}, tables=TABLES, page_bytes=1) as reader,
    ):
        pages = until(reader, is_at_head)
    changes = [(change.table, change.key, change.attributes) for page in pages for change in page.changes]
    assert changes == [
        ("customer", {"id": 1}, {}),
        ("customer", {"id": 2}, {}),
        ("customer", None, {MARK: COPIED}),
        ("other", None, {MARK: COPIED}),
    ]
    # Whoever resumes after a mark does not copy the table again.
    for page, copied in zip((p for p in pages if p.changes[-1:] and p.changes[-1].key is None), (1, 2), strict=True):
        assert page.position is not None
        assert len(page.position.get("copied", TABLES)) == copied
        assert [table.table for table in page.tables] == [page.changes[-1].table]


@pytest.mark.parametrize("in_pieces", [False, True])
def test_the_position_of_every_page_of_a_copy_covers_its_rows_and_no_others(in_pieces: bool) -> None:
    log = Log()
    log.add(*new(1))
    rows: dict[str, list[tuple[bytes | None, ...]]] = {"customer": [(b"%d" % i, b"x" * 12_000) for i in range(1, 30)]}
    whole = copy_script(log, rows, batch=9, seed=1)

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        for step in whole(request):
            if in_pieces and isinstance(step, list):
                yield from ([event] for event in step)
            else:
                yield step

    with ScriptedVtgate(script) as vtgate:
        with opened(vtgate.address, {"type": "copy"}, page_bytes=20_000, now=NOW) as reader:
            pages = until(reader, is_at_head)
        seen: list[int] = []
        for page in [page for page in pages if any(change.key for change in page.changes)]:
            seen += [change.key["id"] for change in page.changes if change.key is not None]
            assert page.position is not None
            assert [VStreamPosition.from_json(page.position, "0").pks[0].lastpk.rows[0].values] == [b"%d" % seen[-1]]
        assert seen == list(range(1, 30))
        # Deleted while nobody reads: if the row was published, its DELETE must come.
        first = next(page for page in pages if page.changes)
        log.add(((b"3", b"x"), None))
        rows["customer"] = [row for row in rows["customer"] if row[0] != b"3"]
        with opened(vtgate.address, {"type": "copy"}, page_bytes=20_000, now=NOW, after=first) as reader:
            later = [change for page in until(reader, is_at_head) for change in page.changes]
    published = {change.event_id for change in first.changes}
    assert [change.key for change in later if change.operation is Operation.DELETE] == [{"id": 3}]
    assert not published & {change.event_id for change in later}


@pytest.mark.parametrize("names", [("aaa", "customer", "other"), ("other", "customer"), ("other",)])
def test_a_partly_copied_table_is_finished_first_even_if_new_tables_precede_it(
    names: tuple[str, ...],
) -> None:
    log = Log()
    log.add(*new(1))
    log.layouts["aaa"] = fields("aaa")
    rows: dict[str, list[tuple[bytes | None, ...]]] = {
        table: [(b"%d" % i, b"x") for i in range(1, 9)] for table in ("aaa", "customer", "other")
    }
    with ScriptedVtgate(copy_script(log, rows, batch=3, seed=1)) as vtgate:
        with opened(vtgate.address, {"type": "copy"}, tables=TABLES, page_bytes=1) as reader:
            page = until(reader, lambda page: len(page.changes) == 3)[-1]
        log.add(((b"2", b"x"), (b"2", b"new")))
        with opened(vtgate.address, {"type": "copy"}, tables=names, after=page) as reader:
            changes = [change for page in until(reader, is_at_head) for change in page.changes]
    read = [(c.table, c.key["id"]) for c in changes if c.key is not None and c.operation is Operation.READ]
    others = [(name, i) for name in names if name != "customer" for i in range(1, 9)]
    if "customer" in names:
        assert read == [*(("customer", i) for i in range(4, 9)), *others]
        assert [(c.key, c.new) for c in changes if c.operation is Operation.UPDATE] == [
            ({"id": 2}, {"id": 2, "name": "new"})
        ]
    else:
        assert read == others


def test_a_copy_interrupted_between_its_last_row_and_copy_completed_does_not_start_again() -> None:
    """I1, I3: if it started again, rows deleted in between would never be deleted on the topic."""
    log = Log()
    log.add(*new(1))
    rows: dict[str, list[tuple[bytes | None, ...]]] = {"customer": [(b"%d" % i, b"x") for i in range(1, 6)]}
    whole = copy_script(log, rows, batch=9, seed=1)
    is_late = True

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        held: list[pb.VEvent] = []
        for step in whole(request):
            if not is_late or not isinstance(step, list) or request.vgtid.shard_gtids[0].gtid == "current":
                yield step
            elif step[0].type == EventKind.COPY_COMPLETED:
                yield held
                time.sleep(0.5)
                yield step
            else:
                held += step

    with ScriptedVtgate(script) as vtgate:
        with opened(vtgate.address, {"type": "copy"}, now=NOW) as reader:
            page = until(reader, lambda page: bool(page.changes))[-1]
        assert page.position is not None
        assert [pk.table_name for pk in VStreamPosition.from_json(page.position, "0").pks] == ["customer"]
        is_late = False
        log.add(((b"3", b"x"), None))
        rows["customer"] = [row for row in rows["customer"] if row[0] != b"3"]
        with opened(vtgate.address, {"type": "copy"}, now=NOW, after=page) as reader:
            pages = until(reader, is_at_head)
    later = [(change.operation, change.key) for page in pages for change in page.changes]
    assert later == [(Operation.DELETE, {"id": 3}), (Operation.READ, None)]
    assert pages[-1].position == {"gtid": log.head}


@pytest.mark.parametrize("is_restarted", [True, False])
@pytest.mark.parametrize("is_started", [True, False])
@pytest.mark.parametrize("dropped", ["customer", "other"])
def test_a_table_dropped_during_the_copy_of_others_does_not_stop_it_and_its_drop_is_published(
    dropped: str, is_started: bool, is_restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """I1: a relay that starts after the DROP has no layout of the table, so it warns."""
    log = Log()
    log.add(*new(1))
    names = (*TABLES, "zebra")
    log.layouts["zebra"] = fields("zebra")
    now = {name: made.table for name in names if (made := decoder(fields(name), layout)) is not None}
    rows: dict[str, list[tuple[bytes | None, ...]]] = {
        name: [(b"%d" % i, b"x" * 10) for i in range(1, 4)] for name in names
    }
    play = copy_script(log, rows, batch=1, seed=1)

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        for rule in request.filter.rules if request.flags.tables_to_copy else ():
            if not rule.match.startswith("/") and rule.match not in now:
                yield Fails("UNKNOWN", f"table {rule.match} is not present in the database")
        yield from play(request)

    def stops(page: Page) -> bool:
        """Whether `customer` is copied, and, if so asked, part of `other` too."""
        at = page.position or {}
        return at.get("copied") == ["customer"] and bool(at["table_pks"]) == is_started

    with ScriptedVtgate(script) as vtgate:
        with opened(vtgate.address, {"type": "copy"}, tables=None, now=now, page_bytes=1) as reader:
            pages = until(reader, stops)
        # Its columns are no longer known.
        log.add((dropped, (b"1", b"x"), (b"1", b"y")))
        log.layouts[dropped] = pb.FieldEvent(table_name=dropped, fields=[pb.Field(name="@1"), pb.Field(name="@2")])
        log.add(statement=f"drop table {dropped}")
        known_at_start = dict(now)
        del now[dropped]
        if is_restarted:
            del known_at_start[dropped]
        with opened(vtgate.address, {"type": "copy"}, tables=None, now=known_at_start, after=pages[-1]) as reader:
            reader.tables._find = lambda: now
            later = until(reader, is_at_head)
    pages += later
    changes = [change for page in pages for change in page.changes if MARK not in change.attributes]
    published = [(c.operation.value, c.table, c.key and c.key["id"]) for c in changes]
    was_published = dropped == "customer" or is_started
    truncated = [each for each in published if each[0] == "TRUNCATE"]
    assert truncated == ([("TRUNCATE", dropped, None)] if was_published and not is_restarted else [])
    assert (f"rows of {dropped} may remain" in caplog.text) == (was_published and is_restarted)
    for name in now:
        assert [each for each in published if each[1] == name] == [("READ", name, number) for number in range(1, 4)]
    assert pages[-1].position == {"gtid": log.head}


def test_a_copy_waits_until_its_rows_are_newer_than_what_is_published() -> None:
    """I7: after a reset. A READ replaces only what is older than its ``as_of``."""
    log = Log()
    log.add(*new(1))
    rows: dict[str, list[tuple[bytes | None, ...]]] = {"customer": [(b"1", b"c")]}
    last = int(time.time())
    before = Page(Shard("0"), [], None, EventToken(last, "shop/commerce/0", "MariaDB/0-1-10"), None, 0.0)
    with (
        ScriptedVtgate(copy_script(log, rows, 1, 0)) as vtgate,
        opened(vtgate.address, {"type": "copy"}, after=before, margin=1) as reader,
    ):
        assert "no newer than what is published" in failure(reader)
        assert not vtgate.reads
        page = until(reader, lambda page: bool(page.changes), 10_000)[-1]
    row = page.changes[0]
    assert row.snapshot is not None
    assert row.snapshot.as_of > last
