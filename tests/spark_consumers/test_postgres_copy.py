"""A table of the copy in PostgreSQL: exact values, conditional writes, columns that change, and what it refuses."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relay.change import Operation, Snapshot
from relay.errors import Unavailable
from relay.services.postgres import execute
from relay.token import EventToken
from spark_consumers.fold import VerdictCounts
from spark_consumers.gaps import LostChanges, from_json
from spark_consumers.sinks import copy_table, postgres_copy
from spark_consumers.sinks.copy_table import GAPS, CopyTable
from spark_consumers.sinks.faults import TableFault
from spark_consumers.sinks.postgres import PostgresDatabase, quoted
from spark_consumers.sinks.postgres_copy import PostgresTable
from spark_consumers.sinks.postgres_upsert import is_stored
from spark_consumers.sinks.tombstones import SNAPSHOTS
from tests.spark_consumers.batches import FOREVER, Published, change, layout, mark, play, read
from tests.spark_consumers.drawn_tokens import plain_parts, tokens
from tests.waiting import wait_until

pytestmark = pytest.mark.services

ORDERS = layout({"id": "int"}, {"id": "int", "note": "string"})
ROWS = "_relay_rows_orders"


class Opened:
    """A table of its own in the database, and its rows by id."""

    def __init__(self, postgres: Any, name: str) -> None:
        self.postgres, self.name = postgres, name
        self.database = PostgresDatabase(postgres.url)
        self.table = PostgresTable(self.database, name, "orders")

    def select(self, columns: str = "*", table: str = "orders") -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self.postgres.execute(
            f"SELECT {columns} FROM {quoted(self.name)}.{table} ORDER BY 1"
        )
        return found


@pytest.fixture
def opened(postgres: Any, unique: str) -> Iterator[Opened]:
    found = Opened(postgres, unique)
    yield found
    found.database.close()


def order(number: int, id: int, note: str | None, **more: Any) -> Published:
    return change(number, [str(id)], None if note is None else {"id": id, "note": note}, **more)


def test_a_text_with_a_nul_is_kept_beside_its_column(opened: Opened) -> None:
    """I8: PostgreSQL stores no NUL in a text, but in JSON."""
    odd = layout({"id": "string"}, {"id": "string", "note": "string", "tags": "set", "plain": "string"})
    image = {"id": "a", "note": "a\0b", "tags": ["\0"], "plain": "\\u0000"}
    play(opened.table, odd, change(1, ["a"], image))
    text = "note, tags, plain, _relay_unfit::text"
    unfit = '{"note":"a\\u0000b","tags":["\\u0000"]}'
    assert opened.select(text, ROWS) == [(None, None, "\\u0000", unfit)]
    play(opened.table, odd, change(2, ["a"], image | {"note": "c", "tags": []}))
    assert opened.select(text, ROWS) == [("c", [], "\\u0000", None)]


def test_a_number_that_is_too_long_for_spark_is_a_number(opened: Opened) -> None:
    """I8"""
    wide = "1" * 35 + "." + "2" * 30
    play(opened.table, layout({"id": "int"}, {"v": "decimal(65,30)"}), change(1, ["1"], {"v": wide}))
    assert opened.select("v") == [(Decimal(wide),)]


def test_names_of_ours_and_long_names_are_stored_under_others(opened: Opened) -> None:
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


def test_tombstones_are_deleted_by_their_age(opened: Opened) -> None:
    play(opened.table, ORDERS, order(1, 1, "a"), order(2, 1, None), order(3, 2, "b"))
    batch: Any = None
    assert opened.table.delete_tombstones(batch, 0) == 0
    assert opened.table.delete_tombstones(batch, 1e11) == 1
    assert opened.select("id", ROWS) == [(2,)]


def test_a_batch_is_on_disk_once_it_is_committed_though_the_database_does_not_ask_for_that(database_url: str) -> None:
    """I1: the checkpoint does not go back if the server crashes and loses a batch."""
    database = PostgresDatabase(f"{database_url}?options=-csynchronous_commit%3Doff")
    table = PostgresTable(database, "shop", "orders")
    play(table, ORDERS, order(1, 1, "a"))
    how = "ALTER TABLE shop._relay_rows_orders ADD COLUMN how text DEFAULT current_setting('synchronous_commit')"
    execute(database_url, how)
    play(table, ORDERS, order(2, 2, "b"))
    assert execute(database_url, "SELECT how FROM shop._relay_rows_orders WHERE id = 2") == [("local",)]
    database.close()


def test_somebody_elses_table_of_the_same_name_and_key_is_refused_and_stays_as_it_is(opened: Opened) -> None:
    """The copy added its columns to it, and then failed with an error of PostgreSQL's."""
    opened.postgres.execute(f"CREATE SCHEMA {quoted(opened.name)}")
    opened.postgres.execute(f"CREATE TABLE {quoted(opened.name)}.orders (id int PRIMARY KEY, theirs text)")
    with pytest.raises(TableFault, match=r'"orders" does not belong to the copy: rename it, or keep'):
        play(opened.table, ORDERS, order(1, 1, "a"))
    assert opened.select() == []
    of_table = f"table_schema = '{opened.name}' ORDER BY ordinal_position"
    assert opened.postgres.execute(f"SELECT column_name FROM information_schema.columns WHERE {of_table}") == [
        ("id",),
        ("theirs",),
    ]


