"""What a table's own name shows in a copy in PostgreSQL: the table as its source has it, and nothing of ours."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from typing import Any, cast

import psycopg
import pytest
from psycopg import conninfo

from relay.change import Images, Operation
from relay.operations.compared_rows import ComparedTable
from relay.services.postgres import execute
from relay.table import Column, KeyColumn, TableSchema
from spark_consumers.gaps import LostChanges
from spark_consumers.kept_rows import KeptRow
from spark_consumers.sinks.copy_table import CopyTable
from spark_consumers.sinks.faults import TableFault
from spark_consumers.sinks.postgres import PostgresDatabase
from spark_consumers.sinks.postgres_copy import PostgresTable
from spark_consumers.sinks.postgres_view import TableView
from tests.snippets import blocks
from tests.spark_consumers.batches import FOREVER, Batch, change, layout, play
from tests.spark_consumers.scenarios import ORDERS, order
from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.sql_times import ROWS, TIMES, TYPED, written
from tests.spark_consumers.targets import InPostgres

pytestmark = pytest.mark.services


@pytest.fixture
def copied(database_url: str) -> Iterator[InPostgres]:
    found = InPostgres(database_url)
    yield found
    found.database.close()


def test_selecting_from_a_copy_gives_what_the_source_gives(copied: InPostgres, database_url: str) -> None:
    copied.play(TIMES, *written())
    copied.play(TIMES, change(100, ["0"], None))
    assert execute(database_url, "SELECT count(*) FROM shop.orders") == [(len(ROWS) - 1,)]
    found = execute(database_url, "SELECT * FROM shop.orders ORDER BY 1")
    assert found == [(n, *values, "n") for n, (_, values) in enumerate(ROWS) if n]
    types = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'orders'"
    assert execute(database_url, f"{types} ORDER BY ordinal_position") == [
        ("id", "integer"),
        ("at", "timestamp without time zone"),
        ("day", "date"),
        ("hour", "time without time zone"),
        ("doc", "json"),
        ("seen", "timestamp with time zone"),
        ("note", "text"),
    ]


IN_SPARK = """
import sys
from tests.spark_consumers.local_spark import spark
from tests.spark_consumers.targets import InPostgres
from tests.spark_consumers.sql_times import TIMES, written

with spark() as session:
    table = InPostgres(sys.argv[1], playing=session)
    table.play(TIMES, *written())
    table.database.close()
