"""Statements among the changes: tables that are renamed, replaced, or created with their rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from relay.errors import RelayError
from relay.mysql_dialect.layout_cache import SkippedTables
from relay.mysql_dialect.tables import lay_out_keys
from relay.source import Page
from relay.vitess.client import EventKind
from relay.vitess.proto import vtgate_pb2 as pb
from tests.vitess.reading import NOW, START, TABLES, failure, is_at_head, new, opened, read_all, until
from tests.vitess.scripted import HOLDS, KEYSPACE, Answer, Fails, Log, ScriptedVtgate, Step, fields, made

HELD = "_vt_hld_6ace8bcef73211ea87e9f875a4d24e90_20200915120410_"
SWAPPED = "_vt_vrp_6ace8bcef73211ea87e9f875a4d24e90_20200915120410_"


def published(pages: list[Page]) -> list[tuple[str, str]]:
    return [(change.operation.value, change.table) for page in pages for change in page.changes]


@pytest.mark.parametrize(
    "statement",
    [
        f"RENAME TABLE `customer` TO `{HELD}`",
        f"rename table customer to shop.{HELD}, buyer to archive",
        f"alter table customer rename to {HELD}",
        "create or replace table customer (id bigint primary key, name varchar(20))",
        "rename table `vt_shop`.`customer` TO `vt_shop`.`_customer_old`",
        "rename table customer to buyer, buyer to other_buyer",
        "alter table customer rename buyer",
    ],
)
def test_a_table_that_is_renamed_or_replaced_is_truncated(statement: str) -> None:
    """I1: with ddl_strategy=vitess, DROP TABLE is a RENAME to a table of the garbage collector."""
    log = Log()
    log.add(*new(1))
    log.add(statement=statement)
    log.add(*new(2))
    pages = read_all(log)
    assert published(pages) == [("INSERT", "customer"), ("TRUNCATE", "customer"), ("INSERT", "customer")]
    assert pages[-1].position == {"gtid": log.head}


@pytest.mark.parametrize("tables", [("customer", "gone"), None])
def test_a_table_that_was_relayed_and_dropped_while_the_relay_was_down_is_truncated(
    tables: tuple[str, ...] | None, caplog: pytest.LogCaptureFixture
) -> None:
    """I7: only its key columns are known, from the plan, which is enough for a TRUNCATE."""
    log = Log()
    log.add(statement="drop table gone, never")
    relayed = {"gone": lay_out_keys("shop", "gone", [["a", "string"], ["b", "int"]], 1)}
    with (
        ScriptedVtgate(log.script) as vtgate,
        opened(vtgate.address, START, tables=tables, now=NOW, relayed=relayed) as reader,
    ):
        pages = until(reader, is_at_head)
    assert published(pages) == [("TRUNCATE", "gone")]
    (schema,) = next(page.tables for page in pages if page.changes)
    assert ([column.name for column in schema.key], schema.hash_columns) == (["a", "b"], 1)
    assert ("table never was dropped before the relay started" in caplog.text) == (tables is None)


@pytest.mark.parametrize(
    ("statement", "warning"),
    [
        (
            f"RENAME TABLE `customer` TO `{HELD}`, `{SWAPPED}` TO `customer`, `{HELD}` TO `{SWAPPED}`",
            f"table customer has the rows of {SWAPPED} now",
        ),
        (f"rename table {HELD} to {SWAPPED}", None),
        ("alter table customer /*M! rename to old, */ comment 'x'", None),
        ("create table if not exists customer (id bigint primary key)", None),
        ("create or replace table third (id bigint primary key)", None),
        ("rename table buyer to customer", "table customer has the rows of buyer now"),
        ("rename table customer to old, buyer to customer", "table customer has the rows of buyer now"),
        ("rename table customer to _customer_del, vt.`_customer_gho` to vt.customer", "of _customer_gho now"),
        (f"rename table {HELD} to customer", f"table customer has the rows of {HELD} now"),
    ],
)
def test_a_table_that_is_altered_online_or_takes_the_rows_of_another_is_not_truncated(
    statement: str, warning: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log()
    log.add(*new(1))
    log.add(statement=statement)
    assert published(read_all(log)) == [("INSERT", "customer")]
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [str(warning) in each for each in said] == ([] if warning is None else [True])


JOURNALS = "@primary select val from _vt.resharding_journal where db_name = database()"
HERE, THERE = (KEYSPACE, "0"), ("customers", "-80")


def switched(
    at: str, target: tuple[str, str], position: str, tables: str = "customer", kind: str = ""
) -> list[dict[str, str | None]]:
    """The journals of a shard that has stopped at a position, and ``target``, which has the table since, at another."""
    to = f'shard_gtids:{{keyspace:"{target[0]}"  shard:"{target[1]}"  gtid:"{position}"}}'
    return [{"val": f'id:7 {kind} tables:"{tables}" tables:"x" local_position:"{at}" {to} participants:{{shard:"0"}}'}]


@pytest.mark.parametrize("statement", ["drop table `vt_a`.`customer`", "rename table vt_a.customer to vt_a._c_old"])
@pytest.mark.parametrize(
    ("here", "there", "is_emptied"),
    [
        (switched("MariaDB/0-1-11", THERE, "MariaDB/0-9-5"), None, False),
        (switched("MariaDB/0-1-11", THERE, "MariaDB/0-9-5"), "vtgate knows no such shard", False),
        (switched("MariaDB/0-1-11", THERE, "MariaDB/0-9-5"), switched("MariaDB/0-9-7", HERE, "MariaDB/0-1-12"), True),
        (switched("MariaDB/0-1-11", THERE, "MariaDB/0-9-5"), switched("MariaDB/0-9-2", HERE, "MariaDB/0-1-11"), False),
        (switched("MariaDB/0-1-11", THERE, "MariaDB/0-9-5"), switched("MariaDB/0-9-9", HERE, "MariaDB/0-1-30"), False),
        (switched("MariaDB/0-1-30", THERE, "MariaDB/0-9-5"), None, True),
        (switched("MariaDB/0-1-11", THERE, "MariaDB/0-9-5", tables="other"), None, True),
        (switched("MariaDB/0-1-11", THERE, "MariaDB/0-9-5", kind="migration_type:SHARDS"), None, True),
        ([], None, True),
    ],
)
def test_a_table_that_was_moved_to_another_keyspace_and_not_back_is_not_emptied_by_its_removal(
    statement: str, here: Answer, there: Answer | None, is_emptied: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """I1: MoveTables removes it when it is completed, and its rows live on. No stream has the journals of tables."""
    log = Log()
    for number in (1, 2):
        log.add(*new(number))
    log.add(statement=statement)
    answers = {f"{KEYSPACE}:0{JOURNALS}": here} | ({} if there is None else {f"customers:-80{JOURNALS}": there})
    assert published(read_all(log, answers=answers))[2:] == [("TRUNCATE", "customer")] * is_emptied
    assert ("which was moved to keyspace customers" in caplog.text) == (not is_emptied)


MOVED = switched("MariaDB/0-1-11", THERE, "MariaDB/0-9-5")
DROP, CREATE = "drop table vt_a.customer", "create table customer (id bigint primary key, name varchar(20))"
IF_ABSENT, IF_THERE = CREATE.replace("table", "table if not exists"), DROP.replace("table", "table if exists")


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("statements", "is_emptied", "journals"),
    [
        ([DROP, CREATE, DROP], [False, False, True], MOVED),
        ([DROP, IF_ABSENT, DROP], [False, False, True], MOVED),
        ([DROP, "rename table _c_new to customer", "rename table customer to _c_old"], [False, False, True], MOVED),
        ([CREATE, DROP], [False, True], MOVED),  # it was removed before the relay started
        ([DROP, CREATE, DROP, IF_THERE, CREATE, DROP], [False, False, True, False, False, True], MOVED),
        ([IF_ABSENT, DROP], [False, False], MOVED),  # which is still there
        (
            ["rename table customer to _vt_hld_1, _vt_vrp_1 to customer", DROP, CREATE, IF_ABSENT],
            [False, False, False, False],
            MOVED,
        ),
        (
            [DROP, CREATE, IF_ABSENT, DROP, CREATE, DROP],
            [False, False, False, False, False, True],
            [*MOVED, *switched("MariaDB/0-1-13", THERE, "MariaDB/0-9-9")],
        ),
    ],
)
def test_a_table_that_is_made_where_another_one_was_moved_away_is_emptied_by_its_removal(
    statements: list[str], is_emptied: list[bool], journals: Answer, restarts: bool
) -> None:
    """I7: the journal of a move stays for ever. Also if the relay is started again after each statement."""
    log = Log()
    log.add(*new(1))
    answers = {f"{KEYSPACE}:0{JOURNALS}": journals}
    pages: list[Page] = []
    for statement in statements:
        log.add(statement=statement)
        if restarts:
            pages += read_all(log, after=pages[-1] if pages else None, answers=answers)
    pages = pages or read_all(log, answers=answers)
    found = [change.token and change.token.position for page in pages for change in page.changes if change.key is None]
    assert found == [f"MariaDB/0-1-{12 + at}" for at, emptied in enumerate(is_emptied) if emptied]


@pytest.mark.parametrize("restarts", [False, True])
def test_the_changes_of_a_table_that_was_moved_before_the_plan_are_a_gap_from_its_removal_on(restarts: bool) -> None:
    """I9: until then Vitess replicates them back. Up to a new table of its name, if there is one."""
    log = Log()
    pages: list[Page] = []
    for rows, statement in (((*new(1),), DROP), ((("other", None, (b"1", b"x")),), CREATE), ((*new(2),), DROP)):
        log.add(*rows)
        log.add(statement=statement)
        if restarts or statement is not CREATE:
            pages += read_all(
                log,
                after=pages[-1] if pages else None,
                answers={f"{KEYSPACE}:0{JOURNALS}": MOVED},
                skipped=SkippedTables("shop", KEYSPACE, ["customer", "other"]),
            )
    found = [
        text
        for page in pages
        for text in ([page.gap.reason] if page.gap else [change.operation.value for change in page.changes])
    ]
    gaps = [
        f"left out {at}, as it was moved to another keyspace: table customer" for at in ("from here on", "up to here")
    ]
    assert found == ["INSERT", gaps[0], "INSERT", gaps[1], "INSERT", "TRUNCATE"]
    begins = [page.gap.begin["gtid"] for page in pages if page.gap and page.gap.begin]
    assert begins == ["MariaDB/0-1-11", "MariaDB/0-1-14"]


def test_nothing_is_emptied_while_nobody_says_whether_a_table_was_moved() -> None:
    """I1: a user may not be allowed to ask."""
    log = Log()
    log.add(*new(1))
    log.add(statement="drop table customer")
    with (
        ScriptedVtgate(log.script, {f"{KEYSPACE}:0{JOURNALS}": "Select command denied"}) as vtgate,
        opened(vtgate.address, START, tables=TABLES, now=NOW) as reader,
    ):
        assert "cannot find out which tables were moved to another keyspace: vtgate" in failure(reader, "denied")


def test_a_table_that_was_moved_is_emptied_by_a_truncate_of_what_is_left() -> None:
    log = Log()
    log.add(*new(1))
    log.add(statement="truncate table customer")
    answers = {f"{KEYSPACE}:0{JOURNALS}": switched("MariaDB/0-1-10", THERE, "MariaDB/0-9-5")}
    assert published(read_all(log, answers=answers)) == [("INSERT", "customer"), ("TRUNCATE", "customer")]


def _filled(log: Log, statement: str, names: bool, *, rows: int = 15) -> list[list[pb.VEvent]]:
    """The answers of a transaction that makes a table and fills it: its GTID comes before its rows, and after them."""
    about: dict[str, Any] = {"timestamp": 1_700_000_011, "keyspace": KEYSPACE, "shard": "0"}
    about["event_gtid"] = "0-1-11" if names else ""
    answers = [
        [
            pb.VEvent(type=EventKind.BEGIN, **about),
            log.vgtid("MariaDB/0-1-11"),
            pb.VEvent(type=EventKind.DDL if statement else EventKind.OTHER, statement=statement, **about),
        ],
        [pb.VEvent(type=EventKind.FIELD, field_event=fields(), **about)],
    ]
    for number in range(1, rows + 1):
        change = pb.RowChange(after=made((b"%d" % number, b"x")))
        row = pb.RowEvent(table_name="customer", row_changes=[change])
        answers[-1].append(pb.VEvent(type=EventKind.ROW, row_event=row, **about))
        if number % 5 == 0:
            answers.append([])
    answers[-1] += [log.vgtid("MariaDB/0-1-11"), pb.VEvent(type=EventKind.COMMIT, **about)]
    return answers


@pytest.mark.parametrize("statement", ["create table customer (id bigint primary key, name varchar(20))", ""])
@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize("breaks_after", [1, 2, 3, 9])
def test_create_table_select_loses_no_row_when_the_stream_is_interrupted(
    breaks_after: int, names: bool, statement: str
) -> None:
    """I1, I3: CREATE TABLE ... SELECT is one transaction, with the statement inside it."""
    log = Log()
    breaks = True

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        nonlocal breaks
        at = request.vgtid.shard_gtids[0].gtid
        if at == START["gtid"]:
            answers = _filled(log, statement, names)
            if breaks:
                breaks = False
                yield from answers[:breaks_after]
                yield Fails("UNAVAILABLE", "vtgate restarts")
            yield from answers
        elif at == "current":
            yield [log.vgtid("MariaDB/0-1-11"), pb.VEvent(type=EventKind.OTHER, keyspace=KEYSPACE, shard="0")]
        yield HOLDS

    with (
        ScriptedVtgate(script) as vtgate,
        opened(vtgate.address, START, tables=TABLES, now=NOW, page_bytes=8) as reader,
    ):
        pages = until(reader, is_at_head)
    changes = [change for page in pages for change in page.changes]
    assert [change.key and change.key["id"] for change in changes] == list(range(1, 16))
    assert [change.transaction.order for change in changes if change.transaction] == list(range(15))
    assert {change.token.position for change in changes if change.token} == {"MariaDB/0-1-11"}
    assert pages[-1].position == {"gtid": "MariaDB/0-1-11"}


@pytest.mark.parametrize("rows", [0, 4])
def test_replacing_a_table_truncates_it_and_is_refused_if_it_also_fills_it(rows: int) -> None:
    """I3: a position inside such a transaction could not count its rows."""
    log = Log()

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid == "current":
            yield [log.vgtid("MariaDB/0-1-11"), pb.VEvent(type=EventKind.OTHER, keyspace=KEYSPACE, shard="0")]
        else:
            yield from _filled(log, "create or replace table customer (id bigint primary key)", True, rows=rows)
        yield HOLDS

    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, START, now=NOW) as reader:
        if rows:
            with pytest.raises(RelayError, match="0-1-11 replaces the table customer and fills it in one transaction"):
                until(reader, is_at_head)
        else:
            pages = until(reader, is_at_head)
            assert published(pages) == [("TRUNCATE", "customer")]
            assert pages[-1].position == {"gtid": "MariaDB/0-1-11"}
