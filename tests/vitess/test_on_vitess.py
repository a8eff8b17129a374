"""Reads the shards of a real Vitess: types, interrupted copies, DDL, reshards."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest

from relay.change import Change, Images, Operation
from relay.errors import RelayError
from relay.gtid import parse
from relay.records import ShardCheckpoint, ShardState
from relay.services.vitess import Vitess, database
from relay.source import Page, UnknownShard
from relay.vitess.client import Vtgate
from relay.vitess.position import VitessShard
from relay.vitess.tablets import Tablets
from relay.vitess.watch import Head
from tests import needs
from tests.mysql.kept_binlogs import purge_binlogs
from tests.vitess.column_values import COLUMNS
from tests.vitess.reading import copying, is_at_head, opened, results_until, summary, until

pytestmark = pytest.mark.services

_TYPES = ", ".join(f"`{name}` {kind}" for name, (kind, _, _) in COLUMNS.items())
_ONE = f"""
create table types (id bigint primary key, {_TYPES});
create table rounded (id bigint primary key, v float);
create table customer (id bigint primary key, v int);
create table other (a int, b varchar(20), v int, primary key (a, b));
create table first (id bigint primary key, v int);
create table empty (id bigint primary key);
create table long_rows (id bigint primary key, v longtext);
create table parts (id bigint primary key, v int)
  partition by range (id) (partition p0 values less than (10), partition p1 values less than maxvalue);
