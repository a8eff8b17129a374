"""Statements are shown without their values, and their names found, whatever quotes, comments and escapes they have."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from relay.mysql_dialect.statement_text import ANSI_QUOTES, BRACKETS, MARIADB, Name, tokens, without_values
from relay.mysql_dialect.statements import Classified, Kind, classify


@pytest.mark.parametrize(
    ("sql", "shown"),
    [
        ("ALTER TABLE t ADD c VARCHAR(20) DEFAULT 'bob'", "ALTER TABLE t ADD c VARCHAR(20) DEFAULT ***"),
        ("ALTER TABLE t ADD c INT DEFAULT -1.5", "ALTER TABLE t ADD c INT DEFAULT -***.***"),
        (
            "ALTER TABLE t ADD COLUMN c DECIMAL(10, 2) DEFAULT 7",
            "ALTER TABLE t ADD COLUMN c DECIMAL(10, 2) DEFAULT ***",
        ),
        ("ALTER TABLE t CHANGE a `b 2` CHAR(5) AFTER c", "ALTER TABLE t CHANGE a `b 2` CHAR(5) AFTER c"),
        ("ALTER TABLE t ADD c BLOB DEFAULT 0x626F62", "ALTER TABLE t ADD c BLOB DEFAULT ***"),
        ("ALTER TABLE t ADD c BLOB DEFAULT x'626F62'", "ALTER TABLE t ADD c BLOB DEFAULT x***"),
        ("ALTER TABLE t MODIFY c ENUM('bob','it''s')", "ALTER TABLE t MODIFY c ENUM(***,***)"),
        ('ALTER TABLE t COMMENT "bob" -- bob\n, ADD d DATE', "ALTER TABLE t COMMENT ***  \n, ADD d DATE"),
        ("/* bob */ ALTER TABLE t # bob", "ALTER TABLE t"),
        ("ALTER TABLE t ADD c INT DEFAULT (CHAR(66, 79))", "ALTER TABLE t ADD c INT DEFAULT (CHAR(***, ***))"),
        ("ALTER TABLE t ADD c INT DEFAULT YEAR(1984)", "ALTER TABLE t ADD c INT DEFAULT YEAR(***)"),
        ("/*!50100 ALTER TABLE t ADD c INT DEFAULT 5*/", "/*!50100 ALTER TABLE t ADD c INT DEFAULT ****/"),
        # Where a backslash may or may not end the literal, what follows may be inside of the next one.
        ("ALTER TABLE t ADD c INT DEFAULT 'a\\' COMMENT 'bob'", "ALTER TABLE t ADD c INT DEFAULT..."),
        ("ALTER TABLE t ADD a INT DEFAULT 1, ADD b INT DEFAULT '\\'bob'", "ALTER TABLE t ADD a INT DEFAULT..."),
        ("ALTER TABLE t ADD c INT DEFAULT 'bob", "ALTER TABLE t ADD c INT DEFAULT..."),
        ("ALTER TABLE t /* bob", "ALTER TABLE t"),
    ],
)
def test_a_statement_is_shown_without_its_values(sql: str, shown: str) -> None:
    assert without_values(sql) == shown


def test_a_quote_in_a_bracketed_name_begins_no_literal() -> None:
    """I8: literals would be shown, and names hidden in their place."""
    sql = "ALTER TABLE t CHANGE [a'b] x VARCHAR(9) DEFAULT 'SECRET', DROP COLUMN [c'd]"
    assert without_values(sql, BRACKETS) == "ALTER TABLE t CHANGE [a'b] x VARCHAR(9) DEFAULT ***, DROP COLUMN [c'd]"


_PIECES = st.sampled_from(
    ["'", "\\", "'", "\\", '"', "`", " ", "a ", "5", "/*", "*/", "/*!", "-- ", "#", "\n", "CHAR(5) "]
)


@example(before=["*/", "*/", "'", "*/"], after=["'"])
@example(before=["/*!", "*/", "*/", "'", "*/"], after=["'"])
@given(before=st.lists(_PIECES, max_size=12), after=st.lists(_PIECES, max_size=12))
def test_no_value_is_shown_whether_or_not_a_backslash_escapes(before: list[str], after: list[str]) -> None:
    """I8. In a session with NO_BACKSLASH_ESCAPES a literal ends at a quote that in another session is part of it."""
    sql = "".join([*before, "'SECRET'", *after])
    for escapes in (True, False):
        if _is_literal(sql, escapes):
            assert "SECRET" not in without_values(sql), sql


def _is_literal(sql: str, escapes: bool) -> bool:
    """Whether ``'SECRET'`` is a literal of a statement as a server reads it."""
    executed = at = 0
    while at < len(sql):
        if sql.startswith("/*!", at):
            executed += 1
            at += 3
        elif executed and sql.startswith("*/", at):
            executed -= 1
            at += 2
        elif sql.startswith(("/*", "#", "-- "), at):
            end = sql.find("*/" if sql[at] == "/" else "\n", at + 2 if sql[at] == "/" else at)
            if end < 0:
                return False
            at = end + (2 if sql[at] == "/" else 1)
        elif (quote := sql[at]) in "'\"`":
            start = at
            at += 1
            while at < len(sql) and sql[at] != quote:
                at += 2 if escapes and sql[at] == "\\" and quote != "`" else 1
            at += 1
            if sql[start:at] == "'SECRET'":
                return True
        else:
            at += 1
    return False


def test_names_in_double_quotes_are_names_only_under_ansi_quotes() -> None:
    assert [token.text for token in tokens('DROP TABLE "a""b", `c`', ANSI_QUOTES)] == ["DROP", "TABLE", 'a"b', ",", "c"]
    assert [token.text for token in tokens('DROP TABLE "a""b", `c`', 0)] == ["DROP", "TABLE", ",", "c"]


@pytest.mark.parametrize(
    ("comment", "mysql", "mariadb"),
    [
        ("/*! a */", "a", "a"),
        ("/*!a*/", "a", "a"),
        ("/*!40000 a */", "a", "a"),
        ("/*!2024a */", "2024a", "2024a"),
        ("/*!40000 /* x */ a */", "a", "a"),
        ("/*!40000 /* 99999 x */ a */", "a", "a"),
        ("/*M! a */", "", "a"),
        ("/*M!100100a*/", "", "a"),
        ("/*M!100100 /* x */ a", "a", "a"),
        ("/*M!2024a */", "", "2024a"),
        ("/*M 999999 a */", "", ""),
        ("/*m! a */", "", ""),
        ("a --\x7f b", "a", "a"),
        ("/*!090000 a */", "a", "a"),
        ("/*!090000\ta */", "a", "a"),
        ("/*!090000a */", "0a", "a"),
        ("/*!090000*/", "0", ""),
        ("2*/* a */3", "2 * 3", "2 * 3"),
        ("2*/*! a */3", "2 * a 3", "2 * a 3"),
        ("/*! a */*/* b */c", "a * c", "a * c"),
        ("/*! a /*! b */ c */*/* d */", "a b c *", "a b c *"),
    ],
)
def test_a_comment_is_read_as_the_server_reads_it(comment: str, mysql: str, mariadb: str) -> None:
    """I1."""
    for mode, expected in ((0, mysql), (MARIADB, mariadb)):
        assert " ".join(token.text for token in tokens(comment, mode)) == expected, mode


def test_a_value_in_a_comment_that_only_one_server_executes_is_not_shown() -> None:
    """I8: the comment has a quote, which would begin a literal that ends where the value begins."""
    sql = "ALTER TABLE t /*M!999999 ' */ ADD c VARCHAR(9) DEFAULT 'SECRET'"
    assert without_values(sql) == "ALTER TABLE t   ADD c VARCHAR(9) DEFAULT ***"
    assert "SECRET" not in without_values("ALTER TABLE t /*M! ADD d INT DEFAULT '*/' */", MARIADB)
    assert "SECRET" not in without_values("ALTER TABLE t /*! /*! */ ADD c INT DEFAULT (2*/* ' */'SECRET')")


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)
SPACES = st.sampled_from((" ", "\n", "\t ", " /* x */ ", " -- y\n", "/**/", " # `\n", " /*!40000 */ "))


@given(st.lists(st.tuples(st.none() | NAMES, NAMES), min_size=1, max_size=4), st.data())
@settings(deadline=None)
def test_quoted_names_of_any_characters_are_found_between_comments_and_spaces(
    names: list[tuple[str | None, str]], data: st.DataObject
) -> None:
    def space() -> str:
        return data.draw(SPACES)

    def quoted(name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    listed = (f",{space()}").join(
        f"{quoted(table)}{space()}" if database is None else f"{quoted(database)}.{quoted(table)}{space()}"
        for database, table in names
    )
    expected: tuple[Name, ...] = tuple((database or "shop", table) for database, table in names)
    words = [data.draw(st.sampled_from((word.lower(), word))) for word in ("DROP", "TABLE", "IF", "EXISTS")]
    sql = space() + "".join(word + space() for word in words) + listed
    assert classify(sql, "shop") == Classified(Kind.DROP, expected)
