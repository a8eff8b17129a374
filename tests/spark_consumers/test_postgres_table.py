"""A table of the copy in PostgreSQL: exact values, conditional writes, columns that change, and what it refuses."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relay.change import REDRIVEN, Images, Operation
from relay.errors import RelayError
from spark_consumers.fold import VerdictCounts
from spark_consumers.sinks.postgres import PostgresDatabase, quoted
from spark_consumers.sinks.postgres_table import PostgresTable
from tests.spark_consumers.batches import Published, change, layout, mark, play, read

pytestmark = pytest.mark.services

ORDERS = layout({"id": "int"}, {"id": "int", "note": "string"})


class Opened:
    """A table of its own in the database, and its rows by id."""

    def __init__(self, postgres: Any, name: str) -> None:
        self.postgres, self.name = postgres, name
        self.database = PostgresDatabase(postgres.url)
        self.table = PostgresTable(self.database, name, "orders")

    def select(self, columns: str = "*", where: str = "NOT _relay_deleted") -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self.postgres.execute(
            f"SELECT {columns} FROM {quoted(self.name)}.orders WHERE {where} ORDER BY 1"
        )
        return found


@pytest.fixture
def opened(postgres: Any, unique: str) -> Iterator[Opened]:
    found = Opened(postgres, unique)
    yield found
    found.database.close()


def order(number: int, id: int, note: str | None, **more: Any) -> Published:
    return change(number, [str(id)], None if note is None else {"id": id, "note": note}, **more)


def test_rows_are_inserted_updated_and_deleted_with_their_tokens(opened: Opened) -> None:
    counts = play(opened.table, ORDERS, order(1, 1, "a"), order(2, 2, "b"), order(3, 1, "c"))
    assert counts == VerdictCounts(applied=3)
    assert opened.select("id, note") == [(1, "c"), (2, "b")]
    assert play(opened.table, ORDERS, order(4, 2, None), order(2, 2, "b")) == VerdictCounts(applied=1, ignored=1)
    columns = "id, note, _relay_deleted, _relay_event_id, _relay_token, _relay_partition, _relay_read_as_of"
    token = '{"timestamp":1004,"shard":"shop/shop/-","position":"MariaDB/0-1-4","origin":null}'
    assert opened.select(columns, "id = 2") == [(2, None, True, "e4", token, 0, 0)]


VALUES: dict[str, tuple[str, Any, Any]] = {
    "text": ("string", "naïve 'quoted' \\ \t\n \"€\" 😀", "naïve 'quoted' \\ \t\n \"€\" 😀"),
    "empty": ("string", "", ""),
    "zero date": ("string", "0000-00-00", "0000-00-00"),
    "long time": ("string", "-838:59:59", "-838:59:59"),
    "json": ("string", '{"a": 1.0, "a": "\\u0000"}', '{"a": 1.0, "a": "\\u0000"}'),
    "raw": ("bytes", "AP8gXA==", b"\x00\xff \\"),
    "no bytes": ("bytes", "", b""),
    "flag": ("boolean", True, True),
    "small": ("int", -(2**31), -(2**31)),
    "large": ("long", 2**63 - 1, 2**63 - 1),
    "unsigned": ("decimal(20,0)", "18446744073709551615", Decimal(2**64 - 1)),
    "money": (
        "decimal(38,10)",
        "-1234567890123456789012345678.0123456789",
        Decimal("-1234567890123456789012345678.0123456789"),
    ),
    "wide": ("decimal(65,30)", "1" * 35 + "." + "2" * 30, Decimal("1" * 35 + "." + "2" * 30)),
    "single": ("float", 0.1, 0.1),
    "double": ("double", 5e-324, 5e-324),
    "time": ("timestamp", "2024-01-31T09:00:00.000001Z", datetime.datetime(2024, 1, 31, 9, 0, 0, 1, datetime.UTC)),
    "first": ("timestamp", "0001-01-01T00:00:00.000000Z", datetime.datetime(1, 1, 1, tzinfo=datetime.UTC)),
    "tags": ("set", ["b", "a", 'x"y,{}\\'], ["b", "a", 'x"y,{}\\']),
    "none": ("set", [], []),
    "any": ("json", '{"L":[{"N":"1.0"}]}', {"L": [{"N": "1.0"}]}),
}


def test_values_are_exact(opened: Opened) -> None:
    """I8"""
    row = {"id": "int", **{name: kind for name, (kind, _, _) in VALUES.items()}}
    image = {"id": 1, **{name: given for name, (_, given, _) in VALUES.items()}}
    empty = {"id": 2, **dict.fromkeys(VALUES)}
    play(opened.table, layout({"id": "int"}, row), change(1, ["1"], image), change(2, ["2"], empty))
    columns = ", ".join(map(quoted, VALUES))
    (found,) = opened.select(columns, "id = 1")
    assert dict(zip(VALUES, found, strict=True)) == {name: wanted for name, (_, _, wanted) in VALUES.items()}
    assert opened.select(columns, "id = 2") == [(None,) * len(VALUES)]


def test_a_text_with_a_nul_is_kept_beside_its_column_and_a_key_with_one_is_refused(opened: Opened) -> None:
    """I8: PostgreSQL stores no NUL in a text, but in JSON."""
    odd = layout({"id": "string"}, {"id": "string", "note": "string", "tags": "set", "plain": "string"})
    image = {"id": "a", "note": "a\0b", "tags": ["\0"], "plain": "\\u0000"}
    play(opened.table, odd, change(1, ["a"], image))
    text = "_relay_unfit::text"
    unfit = '{"note":"a\\u0000b","tags":["\\u0000"]}'
    assert opened.select(f"note, tags, plain, {text}") == [(None, None, "\\u0000", unfit)]
    play(opened.table, odd, change(2, ["a"], image | {"note": "c", "tags": []}))
    assert opened.select(f"note, tags, plain, {text}") == [("c", [], "\\u0000", None)]
    with pytest.raises(RelayError, match=r"the key \('a\\x00b',\) has a NUL character"):
        play(opened.table, odd, change(3, ["a\0b"], image))


def test_keys_of_every_type_are_found_again(opened: Opened) -> None:
    kinds = {"i": "int", "d": "decimal(10,2)", "s": "string", "b": "bytes", "t": "timestamp", "n": "N"}
    key = ["-7", "1.50", "a b%s\"'", "AP8=", "2024-01-31T09:00:00.000001Z", "1" + "0" * 40]
    row = {**kinds, "note": "string"}
    del row["n"]
    made = layout(kinds, row)
    image = {"i": -7, "d": "1.50", "s": key[2], "b": "AP8=", "t": key[4]}
    play(opened.table, made, change(1, key, image | {"note": "a"}))
    assert play(opened.table, made, change(1, key, image | {"note": "a"})) == VerdictCounts(ignored=1)
    play(opened.table, made, change(2, key, image | {"note": "b"}))
    truncation = change(3, (), None, Operation.TRUNCATE)
    assert play(opened.table, made, truncation) == VerdictCounts(applied=1)
    assert opened.select("note, _relay_deleted", "true") == [(None, True)]


def test_items_of_a_table_without_declared_columns_are_json(opened: Opened) -> None:
    made = layout({"id": "string", "line": "N"}, None)
    item = {"id": {"S": "a"}, "line": {"N": "1"}, "note": {"S": "\0"}, "total": {"N": "1.50"}}
    play(opened.table, made, change(1, ["a", "1"], item))
    ((id, line, text),) = opened.select("id, line, item::text")
    assert (id, line) == ("a", Decimal(1))
    assert '"note": {"S": "\\u0000"}, "total": {"N": "1.50"}' in text


class TestColumns:
    def test_a_new_column_is_added_and_a_dropped_one_stays(self, opened: Opened) -> None:
        play(opened.table, ORDERS, order(1, 1, "a"), order(2, 2, "b"))
        changed = layout({"id": "int"}, {"id": "int", "total": "decimal(10,2)"})
        play(
            opened.table,
            {0: ORDERS, 1: changed},
            order(3, 3, "c"),
            change(4, ["1"], {"id": 1, "total": "1.5"}, layout=1),
        )
        assert opened.select("id, note, total") == [(1, None, Decimal("1.50")), (2, "b", None), (3, "c", None)]

    @pytest.mark.parametrize(
        ("before", "after", "stored"),
        [
            (("int", 1), ("long", 2**40), "bigint"),
            (("long", 1), ("int", 2), "bigint"),
            (("int", 1), ("decimal(12,2)", "0.25"), "numeric(12,2)"),
            (("long", 2**62), ("decimal(20,0)", str(2**64 - 1)), "numeric(20,0)"),
            (("decimal(10,2)", "12345678.12"), ("decimal(6,4)", "12.1234"), "numeric(12,4)"),
            (("float", 0.5), ("double", 5e-324), "double precision"),
        ],
    )
    def test_a_wider_column_is_widened(
        self, opened: Opened, before: tuple[str, Any], after: tuple[str, Any], stored: str
    ) -> None:
        layouts = [layout({"id": "int"}, {"id": "int", "v": kind}) for kind, _ in (before, after)]
        play(opened.table, layouts[0], change(1, ["1"], {"id": 1, "v": before[1]}))
        play(opened.table, layouts[1], change(2, ["2"], {"id": 2, "v": after[1]}))
        assert [float(value) for _, value in opened.select("id, v")] == [float(before[1]), float(after[1])]
        statement = (
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = %s::regclass AND attname = 'v'"
        )
        assert opened.postgres.execute(statement, (f"{opened.name}.orders",)) == [(stored,)]

    def test_a_column_of_another_type_continues_beside_the_earlier_one(self, opened: Opened) -> None:
        """I8: no value is converted."""
        text = layout({"id": "int"}, {"id": "int", "note": "int"})
        play(opened.table, ORDERS, order(1, 1, "7"))
        both = {0: ORDERS, 1: text}
        play(opened.table, both, order(2, 2, "a"), change(3, ["1"], {"id": 1, "note": 8}, layout=1))
        assert opened.select("id, note, note__number") == [(1, None, 8), (2, "a", None)]
        play(opened.table, ORDERS, order(4, 1, "again"))
        assert opened.select("id, note, note__number") == [(1, "again", None), (2, "a", None)]

    def test_a_wider_key_is_widened_and_another_one_is_refused(self, opened: Opened) -> None:
        play(opened.table, ORDERS, order(1, 1, "a"))
        long = layout({"id": "long"}, {"id": "long", "note": "string"})
        play(opened.table, long, order(2, 2**40, "b"), order(3, 1, "c"))
        assert opened.select("id, note") == [(1, "c"), (2**40, "b")]
        for key in ({"id": "string"}, {"id": "int", "line": "int"}):
            with pytest.raises(RelayError, match=r"orders.*another `copy.url`"):
                play(opened.table, layout(key, {"note": "string"}), change(4, ["x", "y"][: len(key)], {"note": "d"}))

    def test_names_of_ours_and_long_names_are_stored_under_others(self, opened: Opened) -> None:
        long = [f"{'é' * 40}{n}" for n in range(2)]
        made = layout({"id": "int"}, {"id": "int", "_relay_token": "string", **dict.fromkeys(long, "int")})
        play(opened.table, made, change(1, ["1"], {"id": 1, "_relay_token": "mine", long[0]: 1, long[1]: 2}))
        assert opened.select("column__relay_token") == [("mine",)]
        names = [
            name
            for (name,) in opened.postgres.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attname LIKE 'é%%'",
                (f"{opened.name}.orders",),
            )
        ]
        values = opened.select(", ".join(map(quoted, names)))
        assert sorted(values[0]) == [1, 2]


def test_stubs_redrives_and_snapshots_are_applied_as_elsewhere(opened: Opened) -> None:
    """I7, I8"""
    stub = order(2, 1, None, operation=Operation.UPDATE, images=Images.OMITTED)
    assert play(opened.table, ORDERS, order(1, 1, "a"), order(1, 2, "b", partition=1), stub).incomplete == 1
    assert opened.select("id, note, _relay_incomplete") == [(1, "a", True), (2, "b", False)]
    redriven = order(2, 1, "whole", attributes={REDRIVEN: "true"})
    assert play(opened.table, ORDERS, redriven, redriven) == VerdictCounts(applied=1, ignored=1)
    assert opened.select("id, note, _relay_incomplete") == [(1, "whole", False), (2, "b", False)]

    play(opened.table, ORDERS, mark(3, "begin", 5000), read(4, ["3"], {"id": 3, "note": "c"}, 5001))
    play(opened.table, ORDERS, mark(5, "end", 5000))
    assert opened.select("id, note") == [(2, "b"), (3, "c")]  # the row of the other partition stays
    late = read(6, ["1"], {"id": 1, "note": "late"}, 4000, "abandoned")
    assert play(opened.table, ORDERS, late) == VerdictCounts(ignored=1)


def test_tombstones_are_deleted_by_their_age(opened: Opened) -> None:
    play(opened.table, ORDERS, order(1, 1, "a"), order(2, 1, None), order(3, 2, "b"))
    batch: Any = None
    assert opened.table.delete_tombstones(batch, 0) == 0
    assert opened.table.delete_tombstones(batch, 1e11) == 1
    assert opened.select("id", "true") == [(2,)]


class TestTwoDrivers:
    def test_a_write_over_a_state_that_has_changed_is_a_conflict(self, opened: Opened) -> None:
        """I7"""
        play(opened.table, ORDERS, order(1, 1, "a"))
        faster = PostgresTable(opened.database, opened.name, "orders")

        class Overtaken(PostgresTable):
            wrote = 0

            def write(self, *arguments: Any) -> set[Any]:
                if not self.wrote:
                    play(faster, ORDERS, order(3, 1, "newer"), order(3, 2, "new", partition=1))
                self.wrote += 1
                return super().write(*arguments)

        slow = Overtaken(opened.database, opened.name, "orders")
        older = [order(2, 1, "older"), order(2, 2, "older", partition=1), order(2, 3, "other", partition=2)]
        assert play(slow, ORDERS, *older) == VerdictCounts(applied=1, ignored=2)
        assert slow.wrote == 2
        assert opened.select("id, note") == [(1, "newer"), (2, "new"), (3, "other")]

    def test_two_that_apply_the_same_topic_at_once_end_as_one(self, opened: Opened) -> None:
        """I7"""
        changes = [order(n, n % 37, f"v{n}" if n % 5 else None) for n in range(1, 600)]
        failed: list[BaseException] = []

        def drive(size: int) -> None:
            database = PostgresDatabase(opened.postgres.url)
            table = PostgresTable(database, opened.name, "orders")
            try:
                for start in range(0, len(changes), size):
                    play(table, ORDERS, *changes[start : start + size])
            except BaseException as error:
                failed.append(error)
            database.close()

        threads = [threading.Thread(target=drive, args=(size,)) for size in (7, 40, 100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert failed == []
        last = {n % 37: f"v{n}" if n % 5 else None for n in range(1, 600)}
        assert opened.select("id, note") == sorted((id, note) for id, note in last.items() if note)


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=12), st.data())
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_batches_of_any_size_applied_again_from_anywhere_end_as_one_pass(
    opened: Opened, written: list[tuple[int, bool]], data: st.DataObject
) -> None:
    """I7"""
    history = [order(n, id, f"v{n}" if exists else None) for n, (id, exists) in enumerate(written)]
    opened.postgres.execute(f"CREATE SCHEMA IF NOT EXISTS {opened.name}")
    opened.postgres.execute(f"DROP TABLE IF EXISTS {opened.name}.orders")
    table = PostgresTable(opened.database, opened.name, "orders")
    reached = 0
    while reached < len(history):
        begin = data.draw(st.integers(0, reached))
        reached = data.draw(st.integers(reached + 1, len(history)))
        play(table, ORDERS, *history[begin:reached])
    last = {each.head.key[0]: each.image for each in history}
    wanted = sorted((int(key), image["note"]) for key, image in last.items() if image)
    assert opened.select("id, note") == wanted
