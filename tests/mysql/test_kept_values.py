"""An ALTER TABLE that may have changed rows is warned of; after any other one the topic has the rows of the table."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import product
from typing import Any

import pymysql
import pytest

from relay.change import Change
from relay.mysql.kind import MySQLTableRows
from relay.mysql_dialect.alter_effects import keeps_values
from tests.mysql.alter_forms import CHANGED, FULL, GENERATED, KEPT, LOOSE, ROWS, TABLE, TYPES
from tests.mysql.reading import session
from tests.mysql.shards import begin, open_at, read_to_head, source_of

pytestmark = pytest.mark.services

STRICT = "STRICT_TRANS_TABLES"


def without_nulls(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def copied(changes: Iterable[Change]) -> dict[str, dict[Any, Any]]:
    """Return the rows by table and key."""
    rows: dict[str, dict[Any, Any]] = {}
    for change in changes:
        assert change.key is not None
        row = rows.setdefault(change.table, {})
        row.pop(change.key["id"], None)
        if change.new is not None:
            row[change.key["id"]] = without_nulls(change.new)
    return rows


class Altering:
    """Tables in a database, each with its statements, which are read from there."""

    def __init__(self, server: Any, database: str, log: pytest.LogCaptureFixture) -> None:
        self.server, self.database, self.log = server, database, log

    def __call__(
        self, mode: str, made: Mapping[str, str], *then: Mapping[str, Sequence[str]]
    ) -> tuple[set[str], set[str]]:
        """Return which tables differ from the topic, and which were warned of.

        ``made``: how each is created. ``then``: statements for each, one kind after another; some may be refused.
        """
        self.log.clear()
        self.server.execute(f"DROP DATABASE IF EXISTS {self.database}")
        with session(self.server, self.database) as execute:
            execute(f"SET sql_mode = '{mode}'")
            for sql in made.values():
                execute(sql)
            source = source_of(self.database, self.server)
            with closing(open_at(source, begin(source)["-"])) as reader:
                read_to_head(reader)
                time.sleep(2.1)  # a statement of the same second may have come before what the server has said
                for statements in then:
                    for table in made:
                        for sql in statements[table]:
                            with suppress(pymysql.MySQLError):
                                execute(sql)
                changes, _ = read_to_head(reader)
        found, differs, source = copied(changes), set(), source_of(self.database, self.server)
        for table in made:
            with closing(MySQLTableRows(source, ["-"], table)) as rows:
                stored = {key["id"]: without_nulls(image) for key, image in rows.all()}
            if found.get(table, {}) != stored:
                differs.add(table)
        return differs, set(re.findall(r"table (\w+) .*, which no change shows", self.log.text))


@pytest.fixture
def altering(server: Any, unique: str, caplog: pytest.LogCaptureFixture) -> Iterator[Altering]:
    yield Altering(server, unique, caplog)
    server.execute(f"DROP DATABASE IF EXISTS {unique}")


@pytest.mark.parametrize("is_kept", [True, False])
def test_the_forms_that_keep_all_values_are_not_warned_of_and_all_others_are(altering: Altering, is_kept: bool) -> None:
    """I7."""
    forms = {f"t_{number}": form for number, form in enumerate(KEPT if is_kept else CHANGED)}
    full = {table: form for table, form in forms.items() if "NOT NULL" in form}
    forms |= {f"{table}_null": form for table, form in full.items()}  # a strict session refuses these
    rows = {table: [ROWS.format(table), *([FULL.format(table)] if table in full else [])] for table in forms}
    made = {table: TABLE.format(table) for table in forms}
    alters = {table: [f"ALTER TABLE {table} {form}"] for table, form in forms.items()}
    differs, warned = altering(STRICT, made, rows, alters)
    assert [forms[table] for table in forms if table in differs - warned] == []
    assert {forms[table] for table in warned} == (set() if is_kept else set(forms.values()))
    if not is_kept:
        assert len(differs) > 0.8 * len(forms)


def test_a_column_that_is_generated_may_have_another_value_when_the_one_it_is_made_of_keeps_its_own(
    altering: Altering,
) -> None:
    """I7: the server computes it anew in all rows, and logs nothing."""
    forms = {f"t_{number}": each for number, each in enumerate(GENERATED.items())}
    made = {
        table: f"CREATE TABLE {table} (id INT PRIMARY KEY, {columns}) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
        for table, (columns, _) in forms.items()
    }
    rows = {table: [f"INSERT {table} (id, c) VALUES (1, 'a'), (2, 'é')"] for table in forms}
    alters = {table: [f"ALTER TABLE {table} {form}"] for table, (_, form) in forms.items()}
    differs, warned = altering(STRICT, made, rows, alters)
    assert differs == warned == set(forms)


def test_a_session_that_is_not_strict_may_change_any_value_of_a_column_that_it_modifies(altering: Altering) -> None:
    """I7."""
    forms = {f"t_{number}": form for number, form in enumerate(LOOSE)}
    made = {table: TABLE.format(table) for table in forms}
    alters = {table: [f"ALTER TABLE {table} {form}"] for table, form in forms.items()}
    differs, warned = altering("", made, {table: [ROWS.format(table)] for table in forms}, alters)
    assert differs == warned == set(forms)


def test_a_type_that_takes_the_place_of_another_without_a_warning_keeps_every_value(altering: Altering) -> None:
    """I7: each value in a table of its own, since one that does not fit would keep the others from being tried."""
    pairs: dict[str, tuple[str, str, str]] = {}
    for old, values in TYPES.items():
        name, parenthesis, inside = re.sub(" CHARACTER SET latin1| NULL", "", old).partition("(")
        known = name.lower() + parenthesis + inside.replace(" UNSIGNED", " unsigned")
        kept = [new for new in TYPES if keeps_values({"w": known}, f"ALTER TABLE t MODIFY w {new}", 1 << 21)]
        pairs.update({f"t_{len(pairs) + at}": each for at, each in enumerate(product([old], kept, values))})
    made = {table: f"CREATE TABLE {table} (id INT PRIMARY KEY, w {old})" for table, (old, _, _) in pairs.items()}
    rows = {table: [f"INSERT {table} VALUES (1, {value}), (2, NULL)"] for table, (*_, value) in pairs.items()}
    alters = {table: [f"ALTER TABLE {table} MODIFY w {new}"] for table, (_, new, _) in pairs.items()}
    differs, warned = altering(STRICT, made, rows, alters)
    assert [pairs[table] for table in differs] == []
    assert [pairs[table] for table in warned] == []
    assert len(pairs) > 100
