"""Statements on tables while a snapshot reads them, before their first row and between two chunks: I1, I7, I10."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.change import MARK
from tests.faults.altered import Altered
from tests.waiting import wait_until

pytestmark = pytest.mark.services

ROWS = 240

STATEMENTS = {
    "emptied": ["truncate table {0}"],
    "refilled": ["truncate table {0}", "insert {0} values (7, 'after'), (230, 'after'), (500, 'after')"],
    "dropped": ["drop table {0}"],
    "made_anew": [
        "drop table {0}",
        "create table {0} (more int, v varchar(40), id bigint primary key)",
        "insert {0} (id, v) values (7, 'after'), (230, 'after')",
    ],
    "renamed": ["rename table {0} to {0}_new"],
    "exchanged": [
        "create table {0}_new like {0}",
        "insert {0}_new select id + 200, concat('after ', id) from {0}",
        "rename table {0} to {0}_old, {0}_new to {0}",
    ],
    "retyped": ["alter table {0} modify id varchar(9)", "update {0} set v = 'after' where id = '7'"],
    "widened": ["alter table {0} add more int default 5 first", "delete from {0} where id in (7, 230)"],
}
"""What happens to a table of this name."""


@pytest.fixture
def altered(tmp_path: Path, kafka: Any, mariadb: Any, unique: str) -> Iterator[Altered]:
    world = Altered(tmp_path, kafka.bootstrap_servers, mariadb, unique)
    yield world
    world.close()


def test_copies_equal_the_tables_whatever_is_done_to_them_during_their_snapshot(altered: Altered) -> None:
    """I1, I7: rows that were read before disappear, and rows that came by another way than changes are read."""
    for what in STATEMENTS:
        altered.fill(f"{what}_now", ROWS)
        altered.fill(f"{what}_first", ROWS // 10)  # the largest are read first
    relay = altered.start("--until-caught-up")
    relay.wait_for("starts, about")
    for what, statements in STATEMENTS.items():
        altered.within(*(each.format(f"{what}_first") for each in statements))
    for what, statements in STATEMENTS.items():
        wait_until(lambda table=f"{what}_now": altered.is_read(table), 120)  # type: ignore[misc]
        altered.within(*(each.format(f"{what}_now") for each in statements))
    assert relay.wait(240) == 0, relay.log()
    altered.catch_up()
    found = {name: altered.copy(name) for name in (*altered.tables(), "dropped_now", "dropped_first", "renamed_now")}
    assert [name for name, rows in found.items() if rows != altered.rows(name)] == []
    assert relay.has_logged("emptied_now, ")


@pytest.mark.parametrize("tables", [None, ["t", "kept"]])
def test_a_table_that_is_dropped_while_the_relay_is_down_ends_in_its_snapshot(
    altered: Altered, tables: list[str] | None
) -> None:
    """I7: copies would keep its rows, and all tombstones, for ever."""
    altered.configure(tables=tables)
    altered.fill("t", ROWS)
    altered.fill("kept", 10)
    relay = altered.start()
    relay.wait_for("starts, about")
    wait_until(lambda: altered.is_read("t"), 120)
    relay.kill()
    altered.within("drop table t")
    altered.catch_up()
    assert (altered.copy("t"), altered.copy("kept")) == ({}, altered.rows("kept"))
    marks = [change["attributes"][MARK] for *_, change in altered.changes("t") if MARK in change["attributes"]]
    assert marks[-1] == "end"
