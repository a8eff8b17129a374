"""The rows that a table has now are read on the primary, all of them and by their keys."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from relay.config.protection import MASK
from relay.errors import RelayError, Unavailable
from relay.mysql import kind
from relay.mysql.kind import MySQLTableRows
from relay.mysql.source import MySQLSource
from relay.operations.compared_rows import ComparedTable
from tests.mysql.key_types import KEYS
from tests.mysql.reading import session
from tests.mysql.shards import config, source_of

pytestmark = pytest.mark.services


def test_rows_are_found_by_keys_of_every_type(server: Any, unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind, "_CHUNK", 2)
    with session(server, unique) as execute, closing(source_of(unique, server)) as source:
        for name, (columns, rows) in KEYS.items():
            if name == "several":
                continue  # a SET as a key is refused
            table = f"by_{name}"
            names = ", ".join(part.split()[0] for part in columns.split(", "))
            execute(f"create table {table} ({columns}, v int default 7, primary key ({names}))")
            execute(f"insert {table} ({names}) values {rows}")
            with closing(MySQLTableRows(source, ["-"], table)) as found:
                compared = ComparedTable(found.schema)
                every = [compared.of_source(*row) for row in found.all()]
                keys = [row.key for row in every]
                assert len(set(keys)) == len(every) == rows.count("),(") + 1, table
                assert {row.values for row in every} == {("7",)}
                assert {compared.of_source(*row) for row in found.of(keys)} == set(every), table
                for key in keys:
                    assert key in [compared.of_source(*row).key for row in found.of([key])], table
                assert len({compared.of_source(*row).key for row in found.some(2)}) == 2


def test_rows_are_as_they_are_published(mariadb: Any, unique: str) -> None:
    """Without those that `where` leaves out, and without the values of protected columns."""
    rules = {"protect": {"t": {"name": "mask", "card": "exclude"}}, "where": {"t": {"region": "eu"}}}
    with session(mariadb, unique) as execute:
        execute("create table t (region varchar(9), id int, name text, card text, primary key (region, id))")
        execute("insert t values ('eu', 1, 'Ada', '4111'), ('us', 1, 'Bob', '4222')")
        with (
            closing(source_of(unique, mariadb, **rules)) as source,
            closing(MySQLTableRows(source, ["-"], "t")) as rows,
        ):
            published = [({"region": "eu", "id": 1}, {"region": "eu", "id": 1, "name": MASK})]
            assert list(rows.all()) == list(rows.of([("eu", "1"), ("us", "1")])) == list(rows.some(9)) == published


def test_rows_of_what_cannot_be_read_are_refused_with_the_reason(mariadb: Any, unique: str) -> None:
    with session(mariadb, unique) as execute:
        execute("create table t (id int primary key)")
        with (
            closing(source_of(unique, mariadb)) as source,
            pytest.raises(RelayError, match="has no table absent") as lost,
        ):
            MySQLTableRows(source, ["-"], "absent")
        assert not isinstance(lost.value, Unavailable)  # another table may be there
    with (
        closing(MySQLSource(config(unique, {"-": ["127.0.0.1:9"]}))) as source,
        pytest.raises(Unavailable, match=r"no server of shard - is a primary that answers; `shards` lists 127.0.0.1:9"),
    ):
        MySQLTableRows(source, ["-"], "t")
