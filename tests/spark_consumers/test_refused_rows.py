"""Rows that a copy's table does not take: they alone are missing, and it says so (I12).

PostgreSQL shows the rule, without Spark. The last tests show that both targets tell such rows from all other faults.
"""

from __future__ import annotations

import string
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from relay.change import REDRIVEN, UNDECODED, Operation, Snapshot
from relay.errors import Unavailable
from relay.services.postgres import execute
from spark_consumers.copy import apply
from spark_consumers.fold import VerdictCounts
from spark_consumers.gaps import from_json
from spark_consumers.records import Layout
from spark_consumers.sinks.copy_table import GAPS, CopyTable
from spark_consumers.sinks.faults import RowFault, TableFault
from spark_consumers.sinks.postgres import PostgresDatabase
from spark_consumers.sinks.postgres_copy import PostgresTable
from tests.spark_consumers.batches import FOREVER, Batch, Published, change, end_of, layout, mark, read
from tests.spark_consumers.noted_copy import played
from tests.spark_consumers.spark_process import SparkProcess

pytestmark = pytest.mark.services

ORDERS = layout({"id": "int"}, {"id": "int", "n": "int"})
BY_NAME = layout({"name": "string"}, {"name": "string"})
TOO_LARGE = 5_000_000_000


class RefusingCopy:
    """A copy of ``shop.orders`` in a database of its own. ``refused``: the offsets of its dead letters, and why."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.database = PostgresDatabase(url)
        self.table = CopyTable(PostgresTable(self.database, "shop", "orders"), FOREVER)
        self.refused: list[tuple[int, str]] = []
        self.table.refuse = lambda place, why: self.refused.append((place.offset, why))

    def play(self, layout: Layout, *changes: Published) -> None:
        batch: Any = Batch(changes)
        self.table.prepare(batch, {0: layout})
        apply(batch, self.table, [each.head for each in changes], VerdictCounts(), end_of(changes))

    def letters(self) -> list[int]:
        """Return the offsets of the new dead letters."""
        found, self.refused = self.refused, []
        return [offset for offset, _ in found]

    def rows(self, columns: str = "id, n") -> list[tuple[Any, ...]]:
        return execute(
            self.url, f"SELECT {columns}, _relay_deleted, _relay_incomplete FROM shop._relay_rows_orders ORDER BY 1"
        )

    def gaps(self) -> Any:
        batch: Any = None
        return from_json(self.table.target.properties(batch).get(GAPS, ""))


@pytest.fixture
def copied(database_url: str) -> Iterator[RefusingCopy]:
    found = RefusingCopy(database_url)
    yield found
    found.database.close()


def order(number: int, id: int, n: int | None, **more: Any) -> Published:
    return change(number, [str(id)], None if n is None else {"id": id, "n": n}, **more)


def named(number: int, name: str) -> Published:
    return change(number, [name], {"name": name})


def again(each: Published, number: int) -> Published:
    """Return a change as a redrive sends it."""
    place = replace(each.head.place, offset=number)
    new = None if each.head.new is None else (place.partition, number)
    return replace(each, head=replace(each.head, place=place, new=new, attributes={REDRIVEN: UNDECODED}))


WHOLE, INCOMPLETE, ABSENT = (False, False), (False, True), (True, True)


def test_a_row_that_the_table_refuses_is_incomplete_and_all_others_are_written(copied: RefusingCopy) -> None:
    """I12: a dead letter has the change, and the next one completes the row."""
    copied.play(ORDERS, order(1, 1, 1), order(2, 2, 2))
    copied.play(ORDERS, *(order(n, n - 9, TOO_LARGE if n in (11, 17) else n) for n in range(10, 20)))
    assert [offset for offset, _ in copied.refused] == [11, 17]
    assert all("out of range for type integer" in why for _, why in copied.refused)
    others = [(n - 9, n, *WHOLE) for n in range(10, 20) if n not in (11, 17)]
    assert copied.rows() == sorted([*others, (2, 2, *INCOMPLETE), (8, None, *ABSENT)])
    copied.play(ORDERS, order(9, 2, 9), order(21, 8, 21))  # nothing older goes over it
    assert [row for row in copied.rows() if row[0] in (2, 8)] == [(2, 2, *INCOMPLETE), (8, 21, *WHOLE)]
    assert copied.gaps() == []


def test_a_refused_change_is_a_dead_letter_before_its_row_says_that_it_is_incomplete(copied: RefusingCopy) -> None:
    """I1: after a crash in between the change comes again, and it is a replay once the row is marked."""
    copied.play(ORDERS, order(1, 1, 1))

    def fail(*_: Any) -> None:
        raise Unavailable("no answer")

    send, copied.table.refuse = copied.table.refuse, fail
    with pytest.raises(Unavailable):
        copied.play(ORDERS, order(2, 1, TOO_LARGE))
    assert copied.rows() == [(1, 1, *WHOLE)]
    copied.table.refuse = send
    for letters in ([2], []):  # applied again, it is not sent again
        copied.play(ORDERS, order(2, 1, TOO_LARGE))
        assert copied.letters() == letters
        assert copied.rows() == [(1, 1, *INCOMPLETE)]


def test_a_refused_change_is_applied_when_it_is_redriven_unless_something_newer_is_stored(copied: RefusingCopy) -> None:
    """I7"""
    copied.play(ORDERS, order(1, 1, 1))
    execute(copied.url, "ALTER TABLE shop._relay_rows_orders ADD CONSTRAINT small CHECK (n < 10), ALTER n SET NOT NULL")
    refused = [order(2, 1, 20), order(3, 2, 30), order(4, 3, 4), order(5, 3, None)]
    copied.play(ORDERS, *refused)
    assert copied.letters() == [2, 3, 5]
    assert copied.gaps() != []  # a row of nulls is refused, too
    execute(copied.url, "ALTER TABLE shop._relay_rows_orders DROP CONSTRAINT small, ALTER n DROP NOT NULL")
    copied.play(ORDERS, *(again(each, 10 + n) for n, each in enumerate(refused)))
    assert copied.rows() == [(1, 20, *WHOLE), (2, 30, *WHOLE), (3, None, True, False)]
    copied.play(ORDERS, order(20, 1, 1), again(refused[0], 21))
    assert copied.rows()[0] == (1, 1, *WHOLE)


def test_a_deletion_that_the_table_refuses_leaves_the_row_incomplete(copied: RefusingCopy) -> None:
    copied.play(ORDERS, order(1, 1, 1), order(2, 2, 2))
    execute(copied.url, "ALTER TABLE shop._relay_rows_orders ALTER n SET NOT NULL")
    copied.play(ORDERS, order(3, 1, None), order(4, 2, 4))
    assert copied.letters() == [3]
    assert copied.rows() == [(1, 1, *INCOMPLETE), (2, 4, *WHOLE)]
    execute(copied.url, "ALTER TABLE shop._relay_rows_orders ALTER n DROP NOT NULL")
    copied.play(ORDERS, again(order(3, 1, None), 5))
    assert copied.rows() == [(1, None, True, False), (2, 4, *WHOLE)]


@pytest.mark.parametrize(
    "name",
    ["a\0b", "".join(Random(1).choices(string.ascii_letters + string.digits, k=9000))],
    ids=["with a NUL", "longer than the index takes"],
)
def test_a_row_whose_key_the_table_cannot_have_is_a_gap_of_the_table(copied: RefusingCopy, name: str) -> None:
    """I9: until a snapshot that began later does not find it any more."""
    begun = time.time()
    for n in range(2):  # one gap, however often
        copied.play(BY_NAME, named(3 * n + 1, "a"), named(3 * n + 2, name), named(3 * n + 3, "c"))
    assert copied.letters() == [2, 5]
    assert copied.rows("name") == [("a", *WHOLE), ("c", *WHOLE)]
    copied.play(BY_NAME, change(7, [name], None))
    (gap,) = copied.gaps()
    assert (gap.id, gap.source, gap.table) == ("refused", "shop", "orders")
    assert "NUL" in gap.reason or "index row" in gap.reason
    assert not gap.is_repaired_by(Snapshot("s", int(begun) - 1))  # its rows go over nothing that is from `begun`
    assert gap.is_repaired_by(Snapshot("s", int(gap.found_at)))


def test_a_row_that_an_index_of_somebody_refuses_is_a_dead_letter_and_the_others_are_written(
    copied: RefusingCopy,
) -> None:
    """I12: it is not a conflict with another writer, which would be tried again."""
    copied.play(ORDERS, order(1, 4, 4))
    execute(copied.url, "CREATE UNIQUE INDEX one_of_each ON shop._relay_rows_orders (n)")
    copied.play(ORDERS, order(2, 1, 1), order(3, 2, 2), order(4, 3, 1))
    ((offset, why),) = copied.refused
    assert (offset, 'violates unique constraint "one_of_each"' in why) == (4, True)
    assert copied.rows() == [(1, 1, *WHOLE), (2, 2, *WHOLE), (3, None, *ABSENT), (4, 4, *WHOLE)]
    copied.play(ORDERS, order(5, 1, None), again(order(4, 3, 1), 6))
    assert copied.rows() == [(1, None, True, False), (2, 2, *WHOLE), (3, 1, *WHOLE), (4, 4, *WHOLE)]


def test_a_row_that_an_index_of_somebody_refuses_is_left_out_of_what_sql_decides(
    database_url: str, spark_process: SparkProcess
) -> None:
    """I12: as above, in Spark."""
    steps = """