"""


@pytest.mark.parametrize("is_sql", [False, True], ids=["by the rule", "in SQL"])
def test_what_does_not_fit_is_exact_beside_its_column(
    copied: InPostgres, database_url: str, spark_process: SparkProcess, is_sql: bool
) -> None:
    """I8: whoever decides what is written, and as `relay verify` reads it."""
    if is_sql:
        spark_process.run(IN_SPARK, database_url)
    else:
        copied.play(TIMES, *written())
    unfit = execute(database_url, "SELECT _relay_unfit FROM shop._relay_rows_orders ORDER BY id")
    for (texts, values), (beside,) in zip(ROWS, unfit, strict=True):
        is_null = [value is None and text not in (None, "null") for text, value in zip(texts, values, strict=True)]
        expected = {name: text for name, text, missing in zip(TYPED, texts, is_null, strict=True) if missing}
        assert (beside or {}) == expected
    read = {int(row.key[0]): row.values for row in copied.kept(TIMES, list(TYPED))}
    for n, (texts, _) in enumerate(ROWS):
        at, day, hour, doc, seen = read[n] or ()
        assert [day, hour, doc, seen] == texts[1:]
        assert (at or "").removesuffix(".000000").removesuffix("00000") == (texts[0] or "")


def test_a_text_that_does_not_fit_joins_a_time_that_does_not(copied: InPostgres, database_url: str) -> None:
    """I8"""
    image = {"id": 1, **dict(zip(TYPED, ROWS[1][0], strict=True)), "note": "a\0b"}
    copied.play(TIMES, change(1, ["1"], image))
    ((beside,),) = execute(database_url, "SELECT _relay_unfit FROM shop._relay_rows_orders")
    assert beside == {name: image[name] for name in (*TYPED, "note")}


def test_a_key_of_times_is_found_by_an_index_and_keeps_what_no_type_holds(
    copied: InPostgres, database_url: str
) -> None:
    made = layout({"day": "sql date", "hour": "sql time"}, {"day": "sql date", "hour": "sql time", "note": "string"})
    keys = [("2024-02-29", "10:00:00"), ("0000-00-00", "10:00:00"), ("2024-00-00", "838:59:59")]
    images = [{"day": day, "hour": hour, "note": "a"} for day, hour in keys]
    copied.play(made, *(change(n, list(key), image) for n, (key, image) in enumerate(zip(keys, images, strict=True))))
    copied.play(made, change(9, list(keys[1]), images[1] | {"note": "b"}))
    found = execute(database_url, "SELECT * FROM shop.orders ORDER BY note DESC, 1")
    assert found == [(None, time(10), "b"), (date(2024, 2, 29), time(10), "a"), (None, None, "a")]
    assert sorted(row.key for row in copied.kept(made, ["note"])) == sorted(keys)
    for condition in ("day = '2024-02-29'", "day BETWEEN '2024-02-01' AND '2024-03-01'"):
        assert "Index" in plan_of(database_url, condition)
    gone = layout({"day": "string", "hour": "string"}, {"day": "string", "hour": "string"})
    copied.play({0: gone, 1: made}, change(10, list(keys[0]), images[0] | {"note": "c"}, layout=1))
    with pytest.raises(TableFault, match="the key column day is string at the source but date as text in the copy"):
        copied.play(layout({"day": "string", "hour": "sql time"}, {"note": "string"}), change(11, ["x", "y"], {}))


def test_a_layout_of_the_key_only_is_not_what_says_how_a_key_is_kept(copied: InPostgres, database_url: str) -> None:
    """I12"""
    gone = layout({"day": "string"}, {"day": "string"})
    made = layout({"day": "sql date"}, {"day": "sql date", "note": "string"})
    truncated = change(1, (), None, Operation.TRUNCATE)
    copied.play({0: gone, 1: made}, truncated, change(2, ["2024-02-29"], {"day": "2024-02-29", "note": "a"}, layout=1))
    assert execute(database_url, "SELECT * FROM shop.orders") == [(date(2024, 2, 29), "a")]


def plan_of(url: str, condition: str) -> str:
    with psycopg.connect(url) as connection:
        connection.execute("SET enable_seqscan = off")
        return str(connection.execute(f"EXPLAIN SELECT * FROM shop.orders WHERE {condition}".encode()).fetchall())


def test_keys_and_indexes_of_users_are_used_through_the_view(copied: InPostgres, database_url: str) -> None:
    copied.play(TIMES, *written())
    assert "Index" in plan_of(database_url, "id = 1")
    execute(database_url, "CREATE INDEX by_day ON shop._relay_rows_orders (day)")
    assert "by_day" in plan_of(database_url, "day > '2024-01-01'")


def test_what_is_granted_outlives_columns_that_are_added_and_widened(
    copied: InPostgres, database_url: str, unique: str
) -> None:
    copied.play(ORDERS, order(1, 1, "a"))
    execute(database_url, f"CREATE ROLE {unique}; GRANT SELECT ON shop.orders TO {unique} WITH GRANT OPTION")
    execute(database_url, "CREATE VIEW shop.dashboard AS SELECT * FROM shop.orders")
    more = layout({"id": "int"}, {"id": "int", "note": "string", "n": "int"})
    copied.play(more, change(2, ["2"], {"id": 2, "note": "b", "n": 2}))
    wider = layout({"id": "int"}, {"id": "int", "note": "string", "n": "long"})
    last = change(3, ["2"], {"id": 2, "note": "b", "n": 2**40})
    with pytest.raises(TableFault, match=r"must be widened, but view shop.dashboard depends on view shop.orders: drop"):
        copied.play(wider, last)
    execute(database_url, "DROP VIEW shop.dashboard")
    copied.play(wider, last)
    assert execute(database_url, "SELECT * FROM shop.orders ORDER BY id") == [(1, "a", None), (2, "b", 2**40)]
    allowed = f"SELECT has_table_privilege('{unique}', 'shop.orders', 'SELECT WITH GRANT OPTION')"
    assert execute(database_url, allowed) == [(True,)]
    execute(database_url, f"DROP OWNED BY {unique}; DROP ROLE {unique}")


@pytest.mark.parametrize(
    "made",
    [
        "TABLE shop.orders (id int)",
        "VIEW shop.orders AS SELECT 1 AS id",
        "SEQUENCE shop.orders",
        "TABLE shop.orders (id int, _relay_token text)",
    ],
)
def test_what_has_the_name_already_is_refused_and_stays(copied: InPostgres, database_url: str, made: str) -> None:
    execute(database_url, f"CREATE SCHEMA shop; CREATE {made}")
    with pytest.raises(TableFault, match="does not belong to the copy: rename it"):
        copied.play(ORDERS, order(1, 1, "a"))
    assert execute(database_url, "SELECT to_regclass('shop._relay_rows_orders')") == [(None,)]


def test_a_view_that_somebody_dropped_is_made_again_and_one_of_theirs_on_the_rows_is_left(
    copied: InPostgres, database_url: str
) -> None:
    copied.play(ORDERS, order(1, 1, "a"), order(2, 2, "b"))
    execute(database_url, "DROP VIEW shop.orders")
    play(PostgresTable(copied.database, "shop", "orders"), ORDERS, order(3, 1, "c"))
    assert execute(database_url, "SELECT * FROM shop.orders ORDER BY 1") == [(1, "c"), (2, "b")]
    rows = "SELECT id, note FROM shop._relay_rows_orders WHERE NOT _relay_deleted AND id > 1"
    execute(database_url, f"CREATE OR REPLACE VIEW shop.orders AS {rows}")
    play(PostgresTable(copied.database, "shop", "orders"), ORDERS, order(4, 2, "d"))
    assert execute(database_url, "SELECT * FROM shop.orders ORDER BY 1") == [(2, "d")]


def test_a_view_of_theirs_in_the_place_of_ours_stays_when_columns_change(copied: InPostgres, database_url: str) -> None:
    """I12: what it leaves out is not shown, and what it has no part in goes on."""
    copied.play(ORDERS, order(1, 1, "a"), order(2, 2, "b"))
    where = "FROM shop._relay_rows_orders WHERE NOT _relay_deleted AND id > 1"
    execute(database_url, f"CREATE OR REPLACE VIEW shop.orders AS SELECT id, note {where}")
    row = {"id": "int", "note": "string", "n": "int"}
    copied.play(layout({"id": "int"}, row), change(3, ["1"], {"id": 1, "note": "c", "n": 1}))
    wider = layout({"id": "int"}, {**row, "n": "long"})
    copied.play(wider, change(4, ["2"], {"id": 2, "note": "d", "n": 2**40}))
    assert execute(database_url, "SELECT * FROM shop.orders") == [(2, "d")]
    execute(database_url, f"CREATE OR REPLACE VIEW shop.orders AS SELECT id, note, n {where}")
    widest = layout({"id": "int"}, {**row, "n": "decimal(30,0)"})
    last = change(5, ["2"], {"id": 2, "note": "e", "n": "1"})
    with pytest.raises(TableFault, match=r"must be widened, but .* view shop.orders depends on column"):
        copied.play(widest, last)
    execute(database_url, "DROP VIEW shop.orders")
    copied.play(widest, last)
    assert execute(database_url, "SELECT id, note FROM shop.orders ORDER BY id") == [(1, "c"), (2, "e")]


def test_what_was_revoked_stays_so_when_a_view_is_made_anew(copied: InPostgres, database_url: str, unique: str) -> None:
    copied.play(ORDERS, order(1, 1, "a"))
    execute(
        database_url,
        f"CREATE ROLE {unique}; ALTER DEFAULT PRIVILEGES IN SCHEMA shop GRANT SELECT ON TABLES TO {unique}, PUBLIC",
    )
    n = {"id": "int", "note": "string", "n": "int"}
    copied.play(layout({"id": "int"}, n), change(2, ["2"], {"id": 2, "note": "b", "n": 2}))
    copied.play(layout({"id": "int"}, {**n, "n": "long"}), change(3, ["2"], {"id": 2, "note": "b", "n": 2**40}))
    allowed = f"SELECT has_table_privilege('{unique}', 'shop.orders', 'SELECT')"
    assert execute(database_url, allowed) == [(False,)]
    execute(database_url, f"DROP OWNED BY {unique}; DROP ROLE {unique}")


def test_a_view_that_somebody_else_owns_sets_aside_its_table_alone(
    copied: InPostgres, database_url: str, unique: str
) -> None:
    """I12"""
    copied.play(ORDERS, order(1, 1, "a"))
    execute(
        database_url,
        f"CREATE ROLE {unique}; CREATE ROLE {unique}_copy LOGIN PASSWORD 'p'; "
        f"GRANT USAGE, CREATE ON SCHEMA shop TO {unique}_copy; "
        f"ALTER TABLE shop._relay_rows_orders OWNER TO {unique}_copy; ALTER TABLE shop.orders OWNER TO {unique}",
    )
    user = PostgresDatabase(conninfo.make_conninfo(database_url, user=f"{unique}_copy", password="p"))
    more = layout({"id": "int"}, {"id": "int", "note": "string", "n": "int"})
    with pytest.raises(TableFault, match="must be owner of view orders"):
        play(PostgresTable(user, "shop", "orders"), more, change(2, ["2"], {"id": 2, "note": "b", "n": 2}))
    user.close()
    execute(database_url, f"DROP OWNED BY {unique}, {unique}_copy; DROP ROLE {unique}, {unique}_copy")


def test_tables_with_long_names_have_rows_of_their_own() -> None:
    views = [TableView("shop", f"{'x' * 62}{n}") for n in range(2)]
    assert len({view.rows for view in views}) == 2
    assert all(len(view.rows) <= len('"shop".""') + 63 for view in views)


def test_documents_are_compared_by_what_they_say(database_url: str) -> None:
    """I8: jsonb prints a document in its own way, and what differs in a value is another one."""
    variant = InPostgres(database_url, items="variant")
    made = layout({"id": "int"}, {"id": "int", "doc": "sql json"})
    variant.play(made, change(1, ["1"], {"id": 1, "doc": '{"b":1e2,"a":"1"}'}))
    ((kept,),) = [row.values or () for row in variant.kept(made, ["doc"])]
    assert kept == '{"a": "1", "b": 100}'
    columns = (Column("id", "int"), Column("doc", "string", "json"))
    table = ComparedTable(TableSchema("shop", "orders", (KeyColumn("id", "int"),), 1, columns))
    same, *others = [
        '{"b": 100.0, "a": "1"}',
        '{"b": "100", "a": "1"}',
        '{"b": 100, "a": 1}',
        '{"b": {"N": "100"}, "a": "1"}',
    ]
    copied = table.of_kept(KeptRow(("1",), (kept,), incomplete=False, event_id=""))
    assert table.of_source({"id": 1}, {"id": 1, "doc": same}).values == copied.values
    assert all(table.of_source({"id": 1}, {"id": 1, "doc": other}).values != copied.values for other in others)
    variant.database.close()


def test_what_is_incomplete_or_gone_and_gaps_are_found_as_the_page_says(copied: InPostgres, database_url: str) -> None:
    """I9"""
    stub = order(4, 2, None, operation=Operation.UPDATE, images=Images.OMITTED)
    copied.play(ORDERS, order(1, 1, "a"), order(2, 2, "b"), order(3, 1, None), stub)
    table, batch = CopyTable(copied.table, FOREVER), Batch([])
    table.add_gaps(cast(Any, batch), [LostChanges("one", "shop", "trimmed", 0.0, "")])
    documented = blocks("deploy/docs/how_to/copy.md", "sql")
    statements = "".join(block.text for block in documented if "delta.`" not in block.text).split(";\n")[:-1]
    incomplete, gaps, gone, unfit = (execute(database_url, each) for each in statements)
    assert [row[:2] for row in incomplete] == [(2, "b")]
    assert [row[:2] for row in gone] == [(1, None)]
    assert gaps == [("orders", "trimmed", "", datetime(1970, 1, 1, tzinfo=UTC))]
    assert unfit == []
