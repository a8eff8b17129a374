"""Whatever a statement has, reading it for its columns raises nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.mysql_dialect.altered import Shape, altered, created
from relay.table import Column

BEFORE = Shape((Column("id", "int"), Column("a", "string")), ("id",), True)
# fmt: off
WORDS = [
    "ADD", "COLUMN", "DROP", "CHANGE", "MODIFY", "RENAME", "TO", "PRIMARY", "KEY", "INDEX", "CONSTRAINT", "id", "a",
    "b", "INT", "DECIMAL", "VARCHAR", "FIRST", "AFTER", "IF", "EXISTS", "NOT", "CHARSET", "CHARACTER", "SET", "CONVERT",
    "LIKE", "ENGINE", "DEFAULT", "(", ")", "(", ")", ",", ",", ".", ";", "=", "5", "1e3", "'x'", "`q`", '"', "`", "'",
    "/*", "*/",
]
# fmt: on


@given(
    words=st.lists(st.sampled_from(WORDS), max_size=14), first=st.sampled_from(["ALTER TABLE t", "CREATE TABLE t ("])
)
def test_nothing_in_a_statement_raises(words: list[str], first: str) -> None:
    """I8: what is not understood is None."""
    for end in ("", ")"):
        sql = f"{first} {' '.join(words)} {end}"
        for shape in (altered(BEFORE, sql, False), created(sql, False, True)):
            if shape is not None:
                assert set(shape.primary) <= {column.name for column in shape.columns}


def test_parts_are_read_in_any_order() -> None:
    one = altered(
        BEFORE, "ALTER TABLE t ADD PRIMARY KEY (a), DROP PRIMARY KEY, ADD b VARCHAR(3), CHARSET binary", False
    )
    assert one == Shape((*BEFORE.columns, Column("b", "bytes")), ("a",), False)


def test_what_is_certain_in_a_statement_is_not_enough() -> None:
    for part in ("ADD ((b INT))", "ADD b INT, SOMETHING NEW", "ADD b DECIMAL(1e3)", "DROP nothing", "ADD PRIMARY KEY"):
        assert altered(BEFORE, f"ALTER TABLE t {part}", False) is None, part


def test_a_statement_with_a_backslash_is_not_understood() -> None:
    """I8: in a session with NO_BACKSLASH_ESCAPES this adds a column, and in another it has a longer default."""
    sql = r"ALTER TABLE t MODIFY a VARCHAR(90) DEFAULT '\', ADD b INT COMMENT 'x'"
    assert altered(BEFORE, sql, False) is None
    assert created(r"CREATE TABLE t (id INT PRIMARY KEY, a INT COMMENT '\', b INT COMMENT 'x')", False, True) is None


@pytest.mark.parametrize(
    "kind", ["NCHAR(3)", "NVARCHAR(3)", "NCHAR VARYING(3)", "NATIONAL CHAR(3)", "NATIONAL VARCHAR(3)"]
)
def test_national_text_is_text_also_in_a_table_that_is_binary(kind: str) -> None:
    after = altered(BEFORE, f"ALTER TABLE t ADD b {kind} NOT NULL, CHARSET binary", False)
    assert after is not None
    assert after.columns[-1] == Column("b", "string")