copy.play(row(4, "d", 0))
copy.execute("ALTER TABLE ADD CONSTRAINT one_of_each UNIQUE (b)")
refused = copy.play(row(5, "a", 0), row(6, "b", 0), change(7, ["c"], {"a": "c", "b": 5}))
found += [refused, copy.rows("orders", "a", "b", "_relay_deleted", "_relay_incomplete"), copy.aside()]
refused = copy.play(change(8, ["e"], {"a": "e", "b": 6}), row(9, "b", 0))  # the value of `b` is then free
found += [refused, copy.rows("orders", "a", "b")]
refused = copy.play(read(10, ["f"], {"a": "f", "b": 9}, 5000), read(11, ["g"], {"a": "g", "b": 11}, 5000))
found += [refused, copy.rows("orders", "a", "b")[-3:]]
"""
    refused, rows, aside, *later = played(spark_process, database_url, "[BY_A]", steps)
    assert (refused, aside) == ([7], [])
    assert rows == [["a", 5, *WHOLE], ["b", 6, *WHOLE], ["c", None, *ABSENT], ["d", 4, *WHOLE]]
    assert later[:2] == [[], [["a", 5], ["b", 9], ["c", None], ["d", 4], ["e", 6]]]
    assert later[2:] == [[10], [["e", 6], ["f", None], ["g", 11]]], "a row of a snapshot, too"


@pytest.mark.parametrize("n", [5, None], ids=["a new value", "a deletion"])
def test_a_value_that_one_row_gives_up_in_a_batch_may_be_taken_by_a_new_row(
    copied: RefusingCopy, n: int | None
) -> None:
    """I12: in whichever order the batch has them, since they are in two partitions."""
    copied.play(ORDERS, order(1, 1, 1))
    execute(copied.url, "CREATE UNIQUE INDEX ON shop._relay_rows_orders (n)")
    copied.play(ORDERS, order(3, 3, 1), order(2, 1, n, partition=1))
    assert copied.refused == []
    assert copied.rows() == [(1, n, n is None, False), (3, 1, *WHOLE)]


def test_a_row_of_a_snapshot_that_the_table_refuses_is_not_deleted_at_its_end(copied: RefusingCopy) -> None:
    """I7: it exists at the source."""
    copied.play(ORDERS, order(1, 1, 1), order(2, 2, 2))
    rows = [read(4, ["1"], {"id": 1, "n": 1}, 5000), read(5, ["2"], {"id": 2, "n": TOO_LARGE}, 5000)]
    new = read(6, ["3"], {"id": 3, "n": TOO_LARGE}, 5000)
    copied.play(ORDERS, mark(3, "begin", 5000), *rows, new, mark(7, "end", 5000))
    assert copied.letters() == [5, 6]
    assert copied.rows() == [(1, 1, *WHOLE), (2, 2, *INCOMPLETE), (3, None, *ABSENT)]
    copied.play(ORDERS, order(6000, 3, 3))
    assert copied.rows()[2] == (3, 3, *WHOLE)


def test_many_rows_that_the_table_refuses_are_the_fault_of_the_table(copied: RefusingCopy) -> None:
    """I11, I12: they would fill the topic of dead letters, and each of them takes several attempts."""
    copied.play(ORDERS, order(1, 0, 0))
    copied.play(ORDERS, *(order(n, n, TOO_LARGE) for n in range(2, 22)))
    assert len(copied.letters()) == 20
    with pytest.raises(
        TableFault, match=r'"shop"."_relay_rows_orders" refuses more than 20 rows: .* out of range'
    ) as raised:
        copied.play(ORDERS, *(order(n, n, TOO_LARGE) for n in range(200, 221)))
    assert not isinstance(raised.value, RowFault)
    assert copied.letters() == []


LEAVES_OUT = """
CREATE FUNCTION shop.leave_out() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RETURN CASE WHEN NEW.COLUMN = 7 THEN NULL ELSE NEW END; END $$;
CREATE TRIGGER leave_out BEFORE INSERT OR UPDATE ON shop._relay_rows_orders
    FOR EACH ROW EXECUTE FUNCTION shop.leave_out()