create table last (a int, b varchar(20), v int, primary key (a, b));
"""
_SPLIT = "create table customer (id bigint primary key, v int)"
_VSCHEMA = {
    "sharded": True,
    "vindexes": {"hash": {"type": "hash"}},
    "tables": {"customer": {"column_vindexes": [{"column": "id", "name": "hash"}]}},
}
_BY_SHARD = {"-80": {1, 2}, "80-": {4}}  # of the ids 1, 2 and 4, by the vindex `hash`


@pytest.fixture(scope="module")
def cluster() -> Iterator[Vitess]:
    """A cluster with the keyspaces ``one``, of one shard, and ``split``, of two and a third that reshards lead to."""
    needs.vitess()
    names = ("types", "rounded", "customer", "other", "first", "empty", "long_rows", "parts", "last")
    unsharded = {"sharded": False, "tables": {name: {} for name in names}}
    with Vitess(
        keyspaces={"one": ["0"], "split": ["-80", "80-", "-"]},
        schemas={"one": (_ONE, unsharded), "split": (_SPLIT, _VSCHEMA)},
    ) as vitess:
        yield vitess


@pytest.fixture
def below(cluster: Vitess) -> Iterator[Callable[..., None]]:
    """Return what runs statements in the database of the shard ``one/0``, below Vitess."""
    with closing(cluster.mariadb.connect(database=database("one", "0"), autocommit=True)) as connection:

        def run(*statements: str) -> None:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)

        run("set sql_mode = '', time_zone = '+00:00'")
        yield run
        run("delete from customer", "delete from other")


def head(cluster: Vitess, keyspace: str = "one", shard: str = "0") -> dict[str, str]:
    with closing(Vtgate(cluster.vtgate)) as gate:
        tablets = Tablets(gate, VitessShard("shop", keyspace, shard, f"shop/{keyspace}/{shard}"), "REPLICA")
        asked = Head(tablets, "customer", clock=time.time)
        asked.ask()
        found = asked.poll(120.0)
    assert found is not None
    return {"gtid": found[1].position}


def published(start: Mapping[str, Any]) -> dict[str, ShardCheckpoint]:
    """Return the checkpoints of a keyspace with one shard that is published up to ``start``."""
    return {"0": ShardCheckpoint(ShardState.READING, start)}


def changes(pages: list[Page]) -> list[Change]:
    return [change for page in pages for change in page.changes]


def covers(page: Page, position: str) -> bool:
    """Whether a page ends at ``position`` or later: tablets write to tables of their own at any time."""
    assert page.position is not None
    return parse(page.position["gtid"]).contains(parse(position))


def test_every_type_has_the_written_value_in_the_binlog_and_in_a_copy(
    cluster: Vitess, below: Callable[..., None]
) -> None:
    start = head(cluster)
    values = ", ".join(literal for _, literal, _ in COLUMNS.values())
    below(f"insert into types values (1, {values})")
    with opened(cluster.vtgate, start, keyspace="one", tables=("types",)) as reader:
        (streamed,) = changes(until(reader, is_at_head))
    with copying(cluster.vtgate, lambda: published(start), table="types", keyspace="one") as reader:
        (copied,) = changes(until(reader, lambda page: page.finished))
    assert streamed.new == {"id": 1} | {name: value for name, (_, _, value) in COLUMNS.items()}
    assert copied.new == streamed.new
    assert {name: type(value) for name, value in copied.new.items()} == {
        name: type(value) for name, value in streamed.new.items()
    }


def test_floats_are_exact_in_the_stream_and_refused_in_a_copy(cluster: Vitess, below: Callable[..., None]) -> None:
    start = head(cluster)
    below("insert into rounded values (1, 3.99), (2, 16777215), (3, 0.123456789)")
    with opened(cluster.vtgate, start, keyspace="one", tables=("rounded",)) as reader:
        found = [change.new["v"] for change in changes(until(reader, is_at_head)) if change.new]
    assert found == [3.99, 16777215.0, 0.12345679]
    with (
        copying(cluster.vtgate, lambda: published(start), table="rounded", keyspace="one") as reader,
        pytest.raises(RelayError, match="SELECT rounds a FLOAT"),
    ):
        until(reader, lambda page: page.finished)


def test_changes_carry_their_transaction_and_a_changed_key_makes_two_changes(
    cluster: Vitess, below: Callable[..., None]
) -> None:
    start = head(cluster)
    below("insert into customer values (1, 1), (2, 2)", "update customer set id = 3 where id = 2", "begin")
    below("update customer set v = 5 where id = 1", "update customer set v = 6 where id = 1", "commit")
    below("delete from customer where id = 1")
    with opened(cluster.vtgate, start, keyspace="one") as reader:
        pages = until(reader, is_at_head)
        found = changes(pages)
    seen = [
        (c.operation.value, c.key["id"], c.transaction.order, c.transaction.last)
        for c in found
        if c.key and c.transaction
    ]
    assert seen == [
        ("INSERT", 1, 0, False),
        ("INSERT", 2, 1, True),
        ("DELETE", 2, 0, False),
        ("INSERT", 3, 1, True),
        ("UPDATE", 1, 0, False),
        ("UPDATE", 1, 1, True),
        ("DELETE", 1, 0, True),
    ]
    assert len({change.event_id for change in found}) == len(found)
    assert all(change.token and change.token.timestamp for change in found)
    assert found[-1].token is not None
    assert covers(pages[-1], found[-1].token.position)
    with opened(cluster.vtgate, start, keyspace="one", page_bytes=1) as reader:
        assert summary(until(reader, is_at_head)) == summary(pages)


def test_altered_truncated_and_dropped_tables_are_followed(cluster: Vitess, below: Callable[..., None]) -> None:
    start = head(cluster)
    tables = ("customer", "other")
    with opened(cluster.vtgate, start, keyspace="one", tables=tables) as reader:
        below("insert into customer values (1, 1)")
        pages = until(reader, lambda page: bool(page.changes))
        below(
            "alter table customer add column extra varchar(10) default 'x'", "insert into customer values (2, 2, 'y')"
        )
        pages += until(reader, lambda page: bool(page.changes))
        below("alter table customer drop column extra", "insert into customer values (3, 3)")
        pages += until(reader, lambda page: bool(page.changes))
        below("truncate table customer", "insert into other values (1, 'b', 1)")
        pages += until(reader, lambda page: any(change.table == "other" for change in page.changes))
    assert [(c.operation.value, c.table, c.new) for c in changes(pages)] == [
        ("INSERT", "customer", {"id": 1, "v": 1}),
        ("INSERT", "customer", {"id": 2, "v": 2, "extra": "y"}),
        ("INSERT", "customer", {"id": 3, "v": 3}),
        ("TRUNCATE", "customer", None),
        ("INSERT", "other", {"a": 1, "b": "b", "v": 1}),
    ]
    assert [schema.table for schema in pages[-1].tables][-1] == "other"


def test_dropping_a_partition_is_refused(cluster: Vitess, below: Callable[..., None]) -> None:
    start = head(cluster)
    below("insert into parts values (1, 1), (20, 1)", "alter table parts drop partition p0")
    with opened(cluster.vtgate, start, keyspace="one", tables=("parts",)) as reader:
        assert len(changes(until(reader, lambda page: bool(page.changes)))) == 2
        with pytest.raises(
            RelayError, match=r"adds, removes or replaces rows of parts.*'alter table parts drop partition p0'"
        ):
            until(reader, is_at_head)


def test_create_table_select_and_a_drop_by_rename_are_published(
    cluster: Vitess, below: Callable[..., None], unique: str
) -> None:
    start = head(cluster)
    held = "_vt_hld_6ace8bcef73211ea87e9f875a4d24e90_20200915120410_"
    below("insert into customer values (1, 1), (2, 2), (3, 3)")
    below(f"create table {unique} (id bigint primary key, v int) select id, v from customer")
    try:
        with opened(cluster.vtgate, start, keyspace="one", tables=("customer", unique), page_bytes=1) as reader:
            pages = until(reader, is_at_head)
            below(f"rename table {unique} to {held}")
            pages += until(reader, lambda page: bool(page.changes))
    finally:
        below(f"drop table if exists {unique}, {held}")
    assert [(c.operation.value, c.table, c.key and c.key["id"]) for c in changes(pages)] == [
        *(("INSERT", "customer", number) for number in (1, 2, 3)),
        *(("INSERT", unique, number) for number in (1, 2, 3)),
        ("TRUNCATE", unique, None),
    ]


def test_partly_logged_old_rows_are_refused(cluster: Vitess, below: Callable[..., None]) -> None:
    below("insert into long_rows values (99, 'x')", "alter table long_rows modify v longtext not null")
    try:
        start = head(cluster)
        below("set session binlog_row_image = 'NOBLOB'", "delete from long_rows where id = 99")
        with (
            opened(cluster.vtgate, start, keyspace="one", tables=("long_rows",)) as reader,
            pytest.raises(RelayError, match=r"a row of long_rows in .* lacks some of its columns"),
        ):
            until(reader, is_at_head)
    finally:
        below("set session binlog_row_image = 'FULL'", "alter table long_rows modify v longtext")


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_columns_of_a_deleted_row_that_may_not_have_been_logged_are_not_taken_for_null(
    cluster: Vitess, below: Callable[..., None], image: str
) -> None:
    """I8: VStream sends them as NULL, and does not say that a session's row image left them out."""
    below("insert into long_rows values (97, 'x')")
    start = head(cluster)
    below(f"set session binlog_row_image = '{image}'", "delete from long_rows where id = 97")
    try:
        with opened(cluster.vtgate, start, keyspace="one", tables=("long_rows",)) as reader:
            (deleted,) = changes(until(reader, is_at_head))
    finally:
        below("set session binlog_row_image = 'FULL'")
    assert (deleted.operation, deleted.key) == (Operation.DELETE, {"id": 97})
    assert (deleted.old, deleted.images) == (None, Images.KEYS_ONLY)


