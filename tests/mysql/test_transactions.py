"""Events become pages, without a server: layouts, rows that are held back, transactions of a lost server."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from relay.gtid import parse
from relay.mysql.binlog.events import COMMIT, BinlogEvent, Rows, Statement, TransactionBegin
from relay.mysql.servers import LOST
from relay.mysql_dialect.altered import Shape
from relay.mysql_dialect.followed_tables import TablesNow
from relay.mysql_dialect.tables import Table
from relay.source import STREAMED_PAGE
from relay.table import Column
from tests.mysql.fed_shard import Shard, begin, inserted, stated


@pytest.mark.parametrize("after", [("id", "a", "b"), ("id",)])
@pytest.mark.parametrize("statement", ["TRUNCATE t", "DROP TABLE t"])
def test_rows_before_a_table_is_emptied_and_altered_keep_their_layout(statement: str, after: tuple[str, ...]) -> None:
    """All events arrive at once, so the newer layout is known before the older rows are consumed."""
    shard = Shard()
    old, new = shard.layout("id", "a"), shard.layout(*after)
    pages = shard.pages(
        *inserted(101, old),
        *stated(102, statement),
        *stated(103, "ALTER TABLE t ADD COLUMN b INT"),
        *inserted(104, new),
        *stated(105, statement),
        *inserted(106, new),
    )
    assert [operations for operations, _ in pages] == [
        [("INSERT", ["id", "a"]), ("TRUNCATE", [])],
        [("INSERT", list(after)), ("TRUNCATE", []), ("INSERT", list(after))],
    ]
    assert [columns["t"] for _, columns in pages] == [["id", "a"], list(after)]


def test_a_table_that_is_emptied_before_rows_of_an_older_layout_ends_its_page() -> None:
    shard = Shard()
    old, new = shard.layout("id", "a"), shard.layout("id", "a", "b")
    pages = shard.pages(*stated(101, "TRUNCATE t"), *inserted(102, old), *inserted(103, new))
    assert [operations for operations, _ in pages] == [
        [("TRUNCATE", [])],
        [("INSERT", ["id", "a"])],
        [("INSERT", ["id", "a", "b"])],
    ]
    for operations, columns in pages:
        assert all(names in ([], columns["t"]) for _, names in operations)


@pytest.mark.parametrize("is_planned", [True, False])
def test_rows_of_another_key_are_not_in_the_page_of_what_came_before_them(is_planned: bool) -> None:
    """I12: the plan refuses the page, and with it the rows of other tables."""
    shard = Shard()
    if is_planned:
        shard.layouts.remember({"t": [["id", "int"]]}, {})
    columns = [Column(name, "int") for name in ("id", "a")]
    u = shard.layouts("d", "u", columns, ["id"])
    old, new = (shard.layouts("d", "t", columns, [key]) for key in ("id", "a"))
    assert u is not None
    assert old is not None
    assert new is not None
    shard.pages(*inserted(101, old if not is_planned else u))
    pages = shard.pages(*inserted(102, u), *inserted(103, u), *inserted(104, new), *inserted(105, u))
    assert [sorted(columns) for _, columns in pages] == [["u"], ["t", "u"]]
    assert [len(operations) for operations, _ in pages] == [2, 2]


def test_a_table_that_another_shard_begins_to_relay_does_not_end_the_reader_of_this_one() -> None:
    """I12: each statement asks for the known tables, which the threads of all shards add to."""
    shard = Shard()

    class Name(str):
        """The name of a table beside whose look-up a row of another table comes."""

        __slots__ = ()

        def __hash__(self) -> int:
            table = shard.layouts("d", f"another_{len(shard.layouts.seen())}", [Column("id", "int")], ["id"])
            assert table is not None
            shard.layouts.has_other_key(table)
            return str.__hash__(self)

    shard.layouts.remember({Name("a"): [["id", "int"]], Name("b"): [["id", "int"]]}, {})
    assert {"a", "b"} <= set(shard.layouts.known())


@pytest.mark.parametrize("size", [10, STREAMED_PAGE + 1])
@pytest.mark.parametrize("first", [1, 2])
def test_a_row_that_is_held_back_is_not_in_a_page_of_another_layout(size: int, first: int) -> None:
    shard = Shard()
    old, new = shard.layout("id", "a"), shard.layout("id", "a", "b")
    opened: list[BinlogEvent] = [Rows(old, [(None, (number, 0))], size) for number in range(first)]
    pages = shard.pages(begin(101), *opened)
    shard.transactions.take()
    assert not shard.transactions.has_changes  # or its reader would not wait for the next one
    pages += shard.pages(COMMIT, *inserted(102, new))
    assert [each for operations, _ in pages for each in operations] == [
        *[("INSERT", ["id", "a"])] * first,
        ("INSERT", ["id", "a", "b"]),
    ]
    for operations, columns in pages:
        assert all(names == columns["t"] for _, names in operations)


def test_a_row_that_was_held_back_is_ready_once_its_transaction_ends() -> None:
    shard = Shard()
    shard.pages(begin(101), Rows(shard.layout("id"), [(None, (1,))], STREAMED_PAGE + 1))
    shard.transactions.feed([COMMIT])
    shard.consume()
    assert shard.transactions.has_changes


@pytest.mark.parametrize("events", [1, 40])
def test_a_large_transaction_is_published_in_pages(events: int) -> None:
    """I11"""
    shard = Shard()
    table = shard.layout("id")
    rows = Rows(table, [(None, (number,)) for number in range(40 // events)], 10 * STREAMED_PAGE // events)
    shard.transactions.feed([begin(101), *[rows] * events, COMMIT])
    sizes, is_full = [], True
    while is_full:
        is_full = shard.consume().is_full
        _, size, *_ = shard.transactions.take()
        sizes.append(size)
    assert sum(sizes) >= 10 * STREAMED_PAGE
    assert max(sizes) <= 2 * STREAMED_PAGE


def test_a_transaction_published_in_part_is_required_of_the_next_server() -> None:
    shard = Shard()
    table = shard.layout("id")
    shard.pages(begin(101), Rows(table, [(None, (1,)), (None, (2,))], 10))
    shard.transactions.drop_events()
    assert shard.transactions.position.unfinished == ("0-1-101",)
    assert not shard.transactions.is_between_transactions
    again = Shard(transaction="0-1-101", rows_done=1, rows_of={"0-1-101": {"t": 1}})
    assert again.transactions.position.unfinished == ("0-1-101",)


@pytest.mark.parametrize("committed_at", [None, 1_800_000_000_000_001])
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("later", [1, -1])
def test_no_row_is_skipped_of_a_transaction_that_gets_the_gtid_of_another_one(
    committed_at: int | None, is_restarted: bool, later: int
) -> None:
    """I1, I9: a crash cut that one off after it was read in part. When it was made tells them apart.

    The clock may have gone back, and sessions set their time.
    """
    shard = Shard()
    rows: list[Any] = [(None, (1,)), (None, (2,)), (None, (3,))]
    first = replace(begin(101), committed_at=committed_at, made_here=committed_at is None)
    shard.pages(first, Rows(shard.layout("id"), rows, 10))
    position = shard.transactions.position.to_json()
    del position["gtid"]
    for _ in range(2):
        if is_restarted:
            shard = Shard(**position)
        shard.transactions.drop_events()
        shard.transactions.take()
        shard.pages(replace(first, made_here=False), Rows(shard.layout("id"), rows, 10))
        assert shard.transactions.position.made_at == {"0-1-101": committed_at or first.timestamp}
    if is_restarted:
        shard = Shard(**position)
    shard.transactions.drop_events()
    shard.transactions.take()
    second = replace(first, timestamp=first.timestamp + later, committed_at=committed_at and committed_at + later)
    shard.transactions.feed([second, Rows(shard.layout("id"), rows, 10), COMMIT])
    before = shard.transactions.position
    assert before.made_at
    assert shard.consume().lost == (before, LOST)
    assert not shard.transactions.has_changes
    assert shard.consume().lost is None
    assert len(shard.transactions.take()[0]) == 3
    assert shard.transactions.position.made_at == {}


def test_a_transaction_that_only_a_replica_has_is_required_of_no_other_server() -> None:
    """A reshard does not wait for its end either, which may never come."""
    shard = Shard()
    table = shard.layout("id")
    shard.local = "9-"
    local = TransactionBegin("9-7-3", "MariaDB/0-1-100,9-7-3", 1001, None)
    shard.pages(local, Rows(table, [(None, (1,)), (None, (2,))], 10))
    position = shard.transactions.position.to_json()
    assert (position["transaction"], position["rows_done"]) == ("9-7-3", 1)
    shard.local = ""
    shard.transactions.drop_events()
    del position["gtid"]
    for each in (shard, Shard(**position)):
        assert each.transactions.position.unfinished == ()
        assert each.transactions.is_between_transactions


def test_tokens_name_only_transactions_that_every_server_of_the_shard_has() -> None:
    """I5: else tokens from before and after a failover could not be compared."""
    shard = Shard()
    table = shard.layout("id")
    shard.local = "9-"
    local = TransactionBegin("9-7-3", "MariaDB/0-1-100,9-7-3", 1001, None)
    shared = TransactionBegin("0-1-101", "MariaDB/0-1-101,9-7-3", 1002, None)
    for begun in (local, shared):
        shard.transactions.feed([begun, Rows(table, [(None, (1,))], 10), COMMIT])
    shard.consume()
    changes, *_ = shard.transactions.take()
    tokens = [change.token.position for change in changes if change.token]
    assert tokens == ["MariaDB/0-1-100,9-7-3", "MariaDB/0-1-101"]


def test_published_rows_are_counted_by_table_since_the_relayed_tables_may_change() -> None:
    """I1, I3."""
    shard = Shard()
    t, u = shard.layout("id"), shard.layouts("d", "u", [Column("id", "int")], ["id"])
    assert u is not None
    rows: list[BinlogEvent] = [Rows(u, [(None, (1,))], 10), Rows(t, [(None, (1,)), (None, (2,)), (None, (3,))], 10)]
    shard.pages(begin(101), *rows)
    position = shard.transactions.position.to_json()
    assert position == {
        "gtid": "MariaDB/0-1-100",
        "transaction": "0-1-101",
        "rows_done": 3,
        "rows_of": {"0-1-101": {"u": 1, "t": 2}},
    }
    del position["gtid"]
    again = Shard(**position)
    again.transactions.feed([begin(101), Rows(again.layout("id"), [(None, (n,)) for n in (1, 2, 3)], 10), COMMIT])
    again.consume()
    assert [each.key for each in again.transactions.take()[0]] == [{"id": 3}]


def statements(shard: Shard) -> list[tuple[str, str]]:
    return [(each.transaction, each.statement) for each in shard.transactions.changes.take_schema_changes()]


def test_a_statement_is_in_the_page_of_the_position_after_it() -> None:
    """I3, I4: also a page that ends inside the transaction, and one from which nothing else is published."""
    shard = Shard()
    table = shard.layout("id", "a")
    shard.transactions.feed([begin(101), Statement("CREATE TABLE t (id INT PRIMARY KEY, a INT)", "d", 1101, 0)])
    shard.transactions.feed([Rows(table, [(None, (n, 0))], STREAMED_PAGE + 1) for n in range(2)])
    assert shard.consume().is_full
    shard.transactions.take()
    assert statements(shard) == []
    assert shard.transactions.position.gtid == "MariaDB/0-1-100"
    shard.transactions.feed([COMMIT, *stated(102, "ALTER TABLE t ADD b INT")])
    while shard.consume().is_full:
        pass
    assert shard.transactions.has_changes
    shard.transactions.take()
    assert [gtid for gtid, _ in statements(shard)] == ["0-1-101", "0-1-102"]
    assert shard.transactions.position.gtid == "MariaDB/0-1-102"
    assert shard.transactions.changes.tally.token is not None
    assert shard.transactions.changes.tally.token.position == "MariaDB/0-1-102"


def test_a_statement_whose_server_is_lost_before_its_end_is_published_once_and_one_after_it_is_kept() -> None:
    """I1, I3"""
    shard = Shard()
    shard.transactions.feed([*stated(101, "TRUNCATE t"), *stated(102, "ALTER TABLE t ADD a INT")[:2]])
    shard.consume()
    shard.transactions.drop_events()
    assert shard.transactions.has_changes
    shard.transactions.feed(stated(102, "ALTER TABLE t ADD a INT"))
    shard.consume()
    shard.transactions.take()
    assert [gtid for gtid, _ in statements(shard)] == ["0-1-101", "0-1-102"]


def test_the_columns_before_a_statement_are_those_of_the_rows_before_it() -> None:
    shard = Shard()
    old = shard.layout("id", "a")
    shard.transactions.feed([*inserted(101, old), *stated(102, "ALTER TABLE t ADD b INT")])
    shard.transactions.feed(inserted(103, shard.layout("id", "a", "b")))
    shard.transactions.feed(stated(104, "ALTER TABLE t DROP a"))
    while shard.consume().is_full:
        shard.transactions.take()
    found = [each.tables[0] for each in shard.transactions.changes.take_schema_changes()]
    columns = [
        [[column.name for column in side.columns] for side in (table.before, table.after) if side] for table in found
    ]
    assert columns == [[["id", "a"], ["id", "a", "b"]], [["id", "a", "b"], ["id", "b"]]]
    assert [(table.before_by, table.after_by) for table in found] == [("rows", "statement")] * 2


def test_a_statement_that_another_shard_has_published_is_followed_and_not_published() -> None:
    """I3"""
    shard = Shard()
    shard.transactions.feed(inserted(101, shard.layout("id", "a")))
    shard.transactions.feed(
        [begin(102), Statement("ALTER TABLE t ADD b INT", "d", 1102, 0, is_published=False), COMMIT]
    )
    shard.transactions.feed(stated(103, "ALTER TABLE t ADD c INT"))
    shard.consume()
    (found,) = shard.transactions.changes.take_schema_changes()
    assert found.transaction == "0-1-103"
    assert found.tables[0].before is not None
    assert [column.name for column in found.tables[0].before.columns] == ["id", "a", "b"]


CREATE = "CREATE TABLE t (id INT PRIMARY KEY)"


def filled(number: int, table: Table) -> list[BinlogEvent]:
    """What CREATE TABLE ... SELECT is in a binlog."""
    started, *rest = inserted(number, table)
    return [started, Statement(CREATE, "d", 1000 + number, 0), *rest]


def test_what_was_known_of_tables_before_a_gap_says_nothing_after_it() -> None:
    """I9: the gap may have the DROP of a table."""
    shard = Shard()
    table = shard.layout("id")
    now = TablesNow({"t": Shape(table.columns, table.primary), "u": Shape((), ())}, parse("0-1-150"), 1100.0)
    shard.transactions.statements.followed.look(now)
    assert len(shard.pages(*inserted(101, table))) == 1
    shard.transactions.skip_to(parse("0-1-200"))
    ((changes, _),) = shard.pages(*stated(201, CREATE.replace("t", "u", 1)), *filled(202, table))
    assert changes == [("INSERT", ["id"])]


def test_a_table_that_is_filled_after_it_was_removed_unseen_is_refused_with_what_happened() -> None:
    """I1: one removed by a DROP in a session with `sql_log_bin = 0`."""
    shard = Shard()
    table = shard.layout("id")
    shard.transactions.feed([*inserted(101, table), *filled(102, table)])
    said = (
        "-: 0-1-102 replaces the table t and fills it in one transaction, and nothing in the binlog has removed the "
        "table before it, as with `sql_log_bin = 0`: start after it and take a snapshot of the table, or exclude the "
        "table"
    )
    assert str(shard.consume().error).endswith(said)


def test_statements_without_rows_fill_pages() -> None:
    """I11"""
    shard = Shard()
    shard.transactions.feed([event for n in range(101, 601) for event in stated(n, f"TRUNCATE /* {'x' * 1000} */ u")])
    pages = 0
    while shard.consume().is_full:
        assert len(shard.transactions.changes.take_schema_changes()) < 300
        shard.transactions.take()
        pages += 1
    assert pages >= 2


def test_nothing_after_a_statement_is_read_before_the_tables_that_it_defines_are_looked_at() -> None:
    """I1, I8: what they have become may forbid to take their rows for rows."""
    shard = Shard()
    shard.transactions.feed([*stated(101, "ALTER TABLE t COMMENT 'x'"), *inserted(102, shard.layout("id"))])
    consumed = shard.transactions.consume()
    assert (consumed.defined, shard.transactions.has_changes) == (["t"], False)
    assert shard.consume().defined == ()
    assert shard.transactions.executed_position == "MariaDB/0-1-102"