"""


def test_a_row_that_a_trigger_leaves_out_is_a_dead_letter(copied: RefusingCopy) -> None:
    """I12: it is not a conflict with another writer, which would be tried again."""
    copied.play(ORDERS, order(1, 1, 1))
    execute(copied.url, LEAVES_OUT.replace("COLUMN", "n"))
    copied.play(ORDERS, order(2, 1, 7), order(3, 2, 2), order(4, 3, 7))
    assert [(offset, "a trigger leaves it out" in why) for offset, why in copied.refused] == [(2, True), (4, True)]
    assert copied.rows() == [(1, 1, *INCOMPLETE), (2, 2, *WHOLE), (3, None, *ABSENT)]
    assert copied.gaps() == []
    copied.play(ORDERS, order(5, 1, 5), order(6, 3, 6))
    assert copied.rows() == [(1, 5, *WHOLE), (2, 2, *WHOLE), (3, 6, *WHOLE)]


def test_a_row_whose_key_a_trigger_leaves_out_is_a_gap_of_the_table(copied: RefusingCopy) -> None:
    """I9"""
    copied.play(ORDERS, order(1, 1, 1))
    execute(copied.url, LEAVES_OUT.replace("COLUMN", "id"))
    copied.play(ORDERS, order(2, 7, 2), order(3, 3, 3))
    assert copied.letters() == [2]
    assert copied.rows() == [(1, 1, *WHOLE), (3, 3, *WHOLE)]
    assert [gap.id for gap in copied.gaps()] == ["refused"]


def test_a_row_that_a_trigger_leaves_out_of_what_sql_decides_is_a_dead_letter(
    database_url: str, spark_process: SparkProcess
) -> None:
    """I12: a row of a snapshot, too, whether it is new or not."""
    steps = f"""
