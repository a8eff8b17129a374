"""Reading a shard from a vtgate that plays what a real one cannot be made to do."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import event as note
from hypothesis import strategies as st

from relay.change import Operation
from relay.errors import RelayError, Unavailable
from relay.source import Page
from relay.vitess.client import TABLET_TYPES
from relay.vitess.position import Place
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.rows import decoder
from tests.vitess.reading import is_at_head, layout, opened, summary, until
from tests.vitess.scripted import HOLDS, KEYSPACE, Fails, Log, ScriptedVtgate, Step, copy_script, fields

PRIMARY = TABLET_TYPES["PRIMARY"]
START = {"gtid": "MariaDB/0-1-10"}
TABLES = ("customer", "other")
NOW = {name: made.table for name in TABLES if (made := decoder(fields(name), layout)) is not None}


def new(*ids: int, text: bytes = b"x") -> list[tuple[None, tuple[bytes, bytes]]]:
    return [(None, (b"%d" % i, text)) for i in ids]


def journal(shards: list[str], targets: list[str]) -> pb.Journal:
    return pb.Journal(
        id=77,
        migration_type=1,
        participants=[pb.KeyspaceShard(keyspace=KEYSPACE, shard=shard) for shard in shards],
        shard_gtids=[pb.ShardGtid(keyspace=KEYSPACE, shard=target, gtid="MariaDB/0-2-5") for target in targets],
    )


def read_all(log: Log, after: Page | None = None, **options: Any) -> list[Page]:
    with (
        ScriptedVtgate(log.script) as vtgate,
        opened(vtgate.address, START, after=after, tables=TABLES, now=NOW, **options) as reader,
    ):
        return until(reader, is_at_head)


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


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), page_bytes=st.sampled_from([1, 50, 300]))
def test_a_log_cut_into_pages_and_resumed_after_any_of_them_gives_the_same_changes(seed: int, page_bytes: int) -> None:
    log = random_log(seed)
    clean = summary(read_all(log))
    pages = read_all(log, page_bytes=page_bytes)
    assert summary(pages) == clean
    at = random.Random(seed).randrange(len(pages))
    note(f"in the middle of a transaction: {any('rows_done' in (page.position or {}) for page in pages)}")
    resumed = read_all(log, pages[at], page_bytes=random.Random(~seed).choice([1, 50, 300, 1 << 18]))
    assert summary(pages[: at + 1]) + summary(resumed) == clean


def test_tokens_are_the_same_whether_a_transaction_is_named_at_its_begin_or_at_its_end() -> None:
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
def test_a_transaction_adds_its_own_gtid_to_what_was_executed(
    before: str, named: str, after: str, names: bool, in_chunks: bool
) -> None:
    log = Log()
    about: dict[str, Any] = {"timestamp": 5, "event_gtid": named if names else "", "keyspace": KEYSPACE, "shard": "0"}
    change = pb.RowChange(after=pb.Row(lengths=[1, 1], values=b"1x"))
    row = pb.VEvent(type=12, row_event=pb.RowEvent(table_name="customer", row_changes=[change]), **about)
    begun = [pb.VEvent(type=2, **about), pb.VEvent(type=13, field_event=fields(), **about), row]
    ended = [log.vgtid(after), pb.VEvent(type=3, **about)]

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


def test_a_transaction_without_a_name_that_is_too_large_to_wait_for_is_refused() -> None:
    log = Log(names=False, chunk=1)
    log.add(*new(*range(100), text=b"x" * 1000))
    with (
        ScriptedVtgate(log.script) as vtgate,
        opened(vtgate.address, START, largest_unnamed=20_000) as reader,
        pytest.raises(RelayError, match=r"shop/commerce/0: a transaction after MariaDB/0-1-10 has more than.*v23"),
    ):
        until(reader, is_at_head)


def test_transactions_without_rows_move_the_position_in_few_pages() -> None:
    log = Log()
    for _ in range(500):
        log.add()
    pages = read_all(log)
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
def test_rows_that_go_with_their_partition_are_refused_with_table_statement_and_position(statement: str) -> None:
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

    told = rf"shop/commerce/0: at MariaDB/0-1-12 .* rows of customer, .*{re.escape(statement)}.*[Rr]eset"
    with (
        ScriptedVtgate(script) as vtgate,
        opened(vtgate.address, START, tables=TABLES, now=NOW) as reader,
    ):
        # Whatever came before it is given, so that one can begin after it.
        before = until(reader, lambda page: bool(page.changes))
        with pytest.raises(RelayError, match=told):
            until(reader, is_at_head)
    assert [change.key for change in before[-1].changes] == [{"id": 1}]


@pytest.mark.parametrize(
    "statement",
    ["alter table customer add partition (partition p1 values less than (9))", "alter table parts drop partition p0"],
)
def test_partitions_that_are_added_or_are_of_other_tables_are_no_loss(statement: str) -> None:
    log = Log()
    log.add(statement=statement)
    log.add(*new(2))
    assert [change.key for page in read_all(log) for change in page.changes] == [{"id": 2}]


@pytest.mark.parametrize("statement", ["drop table if exists other, customer", "truncate table other"])
@pytest.mark.parametrize("names", [None, TABLES, ("customer",)])
def test_a_table_that_is_emptied_and_was_gone_before_the_relay_began_is_told_of_loudly(
    statement: str, names: tuple[str, ...] | None, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log()
    log.add(statement=statement)
    log.add(statement="drop table _vt_hld_6ace8bcef73211ea87e9f875a4d24e90_20200915120410_")
    known = {"customer": NOW["customer"]}
    with ScriptedVtgate(log.script) as vtgate, opened(vtgate.address, START, tables=names, now=known) as reader:
        pages = until(reader, is_at_head)
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    if names is not None and "other" not in names:
        assert not told
    else:
        (warning,) = told
        assert "ROWS OF other MAY STAY" in warning
        assert statement in warning
        assert "MariaDB/0-1-11" in warning
    emptied = [change.table for page in pages for change in page.changes]
    assert emptied == (["customer"] if "customer" in statement else [])


def test_a_page_ends_where_the_columns_of_a_table_of_it_change() -> None:
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


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_a_copy_that_breaks_off_anywhere_gives_every_row_and_every_change_of_the_rows_copied(
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
                    page = reader.read()
                    pages.append(page)
                    for change in page.changes:
                        assert change.key is not None
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
            # A change of a row, while it is copied: to the log, and to what is there to be copied.
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
        for page in [page for page in pages if page.changes]:
            seen += [change.key["id"] for change in page.changes if change.key is not None]
            assert page.position is not None
            assert [Place.of(page.position, "0").pks[0].lastpk.rows[0].values] == [b"%d" % seen[-1]]
        assert seen == list(range(1, 30))
        # Gone while nobody reads: whatever was published of it, its DELETE has to come.
        first = next(page for page in pages if page.changes)
        log.add(((b"3", b"x"), None))
        rows["customer"] = [row for row in rows["customer"] if row[0] != b"3"]
        with opened(vtgate.address, {"type": "copy"}, page_bytes=20_000, now=NOW, after=first) as reader:
            later = [change for page in until(reader, is_at_head) for change in page.changes]
    published = {change.event_id for change in first.changes}
    assert [change.key for change in later if change.operation is Operation.DELETE] == [{"id": 3}]
    assert not published & {change.event_id for change in later}


@pytest.mark.parametrize("names", [("aaa", "customer", "other"), ("other", "customer"), ("other",)])
def test_a_table_that_was_begun_is_copied_on_first_whatever_tables_come_before_it_by_now(
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


def test_a_shard_ends_at_its_journal_and_says_what_follows() -> None:
    log = Log()
    log.add(*new(1))
    log.add(journal=journal(["0"], ["-80", "80-"]))
    log.add(*new(2))
    with ScriptedVtgate(log.script) as vtgate, opened(vtgate.address, START) as reader:
        pages = until(reader, lambda page: page.finished)
        assert reader.read().finished
    assert [change.key for page in pages for change in page.changes] == [{"id": 1}]
    assert pages[-1].position == {"gtid": "MariaDB/0-1-12"}
    told = pages[-1].journal
    assert told is not None
    assert (told.id, told.participants) == ("77", ("0",))
    assert told.targets == {"-80": {"gtid": "MariaDB/0-2-5"}, "80-": {"gtid": "MariaDB/0-2-5"}}


@pytest.mark.parametrize("migration", [0, 1])
def test_journals_of_tables_and_of_other_shards_are_passed_over(migration: int) -> None:
    log = Log()
    passed = journal(["0"] if migration == 0 else ["-40", "40-80"], ["-80"])
    passed.migration_type = migration
    log.add(journal=passed)
    log.add(*new(2))
    pages = read_all(log)
    assert not any(page.finished for page in pages)
    assert [change.key for page in pages for change in page.changes] == [{"id": 2}]


PARTICIPANTS = (
    'not all journaling participants are in the stream: journal: [keyspace:"commerce"  shard:"0" '
    'keyspace:"commerce" shard:"1" keyspace:"commerce" shard:"2"], stream: [keyspace:"commerce" shard:"9"]'
)


@pytest.mark.parametrize("lost", [True, False])
def test_a_journal_of_several_shards_is_found_by_a_stream_over_all_of_them(lost: bool) -> None:
    log = Log()
    log.add(*new(1))
    log.add(journal=journal(["0", "1", "2"], ["-"]))
    theirs = Log(shard="1")
    theirs.add(*new(100))

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        at = request.vgtid.shard_gtids
        if at[0].gtid == "current":
            yield [log.vgtid(log.head)]
            yield HOLDS
        answers = list(log.play(log.after(at[0].gtid), set()))
        others = {one.shard: one.gtid for one in at[1:]}
        if others == {"1": "current", "2": "current"}:
            yield from theirs.play(theirs.transactions, set())
            yield from answers
            yield HOLDS
        yield from answers[:-1] if lost else answers
        yield Fails("INTERNAL", PARTICIPANTS)

    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, START) as reader:
        pages = until(reader, lambda page: page.finished)
    assert [change.key for page in pages for change in page.changes] == [{"id": 1}]
    assert pages[-1].journal is not None
    assert pages[-1].position == {"gtid": "MariaDB/0-1-12"}


def test_a_participant_that_is_gone_leaves_the_journal_to_luck_which_is_tried_again() -> None:
    log = Log()
    log.add(journal=journal(["0", "1", "2"], ["-"]))
    tries = []

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        at = request.vgtid.shard_gtids
        tries.append([one.shard for one in at])
        if "2" in tries[-1]:
            yield Fails("FAILED_PRECONDITION", "shard provided in VGTID, 2, not found in the commerce keyspace")
        if len(tries) > 6:
            yield from log.play(log.transactions, set())
        yield Fails("INTERNAL", PARTICIPANTS)

    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, START, ask_every=60.0) as reader:
        pages = until(reader, lambda page: page.finished)
    assert pages[-1].journal is not None


def test_a_reshard_before_all_is_copied_is_refused() -> None:
    log = Log()

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        yield Fails("INTERNAL", PARTICIPANTS)

    with (
        ScriptedVtgate(script) as vtgate,
        opened(vtgate.address, {"type": "copy"}) as reader,
        pytest.raises(RelayError, match="resharded before all of it was copied"),
    ):
        until(reader, lambda page: page.finished)
    assert log.transactions == []


def test_a_shard_that_the_topology_lost_is_gone() -> None:
    text = "failed: shard provided in VGTID, 0, not found in the commerce keyspace"

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        yield Fails("FAILED_PRECONDITION", text)

    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, START) as reader:
        page = until(reader, lambda page: page.gone)[-1]
    assert page.position == START


@pytest.mark.parametrize(
    "text",
    [
        "Could not find first log file (errno 1236) (sqlstate HY000): the master has purged binary logs",
        "Cannot replicate because the source purged required binary logs (errno 1236) (sqlstate HY000)",
        "(errno 1789) (sqlstate HY000)",
    ],
)
def test_purged_binlogs_are_a_gap_after_which_reading_goes_on_at_the_head(text: str) -> None:
    log = Log(before="MariaDB/0-1-10")
    for _ in range(3):
        log.add(*new(1))
    head = log.head

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid == START["gtid"]:
            yield Fails("UNKNOWN", text)
        yield from log.script(request)

    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, START) as reader:
        pages = until(reader, lambda page: page.gap is not None)
        gap = pages[-1].gap
        log.add(*new(9))
        after = until(reader, lambda page: bool(page.changes))
    assert gap is not None
    assert (gap.reason, gap.begin, gap.end) == ("purged", START, {"gtid": head})
    assert pages[-1].position == {"gtid": head}
    assert not pages[-1].changes
    assert [change.key for change in after[-1].changes] == [{"id": 9}]


def test_silence_after_a_position_whose_binlogs_are_purged_is_a_gap_too() -> None:
    log = Log()
    log.add(*new(1))

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid == "current":
            yield [log.vgtid(log.head)]
        yield HOLDS

    answers: dict[str, list[dict[str, str | None]] | str] = {
        "show binary logs": [{"Log_name": "binlog.000007", "File_size": "1"}],
        "select binlog_gtid_pos('binlog.000007', 4)": [{"pos": "0-1-11"}],
    }
    with ScriptedVtgate(script, answers) as vtgate, opened(vtgate.address, START, silence=0.3) as reader:
        page = until(reader, lambda page: page.gap is not None)[-1]
    assert page.position == {"gtid": "MariaDB/0-1-11"}


def test_silence_of_a_shard_that_has_more_is_a_failure_that_says_why() -> None:
    log = Log()
    log.add(*new(1))

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid == "current":
            yield [log.vgtid(log.head)]
        yield HOLDS

    tablet: dict[str, str | None] = {"Keyspace": KEYSPACE, "Shard": "0", "TabletType": "PRIMARY", "State": "SERVING"}
    answers: dict[str, list[dict[str, str | None]] | str] = {
        "show vitess_shards": [{"Shards": "commerce/0"}],
        "show vitess_tablets": [tablet],
    }
    with ScriptedVtgate(script, answers) as vtgate, opened(vtgate.address, START, silence=0.3) as reader:
        page = until(reader, lambda page: page.failed is not None)[-1]
    assert page.failed is not None
    assert "stands at MariaDB/0-1-11: no REPLICA tablet of it serves" in page.failed
    assert page.position == START


def test_a_vtgate_that_sends_nothing_at_all_is_left() -> None:
    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        yield HOLDS

    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, START, silence=0.3) as reader:
        vtgate.beats = False
        page = until(reader, lambda page: page.failed is not None)[-1]
        assert page.failed is not None
        assert "vtgate sent nothing" in page.failed
        seen = len(vtgate.reads)
        until(reader, lambda page: len(vtgate.reads) > seen)


@pytest.mark.parametrize(
    "start", ["MariaDB/0-1-99", "MySQL56/16b1039f-22b6-11ed-b765-0a43f95f28a3:1-5", "MariaDB/0-1-10,5-1-7"]
)
def test_a_position_that_the_shard_never_had_is_refused_with_where_it_stands(start: str) -> None:
    log = Log()

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid == "current":
            yield [log.vgtid("MariaDB/0-1-12")]
        yield HOLDS

    with (
        ScriptedVtgate(script) as vtgate,
        opened(vtgate.address, {"gtid": start}, silence=0.3) as reader,
        pytest.raises(RelayError, match=rf"shop/commerce/0: {start} is no position .* stands at MariaDB/0-1-12"),
    ):
        until(reader, lambda page: False)


MISMATCH = "GTIDSet Mismatch: requested source position:0-1-12, current target vrep position: 0-1-11"


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize("has_primary", [False, True])
def test_a_replica_that_is_behind_is_waited_for_however_long_it_takes(refuses: bool, has_primary: bool) -> None:
    log = Log()
    log.add(*new(1))
    log.add(*new(2))
    start, behind = {"gtid": log.head}, ["MariaDB/0-1-11"]

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid == "current":
            if request.tablet_type != PRIMARY:
                yield [log.vgtid(behind[0] if behind else log.head)]
            elif has_primary:
                yield [log.vgtid(log.head)]
            else:
                yield Fails("UNAVAILABLE", "no primary")
        elif behind:
            if refuses:
                yield Fails("UNKNOWN", MISMATCH)
        else:
            yield from log.script(request)
        yield HOLDS

    failures: list[str] = []

    def is_behind(page: Page) -> bool:
        failures.extend([page.failed] if page.failed is not None else [])
        return len([failure for failure in failures if "behind MariaDB/0-1-12" in failure]) > 3

    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, start, silence=0.2) as reader:
        pages = until(reader, is_behind)
        assert {orjson.dumps(page.position) for page in pages} == {orjson.dumps(start)}
        assert not any(page.reached for page in pages)
        behind.clear()
        log.add(*new(3))
        after = until(reader, lambda page: bool(page.changes))
    assert [change.key for change in after[-1].changes] == [{"id": 3}]


def test_a_position_that_the_primary_lacks_as_well_is_none_of_the_shard() -> None:
    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid == "current":
            yield [Log().vgtid("MariaDB/0-1-12" if request.tablet_type == PRIMARY else "MariaDB/0-1-8")]
        yield HOLDS

    with (
        ScriptedVtgate(script) as vtgate,
        opened(vtgate.address, {"gtid": "MariaDB/0-1-13"}, silence=0.2) as reader,
        pytest.raises(RelayError, match="is no position of it, which stands at MariaDB/0-1-12"),
    ):
        until(reader, lambda page: False)


def test_an_idle_shard_is_known_to_be_read_to_its_head() -> None:
    log = Log()
    log.add(*new(1))
    with ScriptedVtgate(log.script) as vtgate, opened(vtgate.address, START) as reader:
        first = until(reader, is_at_head)[-1]
        assert first.progress is not None
        assert first.reached is not None
        assert first.progress == first.reached - 65
        again = until(reader, lambda page: (page.reached or 0) > (first.reached or 0))[-1]
    assert again.failed is None


@pytest.mark.parametrize("position", ["current", "", "MariaDB/", "nonsense"])
def test_positions_that_cannot_be_resumed_at_are_never_taken(position: str) -> None:
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
        page = reader.read()
    assert page.failed is not None
    assert page.position == START
    with pytest.raises(RelayError, match="is no position to begin at"), opened("127.0.0.1:1", {"gtid": position}):
        pass


def test_partial_rows_are_refused_with_what_to_set() -> None:
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
        pytest.raises(RelayError, match="customer in 0-1-11 has not all of its columns: set binlog_row_image to FULL"),
    ):
        reader.read()


def test_a_value_that_cannot_be_carried_is_named_with_its_place() -> None:
    log = Log()
    log.add(*new(1), (None, (b"2", b"\xff\xfe")))
    with (
        ScriptedVtgate(log.script) as vtgate,
        opened(vtgate.address, START) as reader,
        pytest.raises(RelayError, match=r"shop/commerce/0: a row of customer in 0-1-11: column name: b'\\xff\\xfe'"),
    ):
        until(reader, is_at_head)


def test_changes_written_as_statements_are_refused() -> None:
    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        yield [pb.VEvent(type=2, timestamp=5), pb.VEvent(type=8, timestamp=5)]

    with (
        ScriptedVtgate(script) as vtgate,
        opened(vtgate.address, START) as reader,
        pytest.raises(RelayError, match="binlog_format to ROW"),
    ):
        reader.read()


def test_credentials_that_are_refused_are_told_from_what_passes() -> None:
    codes = iter(["UNAVAILABLE", "UNAUTHENTICATED"])

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid != "current":
            yield Fails(next(codes), "so it is")
        yield HOLDS

    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, START) as reader:
        page = until(reader, lambda page: page.failed is not None)[-1]
        assert page.failed == "UNAVAILABLE: so it is"
        with pytest.raises(Unavailable, match="check `user` and `password`"):
            until(reader, lambda page: False)


def test_a_vtgate_that_is_not_there_is_a_failure_that_passes() -> None:
    with opened("127.0.0.1:1", START) as reader:
        page = until(reader, lambda page: page.failed is not None)[-1]
    assert page.failed is not None
    assert page.failed.startswith("UNAVAILABLE")