@pytest.mark.parametrize("holding", ["SELECT FROM {}.orders FOR UPDATE", "LOCK TABLE {}.orders IN SHARE MODE"])
def test_who_holds_a_lock_on_a_copied_row_is_named(opened: Opened, holding: str) -> None:
    """A write waited for ever, and nothing said for whom."""
    play(opened.table, ORDERS, order(1, 1, "a"))
    with opened.database.transaction() as connection:
        assert connection.execute(b"SHOW lock_timeout").fetchone() == ("1min",)
    impatient = PostgresDatabase(f"{opened.postgres.url}?options=-c%20lock_timeout%3D200")
    writing = PostgresTable(impatient, opened.name, "orders")
    with psycopg.connect(opened.postgres.url, application_name="by hand") as other:
        other.execute(holding.format(quoted(opened.name)).encode())
        said = rf'_orders" is held by process {other.info.backend_pid}, user .+, application by hand: let it end'
        with pytest.raises(Unavailable, match=said):
            play(writing, ORDERS, order(2, 1, "b"))
    play(writing, ORDERS, order(2, 1, "b"))
    assert opened.select("note") == [("b",)]
    impatient.close()


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
            thread.join(600)
        assert failed == []
        last = {n % 37: f"v{n}" if n % 5 else None for n in range(1, 600)}
        assert opened.select("id, note") == sorted((id, note) for id, note in last.items() if note)

    def test_one_that_is_behind_does_not_keep_a_later_snapshot_from_its_end(self, opened: Opened) -> None:
        """I7: what the later one did not find is deleted, and nothing seems to run when both are through."""
        found = {"id": 1, "note": "deleted in a gap since"}
        one = [mark(1, "begin", 5000, "one"), read(2, ["1"], found, 5001, "one"), mark(3, "end", 5000, "one")]
        two = [mark(4, "begin", 9000, "two"), mark(5, "end", 9000, "two")]
        ahead, behind = (PostgresTable(opened.database, opened.name, "orders") for _ in range(2))
        play(ahead, ORDERS, *one, two[0])
        play(behind, ORDERS, one[0])
        play(ahead, ORDERS, two[1])
        assert opened.select("id") == []
        for part in (one[1:], two[:1], two[1:]):
            play(behind, ORDERS, *part)
        assert opened.select("id") == []
        assert running(behind) == {}

    def test_the_ends_of_a_snapshot_that_both_apply_at_once_all_count(self, opened: Opened) -> None:
        """I7: the last one also reaches the rows of other topics, and nothing seems to run after it."""
        begun = [in_partition(number, mark(2, "begin", 5000)) for number in (0, 1)]
        play(opened.table, ORDERS, order(1, 1, "of a topic before", topic="shop.before"), *begun)
        other = PostgresTable(opened.database, opened.name, "orders")

        class Overtaken(PostgresTable):
            swept = 0

            def rows(self, *arguments: Any, **options: Any) -> Any:
                self.swept += 1
                if self.swept == 1:
                    play(other, ORDERS, in_partition(1, mark(3, "end", 5000)), partitions=2)
                return super().rows(*arguments, **options)

        play(Overtaken(opened.database, opened.name, "orders"), ORDERS, mark(3, "end", 5000), partitions=2)
        assert running(other) == {}
        assert opened.select("id") == []

    def test_what_both_note_at_once_of_gaps_and_truncations_is_all_kept(self, opened: Opened) -> None:
        """I7, I9"""
        play(opened.table, ORDERS, order(1, 1, "a"))
        other = CopyTable(PostgresTable(opened.database, opened.name, "orders"), FOREVER)
        batch: Any = None
        meanwhile: list[Callable[[], None]] = []

        class Overtaken(PostgresTable):
            def properties(self, batch: Any) -> Mapping[str, str]:
                found = super().properties(batch)
                while meanwhile:
                    meanwhile.pop()()
                return found

        slow = CopyTable(Overtaken(opened.database, opened.name, "orders"), FOREVER)
        meanwhile += [lambda: other.add_gaps(batch, [gap("one", 1000)])]
        slow.add_gaps(batch, [gap("two", 2000)])
        assert noted(opened.table) == ["one", "two"]
        meanwhile += [lambda: other.add_gaps(batch, [gap("three", 3000)])]
        slow.remove_gaps(batch, Snapshot("s", 1000))
        assert noted(opened.table) == ["three", "two"]
        lower, upper = (EventToken(1000, f"shop/shop/{shard}", "MariaDB/0-1-1") for shard in ("-80", "80-"))
        meanwhile += [lambda: other.remember_truncations(batch, [lower])]
        slow.remember_truncations(batch, [upper])
        assert other.truncations(batch) == [lower, upper]

    def test_one_that_adds_a_column_and_one_that_changes_the_rows_it_reads_do_not_wait_for_each_other(
        self, opened: Opened, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """I10: in two connections of one driver, so PostgreSQL does not see the circle."""
        monkeypatch.setattr(postgres_copy, "_LOCK_TIMEOUT", "1s")
        monkeypatch.setattr(copy_table, "_ROWS_PER_SWEEP", 1)
        play(opened.table, ORDERS, order(1, 1, "a"), order(2, 2, "b"))
        database = PostgresDatabase(opened.postgres.url)
        adding = PostgresTable(database, opened.name, "orders")
        more = layout({"id": "int"}, {"id": "int", "note": "string", "more": "int"})
        waiting = (
            f"SELECT 1 FROM pg_locks WHERE NOT granted AND relation = '{opened.name}._relay_rows_orders'::regclass"
        )
        with ThreadPoolExecutor() as pool:
            waits: list[Future[VerdictCounts]] = []

            class Reading(PostgresTable):
                def rows(self, *arguments: Any, **options: Any) -> Iterator[Any]:
                    for row in super().rows(*arguments, **options):
                        if not waits:
                            waits.append(pool.submit(play, adding, more, order(4, 3, "c")))
                            wait_until(lambda: waits[0].done() or opened.postgres.execute(waiting) or None)
                        yield row

            reading = Reading(opened.database, opened.name, "orders")
            assert play(reading, ORDERS, change(3, (), None, Operation.TRUNCATE)) == VerdictCounts(applied=2)
            with pytest.raises(Unavailable, match="lock timeout"):
                waits[0].result()
        play(adding, more, order(4, 3, "c"))
        assert opened.select("id, more") == [(3, None)]
        database.close()


def noted(table: PostgresTable) -> list[str]:
    batch: Any = None
    return sorted(each.id for each in from_json(table.properties(batch)[GAPS]))


def gap(name: str, found_at: float) -> LostChanges:
    return LostChanges(name, "shop", "trimmed", found_at, "")


def in_partition(number: int, each: Published) -> Published:
    return replace(each, head=replace(each.head, place=replace(each.head.place, partition=number)))


def running(table: PostgresTable) -> Any:
    batch: Any = None
    return json.loads(table.properties(batch)[SNAPSHOTS])["running"]


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=12), st.data())
@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_batches_of_any_size_applied_again_from_anywhere_end_as_one_pass(
    opened: Opened, written: list[tuple[int, bool]], data: st.DataObject
) -> None:
    """I7"""
    history = [order(n, id, f"v{n}" if exists else None) for n, (id, exists) in enumerate(written)]
    opened.postgres.execute(f"CREATE SCHEMA IF NOT EXISTS {opened.name}")
    opened.postgres.execute(f"DROP TABLE IF EXISTS {opened.name}._relay_rows_orders CASCADE")
    table = PostgresTable(opened.database, opened.name, "orders")
    reached = 0
    while reached < len(history):
        begin = data.draw(st.integers(0, reached))
        reached = data.draw(st.integers(reached + 1, len(history)))
        play(table, ORDERS, *history[begin:reached])
    last = {each.head.key[0]: each.image for each in history}
    wanted = sorted((int(key), image["note"]) for key, image in last.items() if image)
    assert opened.select("id, note") == wanted


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=300
)
@given(
    changed=tokens.filter(lambda each: plain_parts(each.to_json())),
    others=st.lists(tokens, max_size=3),
    numbers=st.lists(st.integers(0, 10**20).map(str) | st.from_regex(r"[0-9]{1,101}|x", fullmatch=True), max_size=5),
    times=st.lists(st.sampled_from(["1", "17", "0", "01", "", "x"]), min_size=1, max_size=2),
    end=st.sampled_from(['","origin":null}', '","origin":{}}', '","origin":null} ', "", 'x","origin":null}']),
)
def test_sql_compares_a_stored_token_as_its_plain_parts_say(
    postgres: Any, changed: EventToken, others: list[EventToken], numbers: list[str], times: list[str], end: str
) -> None:
    """I5, I7: of another stem, or no plain token, is neither."""
    plain = plain_parts(changed.to_json())
    assert plain is not None
    stem, number = plain
    compared = ", ".join(f"coalesce({is_stored(operator, 's.number')}, false)" for operator in "<>")
    texts = [None, "", "{}", *(token.to_json() for token in (*others, changed))]
    texts += [f'{{"timestamp":{time},{stem}{each}{end}' for time in times for each in numbers]
    with psycopg.connect(postgres.url) as connection:
        found = connection.execute(
            f"SELECT t._relay_token, {compared} FROM unnest(%s::text[]) AS t(_relay_token),"
            " (VALUES (%s::text, %s::text)) AS s(stem, number)",
            [texts, stem, str(number)],
        ).fetchall()
    assert len(found) == len(texts)
    for text, is_less, is_greater in found:
        parts = plain_parts(text or "")
        other = parts[1] if parts is not None and parts[0] == stem else number
        assert (is_less, is_greater) == (other < number, other > number), text
