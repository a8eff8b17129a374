"""A value of every column type of a real server comes from its binlog exactly as SELECT returns it (I8)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relay.mysql.binlog.events import Rows
from tests.mysql.column_types import MARIADB_KINDS, MARIADB_MATRIX, MYSQL_KINDS, ValueKind, matrix_of
from tests.mysql.reading import is_mysql, reading, session

pytestmark = pytest.mark.services


def test_a_value_of_every_type_and_null_come_back(server: Any, unique: str) -> None:
    """I8."""
    matrix = matrix_of(server)
    row_format = " ROW_FORMAT=DYNAMIC" if is_mysql(server) else ""
    with session(server, unique) as execute, reading(server, unique) as reader:
        columns = ", ".join(f"c{at} {kind}" for at, (kind, *_) in enumerate(matrix))
        execute(f"CREATE TABLE t (id INT PRIMARY KEY, {columns}){row_format}")
        names = ", ".join(f"c{at}" for at in range(len(matrix)))
        execute(f"INSERT INTO t (id, {names}) VALUES (1, {', '.join(value for _, value, _, _ in matrix)})")
        nulls = ("default" if "as (" in kind else "NULL" for kind, *_ in matrix)
        execute(f"INSERT INTO t (id, {names}) VALUES (2, {', '.join(nulls)})")
        first, second = (event for event in reader.transactions() if isinstance(event, Rows))
    ((_, full),), ((_, empty),) = first.changes, second.changes
    assert full is not None
    assert empty is not None
    for (kind, text, _, expected), seen, null in zip(matrix, full[1:], empty[1:], strict=True):
        assert repr(seen) == repr(expected), f"{text} as {kind}"
        assert (null is None) == ("as (" not in kind), kind
    schema = first.table.schema
    assert schema.row is not None
    assert [(column.name, column.type) for column in schema.row[1:]] == [
        (f"c{at}", carried) for at, (_, _, carried, _) in enumerate(matrix)
    ]


def test_the_columns_and_the_key_of_a_table_come_from_the_binlog(mariadb: Any, unique: str) -> None:
    with session(mariadb, unique) as execute, reading(mariadb, unique) as reader:
        columns = ", ".join(f"c{at} {kind}" for at, (kind, *_) in enumerate(MARIADB_MATRIX))
        execute(f"CREATE TABLE t (id INT, {columns}, PRIMARY KEY (c8, id))")
        execute("INSERT INTO t (id) VALUES (1)")
        (rows,) = (event for event in reader.transactions() if isinstance(event, Rows))
    schema = rows.table.schema
    assert schema.row is not None
    assert [(column.name, column.type) for column in schema.row[1:]] == [
        (f"c{at}", carried) for at, (_, _, carried, _) in enumerate(MARIADB_MATRIX)
    ]
    assert [column.name for column in schema.key] == ["c8", "id"]


def printed(value: Any, kind: ValueKind) -> Any:
    """Return a value of the binlog in the form of SELECT."""
    if kind.sql.startswith("set"):
        return ",".join(value)
    return value


@given(data=st.data())
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_random_rows_of_random_tables_come_back_as_select_returns_them(server: Any, data: st.DataObject) -> None:
    """I8."""
    compare_random_rows(server, MYSQL_KINDS if is_mysql(server) else MARIADB_KINDS, data)


def compare_random_rows(server: Any, kinds_of_server: Sequence[ValueKind], data: st.DataObject) -> None:
    """Draw a table and rows of it, and compare the rows in the binlog with those of SELECT."""
    kinds = data.draw(st.lists(st.sampled_from(kinds_of_server), min_size=1, max_size=20))
    row = st.tuples(*(st.none() | kind.values for kind in kinds))
    drawn = data.draw(st.lists(row, min_size=1, max_size=8))
    changed = data.draw(row)
    names = [f"c{at}" for at in range(len(kinds))]
    wanted = ", ".join(kind.select.format(name) for kind, name in zip(kinds, names, strict=True))
    marks = ", ".join("from_unixtime(%s)" if "timestamp" in kind.sql else "%s" for kind in kinds)
    with session(server, "random_rows") as execute:
        execute("DROP TABLE IF EXISTS t")
        execute(
            "CREATE TABLE t (id INT PRIMARY KEY, "
            + ", ".join(f"{n} {k.sql}" for n, k in zip(names, kinds, strict=True))
            + ")"
        )
        with reading(server, "random_rows") as reader:
            for at, values in enumerate(drawn):
                execute(f"INSERT INTO t VALUES ({at}, {marks})", values)
            first = execute(f"SELECT id, {wanted} FROM t ORDER BY id")
            execute(f"REPLACE INTO t VALUES (0, {marks})", changed)
            second = execute(f"SELECT id, {wanted} FROM t WHERE id = 0")
            execute("DELETE FROM t WHERE id = 0")
            changes = reader.changes()

    def shown(image: Any) -> tuple[Any, ...]:
        return (image[0], *(None if v is None else printed(v, k) for v, k in zip(image[1:], kinds, strict=True)))

    assert [shown(after) for _, after in changes[: len(drawn)]] == list(first)
    # A REPLACE is an update, or a delete and an insert, or nothing if it changes nothing.
    seen = [shown(image) for change in changes[len(drawn) :] for image in change if image is not None]
    assert set(map(repr, seen)) == {repr(first[0]), repr(second[0])}
    assert changes[-1][1] is None


# Values that only SQL can put into JSON.
OPAQUE = [
    "cast(1.50 as decimal(10,2))",
    "cast(-0.05 as decimal(5,2))",
    "cast('123456789012345678901234567890.123456789' as decimal(60,20))",
    "cast(0 as decimal(3,0))",
    "date '2024-02-29'",
    "cast('0000-00-00' as date)",
    "timestamp '2024-02-29 23:59:59.987654'",
    "timestamp '9999-12-31 00:00:00'",
    "time '-838:59:59'",
    "time '00:00:00.000001'",
    "cast('-00:00:01.5' as time(6))",
    "cast(x'00ff10' as binary)",
    "repeat(x'ff', 200)",
    "st_geomfromtext('POINT(1 2)')",
    "cast(true as json)",
    "1e300",
    "1e-10",
    "0.1e0",
    "-0e0",
    "123456789012345e0",
    "1234567890123456789e0",
    "cast(2024 as year)",
    "b'101'",
    'cast(\'"\\\\u0001 \\\\" \\\\\\\\ / é"\' as json)',
]


def test_json_of_mysql_is_the_text_that_select_prints(mysql: Any, unique: str) -> None:
    """I8: also for values without a JSON type, and for documents of every size class."""
    documents = [
        *(f"json_object('k', {each}, 'l', json_array({each}, {each}))" for each in OPAQUE),
        *(f"json_array({each})" for each in OPAQUE),
        "json_object('a', repeat('x', 70000), 'b', json_array(1, 70000, 5000000000, -1))",
        "json_object(repeat('k', 300), repeat('x', 300), 'é', '😀')",
        "json_array(repeat('x', 127), repeat('x', 128), repeat('x', 16384), repeat('x', 2097152))",
        "cast(concat(repeat('[', 99), repeat(']', 99)) as json)",
        "cast('{}' as json)",
        "cast('[]' as json)",
        "cast('\"s\"' as json)",
        "cast('-1' as json)",
        f"cast('{json.dumps(list(range(30000)))}' as json)",
        f"""cast('{json.dumps({f"key{each}": {"n": each} for each in range(5000)})}' as json)""",
    ]
    with session(mysql, unique) as execute, reading(mysql, unique) as reader:
        execute("CREATE TABLE t (id INT PRIMARY KEY, j JSON)")
        for at, each in enumerate(documents):
            execute(f"INSERT INTO t VALUES ({at}, {each})")
        printed = execute("SELECT id, CAST(j AS CHAR) FROM t ORDER BY id")
        rows = reader.rows()
    for row, (at, text) in zip(rows, printed, strict=True):
        assert row == (at, text), documents[at][:100]
