"""Snapshots of tables whose primary key is altered between two chunks: no row is left out (I1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from relay.mysql.source import MySQLSource
from relay.records import ShardCheckpoint
from relay.source import Page
from tests.mysql.reading import NUMBERS, session
from tests.mysql.segments import head, segment_of
from tests.mysql.shards import source_of
from tests.reads import read_page, reason

pytestmark = pytest.mark.services

ROWS = 900  # more than the first chunk has
TEXT = "concat(char(97 + n div 40), lpad(n, 4, '0'))"
MIXED = f", if(n % 2, upper({TEXT}), {TEXT}), n"
NUMBER = ", n, n"
CHOICE = ", elt(1 + (n > 450), 'first', 'last'), n"

ALTERED = {
    "numbers become texts": ("a int, b int", "a", NUMBER, ["modify a varchar(20)"]),
    "another collation": (
        "a varchar(20) collate utf8mb4_general_ci, b int",
        "a",
        MIXED,
        ["modify a varchar(20) collate utf8mb4_bin"],
    ),
    "members in another order": ("a enum('first', 'last'), b int", "a, b", CHOICE, ["modify a enum('last', 'first')"]),
    "a column more in front": ("a int, b int", "a", ", n, 1000 - n", ["drop primary key, add primary key (b, a)"]),
    "a column less": ("a int, b int", "a, b", ", n, n", ["drop primary key, add primary key (b)"]),
    "another column": ("a int, b int", "a", ", n, 1000 - n", ["drop primary key, add primary key (b)"]),
    "another name": ("a int, b int", "a", NUMBER, ["change a c int"]),
    "a wider type": ("a int, b int", "a", NUMBER, ["modify a bigint"]),
}
"""Columns of a table, its key, the values of row ``n``, and what is altered of it."""


@contextmanager
def begun(
    mariadb: Any, database: str, columns: str, key: str, values: str
) -> Iterator[tuple[Any, MySQLSource, ShardCheckpoint, Any]]:
    """Yield what runs statements, a source of a table with `ROWS`, its committed head, and the reader of a snapshot."""
    with session(mariadb, database) as execute:
        execute(f"create table t (n int unique, {columns}, primary key ({key}))")
        execute(f"insert t {NUMBERS.format(ROWS, values)}")
        source = source_of(database, mariadb, tables=["t"], key={"t": ["n"]})
        published = head(source)
        yield execute, source, published, segment_of(source, published, "t")


def numbers(pages: Sequence[Page]) -> list[int]:
    return [change.new["n"] for page in pages for change in page.changes if change.new is not None]


def rest(source: MySQLSource, published: ShardCheckpoint, position: Mapping[str, Any] | None) -> list[Page]:
    """Read the pages after ``position``, as a worker that has taken over."""
    return pages_of(segment_of(source, published, "t", position))


def pages_of(reader: Any) -> list[Page]:
    """Read what is left, and close the reader."""
    pages = [read_page(reader)]
    while not pages[-1].finished:
        pages.append(read_page(reader))
    reader.close()
    return pages


@pytest.mark.parametrize("name", ALTERED)
@pytest.mark.parametrize("is_taken_over", [False, True])
def test_every_row_is_read_although_the_key_is_altered_between_two_chunks(
    mariadb: Any, unique: str, name: str, is_taken_over: bool
) -> None:
    """I1, I7: a copy would delete at the end mark what was left out."""
    columns, key, values, altered = ALTERED[name]
    with begun(mariadb, unique, columns, key, values) as (execute, source, published, reader):
        pages = [read_page(reader)]
        assert not pages[0].finished
        for what in altered:
            execute(f"alter table t {what}")
        if is_taken_over:
            pages += rest(source, published, pages[0].position)
        else:
            while not pages[-1].finished:
                result = reader.read()
                if isinstance(result, Page):  # a column that it asked for may be gone
                    pages.append(result)
        reader.close()
    assert set(numbers(pages)) == set(range(1, ROWS + 1))
    assert pages[-1].position is not None
    assert pages[-1].position["rows"] <= ROWS
    in_order = numbers(pages[1:])
    assert len(in_order) == len(set(in_order))


def test_a_table_whose_key_stays_is_not_read_from_its_begin_again(mariadb: Any, unique: str) -> None:
    """I3"""
    with begun(mariadb, unique, "a int, b int", "a", NUMBER) as (execute, source, published, reader):
        first = read_page(reader)
        reader.close()
        execute("alter table t add more int first, modify b bigint, drop index n, add unique (n)")
        pages = [first, *rest(source, published, first.position)]
    assert numbers(pages) == list(range(1, ROWS + 1))


def test_a_table_without_its_key_is_waited_for_and_the_changes_go_on(mariadb: Any, unique: str) -> None:
    """I1, I10: only the snapshot waits for a person, and says for what."""
    with begun(mariadb, unique, "a int, b int", "a", NUMBER) as (execute, _, _, reader):
        pages = [read_page(reader)]
        execute("alter table t drop primary key")
        while "has no primary key" not in (why := reason(reader.read())):
            assert "PRIMARY" in why
        execute("alter table t add primary key (b)")
        pages += pages_of(reader)
    assert set(numbers(pages)) == set(range(1, ROWS + 1))