def test_changes_of_other_databases_only_advance_the_position(cluster: Vitess, below: Callable[..., None]) -> None:
    start = head(cluster)
    for number in range(30):
        cluster.execute(f"insert into customer (id, v) values ({100 + number}, 1)", "split")
    cluster.execute("delete from customer", "split")
    below("insert into customer values (7, 7)")
    after = head(cluster)["gtid"]
    with opened(cluster.vtgate, start, keyspace="one") as reader:
        pages = until(reader, is_at_head)
    assert [change.key for change in changes(pages)] == [{"id": 7}]
    assert covers(pages[-1], after)


def test_a_statement_over_several_shards_is_a_transaction_in_each(cluster: Vitess) -> None:
    starts = {shard: head(cluster, "split", shard) for shard in _BY_SHARD}
    cluster.execute("insert into customer (id, v) values (1, 1), (2, 2), (4, 4)", "split")
    transactions = set()
    for shard, start in starts.items():
        with opened(cluster.vtgate, start, keyspace="split", shard=shard) as reader:
            found = changes(until(reader, is_at_head))
        assert {change.key["id"] for change in found if change.key} == _BY_SHARD[shard]
        transactions |= {change.transaction.id for change in found if change.transaction}
    assert len(transactions) == 2
    cluster.execute("delete from customer", "split")


