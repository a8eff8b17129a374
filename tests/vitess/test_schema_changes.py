"""The statements of a shard of Vitess become records: I1, I3, I8."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from relay.change import SchemaChange, TableColumns
from relay.services.vitess import Vitess, database
from relay.source import Page
from relay.vitess.proto import vtgate_pb2 as pb
from tests import needs
from tests.examples import examples
from tests.mysql.reading import position_of
from tests.vitess.reading import NOW, START, is_at_head, new, opened, read_all, until
from tests.vitess.scripted import Answer, Fails, Log, ScriptedVtgate, Step

STATEMENTS = (
    "alter table customer add index (name)",
    "/* vt */ rename table `other` to x, `customer` to `other`, x to customer",
    "drop table if exists customer, unrelayed",
    "truncate table `vt_commerce`.`other`",
    "create index i on customer (name)",
    "alter table unrelayed add a int",
    "",
)


def statements(pages: list[Page]) -> list[SchemaChange]:
    return [each for page in pages for each in page.schema_changes]


def same(found: list[SchemaChange]) -> list[tuple[Any, ...]]:
    """What is the same whenever a statement is read."""
    return [(each.event_id, each.kind, each.statement, each.token, each.transaction) for each in found]


def short(change: SchemaChange) -> list[tuple[Any, ...]]:
    def side(columns: TableColumns | None, by: str | None) -> Any:
        return "?" if by is None else columns and " ".join(column.name for column in columns.columns)

    return [
        (table.table, table.renamed_to, side(table.before, table.before_by), side(table.after, table.after_by))
        for table in change.tables
    ]


@pytest.mark.parametrize("seed", range(examples(5)))
def test_each_statement_is_in_one_page_and_in_no_later_one(seed: int) -> None:
    """I1, I3: however the pages are divided, and after which of them reading begins again."""
    chance, log, executed = random.Random(seed), Log(), []
    for number in range(30):
        if chance.random() < 0.4:
            statement = chance.choice(STATEMENTS)
            log.add(statement=statement)
            executed += [statement] if statement and "unrelayed add" not in statement else []
        else:
            log.add(*(("customer", *change) for change in new(*range(number, number + chance.randrange(1, 4)))))
    pages = read_all(log, page_bytes=chance.choice([1, 2000]))
    found = statements(pages)
    assert [each.statement for each in found] == executed
    assert len({each.event_id for each in found}) == len(found)
    for at, page in enumerate(pages):
        assert same(statements(read_all(log, after=page))) == same(statements(pages[at + 1 :]))


def test_what_is_known_of_a_table_is_what_the_pages_have_when_a_stream_breaks() -> None:
    """I8: a statement that is read again changes the columns once."""
    log = Log()
    log.add(*(("customer", *change) for change in new(1)))
    log.add(statement="alter table customer add a int")
    log.add(statement="alter table customer add b int")
    calls = 0

    def script(request: Any) -> Any:
        nonlocal calls
        calls += 1
        steps = list(log.script(request))
        if calls == 1:
            yield from steps[:-1]
            yield Fails("UNAVAILABLE", "gone")
        yield from steps

    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, START, tables=("customer",), page_bytes=1) as reader:
        pages: list[Page] = []
        while len(statements(pages)) < 2:
            pages += until(reader, lambda page: True)
    first, second = statements(pages)
    assert short(first) == [("customer", None, "id name", "id name a")]
    assert short(second) == [("customer", None, "id name a", "id name a b")]


@pytest.mark.services
def test_an_online_change_is_the_exchange_of_its_tables() -> None:
    """As Vitess' Online DDL and gh-ost make it. Statements about shadow tables are left out."""
    needs.vitess()
    table = "create table item (id bigint primary key, v varchar(9))"
    vschema = {"sharded": False, "tables": {"item": {}}}
    shadow, old = "_vt_vrp_6ace8bcef73211ea87e9f875a4d24e90_20200915120410_", "_item_del"
    with Vitess(keyspaces={"one": ["0"]}, schemas={"one": (table, vschema)}) as cluster:
        place = database("one", "0")
        with (
            closing(cluster.mariadb.connect(database=place, autocommit=True)) as connection,
            connection.cursor() as cursor,
            opened(cluster.vtgate, {"gtid": position_of(cluster.mariadb)}, keyspace="one", tables=("item",)) as reader,
        ):
            pages = until(reader, is_at_head)
            for sql in (
                "insert into item values (1, 'a')",
                f"create table `{shadow}` like item",
                f"alter table `{shadow}` add column a int, add column `b c` varchar(20) default 'alter table item'",
                f"insert into `{shadow}` (id, v) select id, v from item",
                f"rename table {place}.item to {old}, `{place}`.`{shadow}` to item",
                "insert into item values (2, 'b', 2, 'x')",
            ):
                cursor.execute(sql)
            # The tablet only knows the columns of now.
            pages += until(reader, lambda page: any(change.key == {"id": 2} for change in page.changes))
            cursor.execute(f"drop table {old}")
            cursor.execute("alter /* item */ table item drop `b c`")
            pages += until(reader, lambda page: any("drop" in each.statement for each in page.schema_changes))
    found = statements(pages)
    assert [short(each) for each in found] == [
        [("item", old, "id v", "id v"), (shadow, "item", "?", "?")],
        [("item", None, "id v a b c", "id v a")],
    ]
    rows = [change for page in pages for change in page.changes]
    assert [(change.operation.value, change.key and change.key["id"]) for change in rows] == [
        ("INSERT", 1),
        ("INSERT", 2),
    ]


def test_nothing_is_known_of_a_table_after_a_gap() -> None:
    """I9, I8: statements about it may have been purged."""
    log, later = Log(), Log(before="MariaDB/0-1-13")
    log.add(*new(1))
    later.add(statement="alter table customer add column later int").gtid = "0-1-14"

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        at = request.vgtid.shard_gtids[0].gtid
        if at == START["gtid"]:
            yield from log.play(log.transactions, set())
        if at in (START["gtid"], log.head):
            yield Fails("UNKNOWN", "the source purged required binary logs (errno 1236) (sqlstate HY000)")
        yield from Log(before=later.before).script(request) if at == "current" else later.script(request)

    purged: dict[str, Answer] = {"select binlog_gtid_pos('binlog.000001', 4)": [{"position": "0-1-13"}]}
    with ScriptedVtgate(script, purged) as vtgate, opened(vtgate.address, START, now=NOW) as reader:
        pages = until(reader, lambda page: bool(page.schema_changes))
    assert [page.gap.reason for page in pages if page.gap] == ["purged"]
    assert [short(each) for each in statements(pages)] == [[("customer", None, "?", "?")]]