copy.play(row(1, "a", 0), row(2, "b", 0))
execute(sys.argv[1], {LEAVES_OUT.replace("COLUMN", "b")!r})
found.append(copy.play(row(7, "c", 0), row(8, "d", 0)))
later = [read(10, ["a"], {{"a": "a", "b": 7}}, 5000), read(11, ["e"], {{"a": "e", "b": 7}}, 5000)]
found.append(copy.play(*later[:1], read(12, ["b"], {{"a": "b", "b": 12}}, 5000)))
found.append(copy.play(*later[1:], read(13, ["d"], {{"a": "d", "b": 13}}, 5000)))
found.append(copy.play(read(14, ["b"], {{"a": "b", "b": 14}}, 4000)))  # older than what is stored
found.append(copy.rows("orders", "a", "b", "_relay_deleted", "_relay_incomplete"))
"""
    *refused, rows = played(spark_process, database_url, "[BY_A]", steps)
    assert refused == [[7], [10], [11], []]
    assert rows == [
        ["a", 1, *INCOMPLETE],
        ["b", 12, *WHOLE],
        ["c", None, *ABSENT],
        ["d", 13, *WHOLE],
        ["e", None, *ABSENT],
    ]


def locked(connection: psycopg.Connection[Any]) -> None:
    connection.execute("LOCK TABLE shop._relay_rows_orders")


def killed_at_seven(connection: psycopg.Connection[Any]) -> None:
    connection.execute(
        "CREATE FUNCTION shop.kill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.n = 7 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NEW; END $$;"
        "CREATE TRIGGER kill BEFORE INSERT ON shop._relay_rows_orders FOR EACH ROW EXECUTE FUNCTION shop.kill()"
    )
    connection.commit()


@pytest.mark.parametrize(
    ("prepare", "said"),
    [(locked, "lock timeout"), (killed_at_seven, "terminating connection")],
    ids=["a lock of somebody else", "a connection that ends"],
)
def test_what_another_attempt_may_not_meet_is_the_fault_of_no_row(
    database_url: str, prepare: Callable[[Any], None], said: str
) -> None:
    """I1"""
    copied = RefusingCopy(f"{database_url}?options=-clock_timeout%3D200")
    copied.play(ORDERS, order(1, 1, 1))
    with psycopg.connect(database_url) as connection:
        prepare(connection)
        with pytest.raises(Unavailable, match=said):
            copied.play(ORDERS, order(6, 6, 6), order(7, 7, 7))
    execute(database_url, "DROP TRIGGER IF EXISTS kill ON shop._relay_rows_orders")
    assert copied.refused == []
    copied.play(ORDERS, order(6, 6, 6), order(7, 7, 7))
    assert copied.rows() == [(n, n, *WHOLE) for n in (1, 6, 7)]
    copied.database.close()


def test_a_table_that_somebody_drops_is_not_the_fault_of_its_rows(copied: RefusingCopy) -> None:
    """I12"""
    copied.play(ORDERS, order(1, 1, 1))
    execute(copied.url, "DROP TABLE shop._relay_rows_orders CASCADE")
    with pytest.raises(TableFault, match="does not exist"):
        copied.play(ORDERS, order(2, 1, 2), order(3, 3, 3))
    assert copied.refused == []


def test_a_truncation_that_the_table_refuses_is_the_fault_of_the_table(copied: RefusingCopy) -> None:
    """I12: nobody can tell by which row."""
    copied.play(ORDERS, order(1, 1, 1))
    execute(copied.url, "ALTER TABLE shop._relay_rows_orders ALTER n SET NOT NULL")
    with pytest.raises(TableFault, match="null value in column"):
        copied.play(ORDERS, change(2, (), None, Operation.TRUNCATE))


def test_only_who_owns_a_table_may_alter_it_and_no_other_table_waits_for_that(
    copied: RefusingCopy, unique: str
) -> None:
    """I12: what a user may not do in the database is the fault of all."""
    copied.play(ORDERS, order(1, 1, 1))
    wider = layout({"id": "int"}, {"id": "int", "n": "long"})
    execute(copied.url, f"CREATE ROLE {unique} LOGIN PASSWORD 'x'")
    parts = urlsplit(copied.url)
    guest = RefusingCopy(parts._replace(netloc=f"{unique}:x@{parts.hostname}:{parts.port}").geturl())
    with pytest.raises(Unavailable, match="permission denied"):
        guest.play(wider, order(2, 1, 2))
    for granted in ("USAGE ON SCHEMA", "ALL ON ALL TABLES IN SCHEMA"):
        execute(copied.url, f"GRANT {granted} shop TO {unique}")
    with pytest.raises(TableFault, match="must be owner of view orders"):
        guest.play(wider, order(2, 1, 2))
    guest.database.close()
    execute(copied.url, f"DROP OWNED BY {unique}; DROP ROLE {unique}")