@pytest.mark.parametrize(
    ("table", "columns", "key"), [("first", "id, v", "{0}"), ("last", "a, b, v", "{0}, 'k'"), ("empty", "id", "")]
)
def test_a_copy_whose_reader_restarts_at_any_page_reads_each_row_once_beside_its_changes(
    cluster: Vitess, below: Callable[..., None], table: str, columns: str, key: str
) -> None:
    """I1, I3, I7: rows change, and are deleted, before and behind the place where it stands."""
    chance, rows = random.Random(1), 30_000 if key else 0
    for first in range(0, rows, 5000):
        values = ",".join(f"({key.format(number)}, {number})" for number in range(first, first + 5000))
        below(f"insert into {table} ({columns}) values {values}")
    start, of = head(cluster), columns.partition(",")[0]
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(0.01):
            below(
                f"update {table} set v = {chance.randrange(1 << 30)} where {of} = {chance.randrange(rows)}",
                f"delete from {table} where {of} = {chance.randrange(rows)}",
            )

    writer = threading.Thread(target=write)
    if key:
        writer.start()
    read: dict[int, Change] = {}
    page: Page | None = None
    try:
        while page is None or not page.finished:
            at = published(head(cluster))
            with copying(cluster.vtgate, at.copy, table=table, keyspace="one", after=page, wait=0.2) as reader:
                for _ in range(random.randint(2, 6)):
                    result = reader.read()
                    if not isinstance(result, Page):
                        continue  # the tablet is behind for a moment
                    page = result
                    for change in page.changes:
                        assert change.key is not None
                        assert change.key[of] not in read
                        read[change.key[of]] = change
                    if page.finished:
                        break
    finally:
        stop.set()
        if key:
            writer.join()
    with opened(cluster.vtgate, start, keyspace="one", tables=(table,)) as stream:
        streamed = changes(until(stream, is_at_head))
    state = {number: change.new for number, change in read.items()}
    deleted = set()
    for change in streamed:
        assert change.key is not None
        state[change.key[of]] = change.new
        deleted |= {change.key[of]} if change.new is None else set()
    with closing(cluster.mariadb.connect(database=database("one", "0"))) as connection, connection.cursor() as cursor:
        cursor.execute(f"select * from `{table}`")
        truth = cursor.fetchall()
    assert sorted(row[of] for row in state.values() if row) == sorted(row[0] for row in truth)
    if key:
        assert {row[of]: row["v"] for row in state.values() if row} == {row[0]: row[-1] for row in truth}
        assert 0 < len(deleted) < rows
    assert len(read) >= len(truth)
    assert page.position is not None
    assert page.position["rows"] == len(read)
    below(f"delete from `{table}`")


@pytest.mark.parametrize(
    ("participants", "targets"), [(["-80"], ["-"]), (["-80", "80-"], ["-"]), (["-"], ["-80", "80-"])]
)
def test_shards_end_at_the_journal_of_their_reshard(
    cluster: Vitess, participants: list[str], targets: list[str]
) -> None:
    starts = {shard: head(cluster, "split", shard) for shard in participants}
    cluster.execute("insert into customer (id, v) values (1, 1), (2, 2), (4, 4)", "split")
    at = cluster.position
    number = cluster.journal([("split", shard) for shard in participants], [("split", shard) for shard in targets])
    cluster.execute("delete from customer", "split")
    for shard, start in starts.items():
        with opened(cluster.vtgate, start, keyspace="split", shard=shard) as reader:
            pages = until(reader, lambda page: page.finished)
        assert {change.key["id"] for change in changes(pages) if change.key} == _BY_SHARD.get(shard, set())
        journal = pages[-1].journal
        assert journal is not None
        assert (journal.id, set(journal.participants)) == (str(number), set(participants))
        assert journal.targets == {target: {"gtid": at} for target in targets}


def test_a_future_position_is_refused_and_an_unknown_shard_is_reported(cluster: Vitess) -> None:
    future = head(cluster)["gtid"].rpartition("-")[0] + "-999999"
    with (
        opened(cluster.vtgate, {"gtid": future}, keyspace="one", silence=1.0) as reader,
        pytest.raises(RelayError, match=f"never executed {future}, and is at MariaDB/"),
    ):
        until(reader, lambda page: False)
    with opened(cluster.vtgate, head(cluster), keyspace="one", shard="40-80") as reader:
        assert results_until(reader, lambda read: isinstance(read, UnknownShard))


def test_purged_binlogs_are_a_gap(cluster: Vitess, below: Callable[..., None]) -> None:
    start = head(cluster)
    below("insert into customer values (1, 1)", "flush binary logs", "insert into customer values (2, 2)")
    purge_binlogs(cluster.mariadb)
    with opened(cluster.vtgate, start, keyspace="one", silence=1.0) as reader:
        pages = until(reader, lambda page: page.gap is not None)
        below("insert into customer values (3, 3)")
        after = until(reader, lambda page: bool(page.changes))
    assert pages[-1].gap is not None
    assert pages[-1].gap.begin == start
    assert [change.key for change in changes(after)] == [{"id": 3}]
