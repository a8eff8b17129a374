"""Every column type of a real MySQL comes back through its binlog as SELECT says it, exactly (I8)."""

from __future__ import annotations

import json
import struct
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relay.mysql.binlog.events import Rows
from tests.mysql import test_mariadb_values as both
from tests.mysql.reading import reading, session
from tests.mysql.test_mariadb_values import KINDS, TEXT, Kind

pytestmark = pytest.mark.services

_MARIADB_ALONE = ("uuid", "inet", "compressed", "uca1400", "json", "point", "geometry")


def _is_common(kind: str, value: str = "") -> bool:
    # MariaDB cuts off decimals that a column has not, MySQL rounds; and its longest time has none.
    return not any(word in kind for word in _MARIADB_ALONE) and not any(part in value for part in ("987654", "838:"))


# In 4326 MySQL takes the latitude first; what it stores is x and y all the same.
POINT = b"\xe6\x10\x00\x00\x01\x01\x00\x00\x00" + struct.pack("<dd", 2, 1)
LINE = b"\0\0\0\0\x01\x02\0\0\0\x02\0\0\0" + struct.pack("<dddd", 0, 0, 1, 1)
SECOND = "2024-02-29 23:59:59.123456"
MATRIX: list[tuple[str, str, str, Any]] = [
    *(each for each in both.MATRIX if _is_common(*each[:2])),
    *((f"datetime({n})", "'2024-02-29 23:59:59.123456'", "string", SECOND[: 20 + n]) for n in (1, 2, 3, 6)),
    ("datetime(2)", "'2024-02-29 23:59:59.999'", "string", "2024-03-01 00:00:00.00"),
    *((f"time({n})", "'-123:04:05.123456'", "string", f"-123:04:05.{'123457'[:n]}") for n in (1, 3)),
    ("time", "'-838:59:59'", "string", "-838:59:59"),
    ("time(6)", "'-123:04:05.000001'", "string", "-123:04:05.000001"),
    ("json", """'{"b": 1.50,"a":[]}'""", "string", '{"a": [], "b": 1.5}'),
    ("json", "'null'", "string", "null"),
    ("json", "cast(18446744073709551615 as json)", "string", "18446744073709551615"),
    ("point", "ST_GeomFromText('POINT(1 2)', 4326)", "bytes", POINT),
    ("geometry srid 0", "ST_GeomFromText('LINESTRING(0 0, 1 1)')", "bytes", LINE),
    ("varchar(9) collate utf8mb4_0900_ai_ci", "'é😀'", "string", "é😀"),
    ("varchar(9) collate utf8mb4_0900_bin", "'é😀'", "string", "é😀"),
    ("varchar(9) collate utf8mb4_ja_0900_as_cs_ks", "'日本'", "string", "日本"),
    ("varchar(9) collate utf8mb4_zh_0900_as_cs", "'中'", "string", "中"),
    ("vector(3)", "string_to_vector('[1,2.5,-3]')", "bytes", struct.pack("<fff", 1, 2.5, -3)),
    ("char(9) character set gb18030", "'中'", "string", "中"),
    ("char(3) character set binary", "'ab'", "bytes", b"ab\0"),
    ("enum('a','ß') collate utf8mb4_0900_ai_ci", "'ß'", "string", "ß"),
    ("float unsigned", "3.99", "float", 3.99),
    ("double unsigned", "1.5", "double", 1.5),
    ("decimal(8,3) unsigned", "12345.678", "decimal(8,3)", Decimal("12345.678")),
    ("bigint unsigned as (id * 2) virtual invisible", "default", "decimal(20,0)", 2),
    ("json as (json_array(id)) stored", "default", "string", "[1]"),
]


def test_a_value_of_every_type_and_null_come_back(mysql: Any, unique: str) -> None:
    """I8."""
    ((version,),) = mysql.execute("SELECT VERSION()")
    has_vectors = int(version.partition(".")[0]) >= 9
    matrix = [each for each in MATRIX if has_vectors or not each[0].startswith("vector")]
    with session(mysql, unique) as execute, reading(mysql, unique) as reader:
        columns = ", ".join(f"c{at} {kind}" for at, (kind, *_) in enumerate(matrix))
        execute(f"CREATE TABLE t (id INT PRIMARY KEY, {columns}) ROW_FORMAT=DYNAMIC")
        names = ", ".join(f"c{at}" for at in range(len(matrix)))
        execute(f"INSERT INTO t (id, {names}) VALUES (1, {', '.join(value for _, value, _, _ in matrix)})")
        nulls = ("default" if "as (" in kind else "NULL" for kind, *_ in matrix)
        execute(f"INSERT INTO t (id, {names}) VALUES (2, {', '.join(nulls)})")
        (full, wide), (empty, _) = ((event.changes[0], event) for event in reader.told() if isinstance(event, Rows))
    assert full[1] is not None
    assert empty[1] is not None
    for (kind, text, _, expected), seen, null in zip(matrix, full[1][1:], empty[1][1:], strict=True):
        assert repr(seen) == repr(expected), f"{text} as {kind}"
        assert (null is None) == ("as (" not in kind), kind
    schema = wide.table.schema
    assert schema.row is not None
    assert [(column.name, column.type) for column in schema.row[1:]] == [
        (f"c{at}", carried) for at, (_, _, carried, _) in enumerate(matrix)
    ]


# What SQL alone can put into JSON, and how it is printed.
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


def test_json_is_the_text_that_select_prints(mysql: Any, unique: str) -> None:
    """I8: also of values that have no JSON type, and of documents of every size class."""
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


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=30,
)
MYSQL_KINDS = [
    *(
        Kind(each.sql, each.values, each.select.replace("as int", "as signed"))
        for each in KINDS
        if _is_common(each.sql)
    ),
    Kind("varchar(40) collate utf8mb4_0900_as_cs", TEXT),
    Kind("json", JSON.map(json.dumps), "cast({} as char)"),
]


@given(data=st.data())
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_random_rows_of_random_tables_come_back_as_select_says(mysql: Any, data: st.DataObject) -> None:
    """I8."""
    both.compare_random_rows(mysql, MYSQL_KINDS, data)
