"""One shard, read from a real server of each flavour."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import permutations
from typing import Any

import pytest

from relay.change import Change
from relay.errors import RelayError, Unavailable
from relay.gtid import parse
from relay.mysql.source import MySQLSource
from relay.services.mariadb import MariaDB
from relay.source import STREAMED_PAGE, Page
from tests.mysql.reading import is_mysql, position_of, session
from tests.mysql.shards import begin, ids, open_at, read_to_head, read_until, resume, short, source_of
from tests.reads import read_page
from tests.waiting import wait_until

pytestmark = pytest.mark.services


@pytest.fixture
def table(server: Any, unique: str) -> str:
    """A database of the test's own, with the table ``t``."""
    server.execute(f"CREATE DATABASE {unique}")
    server.execute(f"CREATE TABLE {unique}.t (id INT PRIMARY KEY, v VARCHAR(200))")
    return unique


@pytest.fixture
def source(server: Any, table: str) -> MySQLSource:
    return source_of(table, server)


def transaction(server: Any, *statements: str) -> None:
    connection = server.connect(autocommit=False)
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    connection.commit()
    connection.close()


def test_rows_come_in_order_with_their_images(server: Any, table: str, source: MySQLSource) -> None:
    position = begin(source)["-"]
    transaction(server, f"INSERT {table}.t VALUES (1,'a'),(2,'b')", f"UPDATE {table}.t SET v='c' WHERE id=1")
    server.execute(f"DELETE FROM {table}.t WHERE id=2")
    reader = open_at(source, position)
    changes, pages = read_to_head(reader)
    assert short(changes) == [("INSERT", 1, "a"), ("INSERT", 2, "b"), ("UPDATE", 1, "c"), ("DELETE", 2, None)]
    assert changes[2].old == {"id": 1, "v": "a"}
    places = [(each.transaction.order, each.transaction.last) for each in changes if each.transaction]
    assert places == [(0, False), (1, False), (2, True), (0, True)]
    token = changes[-1].token
    assert token is not None
    assert token.shard == f"shop/{table}/-"
    assert parse(token.position) == parse(position_of(server))
    assert changes[-1].transaction
    assert parse(position_of(server)).contains(parse(changes[-1].transaction.id))
    if not is_mysql(server):
        assert changes[-1].transaction.id in server.gtid.split(",")
    assert pages[-1].position == {"gtid": position_of(server)}
    assert {schema.table for page in pages for schema in page.tables} == {"t"}
    reader.close()


def test_a_change_of_the_key_is_a_delete_and_an_insert(server: Any, table: str, source: MySQLSource) -> None:
    """I2."""
    server.execute(f"INSERT {table}.t VALUES (1,'a')")
    reader = open_at(source, begin(source)["-"])
    server.execute(f"UPDATE {table}.t SET id=7 WHERE id=1")
    changes, _ = read_to_head(reader)
    assert short(changes) == [("DELETE", 1, None), ("INSERT", 7, "a")]
    reader.close()


@pytest.mark.parametrize("server", ["mariadb"], indirect=True)
def test_what_precedes_a_transaction_that_is_refused_is_returned_first(
    server: MariaDB, table: str, source: MySQLSource
) -> None:
    """I1: so that reading can start after it, even if all of it was waiting."""
    position = begin(source)["-"]
    server.execute(f"INSERT {table}.t VALUES (1,'a')")
    before = position_of(server)
    server.execute(f"CREATE OR REPLACE TABLE {table}.t (id INT PRIMARY KEY, v VARCHAR(200)) SELECT 2 AS id, 'b' AS v")
    reader = open_at(source, position)
    changes, pages = read_until(reader, bool)
    assert short(changes) == [("INSERT", 1, "a")]
    assert pages[-1].position == {"gtid": before}
    for _ in range(2):
        with pytest.raises(RelayError, match="replaces the table t and fills it in one transaction"):
            reader.read()
    reader.close()


def test_restarts_anywhere_return_what_one_pass_returns(
    server: Any, table: str, source: MySQLSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3, I4: pages end in the middle of transactions, and readers are closed after any page."""
    random_ = random.Random(7)
    position = begin(source)["-"]
    for _ in range(40):
        statements = []
        for _ in range(random_.choice([1, 1, 2, 30])):
            key, value = random_.randrange(20), "x" * random_.randrange(200)
            statements.append(
                random_.choice(
                    [
                        f"REPLACE {table}.t VALUES ({key},'{value}'),({key + 20},'{value}')",
                        f"UPDATE {table}.t SET v='{value}' WHERE id<{key}",
                        f"DELETE FROM {table}.t WHERE id={key}",
                        f"UPDATE IGNORE {table}.t SET id={key + 40} WHERE id={key}",
                    ]
                )
            )
        transaction(server, *statements)
    reader = open_at(source, position)
    whole, _ = read_to_head(reader)
    reader.close()
    monkeypatch.setattr("relay.mysql.transactions.STREAMED_PAGE", 700)
    found: list[Change] = []
    reader = open_at(source, position)
    inside = 0
    while len(found) < len(whole):
        page = read_page(reader)
        found += page.changes
        assert page.position is not None
        if random_.random() < 0.3:
            inside += "transaction" in page.position
            reader.close()
            reader = resume(source, page.position)
    reader.close()
    assert inside > 3
    assert ids(found) == ids(whole)
    assert [(c.token, c.transaction) for c in found] == [(c.token, c.transaction) for c in whole]


def test_rows_from_before_an_alter_have_the_columns_of_then(server: Any, table: str, source: MySQLSource) -> None:
    """A page has rows of one layout only."""
    reader = open_at(source, begin(source)["-"])
    for number in range(5):
        server.execute(f"INSERT {table}.t (id, v) VALUES ({number},'a')")
        server.execute(f"ALTER TABLE {table}.t ADD COLUMN c{number} INT DEFAULT {number}")
    server.execute(f"UPDATE {table}.t SET v='b' WHERE id=0")
    changes, pages = read_to_head(reader)
    assert [len(each.new or {}) for each in changes] == [2, 3, 4, 5, 6, 7]
    assert_one_layout(pages)
    reader.close()


def assert_one_layout(pages: Sequence[Page]) -> None:
    for page in pages:
        columns = {schema.table: [column.name for column in schema.row or ()] for schema in page.tables}
        for change in page.changes:
            assert list(change.new or {}) == columns["t"]


def test_a_page_has_one_layout_of_a_table_that_is_altered_without_a_statement_in_the_binlog(
    server: Any, table: str, source: MySQLSource
) -> None:
    """I8: both layouts are known after the first round, so nothing else parts their rows."""
    position = begin(source)["-"]
    alter = ("SET SESSION sql_log_bin = 0", f"ALTER TABLE {table}.t {{}}", "SET SESSION sql_log_bin = 1")
    for first in (1, 3, 5):
        transaction(server, f"INSERT {table}.t (id) VALUES ({first})")
        transaction(server, *(each.format("ADD COLUMN c INT") for each in alter))
        transaction(server, f"INSERT {table}.t (id, c) VALUES ({first + 1}, 7)")
        transaction(server, *(each.format("DROP COLUMN c") for each in alter))
    with closing(open_at(source, position)) as reader:
        changes, pages = read_to_head(reader)
    assert [len(each.new or {}) for each in changes] == [2, 3] * 3
    assert_one_layout(pages)


def test_tables_that_are_not_relayed_only_move_the_position(server: Any, table: str) -> None:
    server.execute(f"CREATE TABLE {table}.other (id INT PRIMARY KEY)")
    source = source_of(table, server, tables=["t"])
    reader = open_at(source, begin(source)["-"])
    for number in range(200):
        server.execute(f"INSERT {table}.other VALUES ({number})")
    changes, pages = read_to_head(reader)
    assert changes == []
    assert len(pages) < 20
    assert pages[-1].position == {"gtid": position_of(server)}
    assert pages[-1].reached is not None
    reader.close()


def test_the_head_is_reached_time_and_again_while_only_tables_that_are_not_relayed_are_written_to(
    server: Any, table: str
) -> None:
    """I10: a snapshot ends once its shards have reached what was their head after its last row."""
    server.execute(f"CREATE TABLE {table}.other (id INT PRIMARY KEY AUTO_INCREMENT)")
    source = source_of(table, server, tables=["t"])
    done = threading.Event()

    def write() -> None:
        with closing(server.connect()) as connection, connection.cursor() as cursor:
            while not done.wait(0.01):
                cursor.execute(f"INSERT {table}.other VALUES ()")
                connection.commit()

    writer = threading.Thread(target=write)
    with closing(open_at(source, begin(source)["-"])) as reader:
        writer.start()
        try:
            heads: set[float | None] = set()

            def has_several() -> bool:
                heads.add(read_page(reader).reached)
                return len(heads - {None}) > 2

            wait_until(has_several, 60)
        finally:
            done.set()
            writer.join()


@pytest.mark.parametrize("server", ["mariadb"], indirect=True)
def test_tables_that_are_emptied_are_truncated(server: MariaDB, table: str, source: MySQLSource) -> None:
    reader = open_at(source, begin(source)["-"])
    server.execute(f"CREATE TABLE {table}.u (id INT PRIMARY KEY)")
    server.execute(f"INSERT {table}.u VALUES (1)")
    server.execute(f"TRUNCATE {table}.t")
    server.execute(f"DROP TABLE {table}.t, {table}.u")
    server.execute(f"CREATE OR REPLACE TABLE {table}.u (id INT PRIMARY KEY)")
    server.execute(f"INSERT {table}.u VALUES (2)")
    changes, pages = read_to_head(reader)
    assert [(each.operation.value, each.table) for each in changes] == [
        ("INSERT", "u"),
        ("TRUNCATE", "t"),
        ("TRUNCATE", "t"),
        ("TRUNCATE", "u"),
        ("TRUNCATE", "u"),
        ("INSERT", "u"),
    ]
    assert len(set(ids(changes))) == 6
    again = open_at(source, pages[0].position or {})
    again.close()
    reader.close()


@pytest.mark.parametrize("server", ["mariadb"], indirect=True)
def test_a_large_transaction_takes_the_memory_of_a_page(server: MariaDB, table: str, source: MySQLSource) -> None:
    """I11."""
    reader = open_at(source, begin(source)["-"])
    server.execute(f"INSERT {table}.t SELECT seq, REPEAT('x', 200) FROM {table}.seq_1_to_20000")
    changes, pages = read_until(reader, lambda found: len(found) == 20000)
    assert max(page.counts.size for page in pages) < STREAMED_PAGE + 64_000
    assert len(changes) == 20000
    assert changes[-1].transaction
    assert changes[-1].transaction.last
    reader.close()


def test_a_table_without_a_key_is_skipped_with_one_warning(
    server: Any, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I1."""
    server.execute(f"CREATE TABLE {table}.bare (a INT, b INT)")
    source = source_of(table, server)
    reader = open_at(source, begin(source)["-"])
    server.execute(f"INSERT {table}.bare VALUES (1, 2)")
    server.execute(f"INSERT {table}.t VALUES (1, 'a')")
    changes, _ = read_to_head(reader)
    reader.close()
    assert [each.table for each in changes] == ["t"]
    assert sum(f"{table}.bare are not relayed" in each.getMessage() for each in caplog.records) == 1
    with pytest.raises(RelayError, match=r"bare has no primary key.*key: "):
        source_of(table, server, tables=["bare"])
    keyed = source_of(table, server, tables=["bare"], key=["a", "b"])
    assert [[column.name for column in schema.key] for schema in keyed.tables()] == [["a", "b"]]


def test_what_is_done_to_a_table_without_a_key_stops_no_other_table_until_it_gets_a_key(
    server: Any, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I12."""
    server.execute(
        f"CREATE TABLE {table}.bare (a INT, b INT) PARTITION BY RANGE (a) (PARTITION p VALUES LESS THAN (5), "
        "PARTITION q VALUES LESS THAN (9), PARTITION r VALUES LESS THAN (20))"
    )
    source = source_of(table, server)
    with closing(open_at(source, begin(source)["-"])) as reader:
        server.execute(f"INSERT {table}.bare VALUES (1, 2), (7, 7)")
        server.execute(f"ALTER TABLE {table}.bare DROP PARTITION p")
        server.execute(f"RENAME TABLE {table}.bare TO {table}.other, {table}.other TO {table}.bare")
        server.execute(f"DELETE FROM {table}.bare")
        server.execute(f"ALTER TABLE {table}.bare ADD PRIMARY KEY (a)")
        server.execute(f"INSERT {table}.bare VALUES (7, 7)")
        changes, _ = read_to_head(reader)
        assert [(each.operation.value, each.table) for each in changes] == [("INSERT", "bare")]
        assert "cannot relay that table" not in caplog.text
        server.execute(f"ALTER TABLE {table}.bare DROP PARTITION q")
        with pytest.raises(RelayError, match=rf"rows of {table}\.bare without logging them"):
            read_to_head(reader)


def test_a_configured_key_replaces_a_missing_primary_key(server: Any, table: str) -> None:
    server.execute(f"CREATE TABLE {table}.bare (a INT, v INT)")
    source = source_of(table, server, key={"bare": ["a"]})
    reader = open_at(source, begin(source)["-"])
    server.execute(f"INSERT {table}.bare VALUES (1, 2)")
    changes, _ = read_to_head(reader)
    reader.close()
    assert changes[0].key == {"a": 1}


def test_an_idle_shard_progresses_by_heartbeats(server: Any, source: MySQLSource) -> None:
    reader = open_at(source, begin(source)["-"])
    began = time.time()
    progress = 0.0
    while progress < began:
        page = read_page(reader)
        progress = page.progress or 0.0
        assert progress <= time.time() - 1
    reader.close()


@pytest.mark.parametrize("server", ["mariadb"], indirect=True)
def test_the_planned_columns_are_those_of_the_binlog(server: MariaDB, table: str) -> None:
    """The keys in plans must be those of the rows."""
    types = (
        "k1 VARCHAR(20) CHARACTER SET latin1, k2 BIGINT UNSIGNED, a DECIMAL(12,2), b ENUM('x','y'), c SET('p','q'),"
        " d DATETIME(3), e TIMESTAMP NULL, f JSON, g BINARY(4), h FLOAT, i DOUBLE, j BIT(9), k YEAR, l TIME(2),"
        " m MEDIUMINT UNSIGNED, n BLOB, o TEXT, p DATE, q POINT, r UUID, s INET6, PRIMARY KEY (k2, k1)"
    )
    server.execute(f"CREATE TABLE {table}.types ({types})")
    source = source_of(table, server, tables=["types"])
    planned = source.tables()
    reader = open_at(source, begin(source)["-"])
    server.execute(f"INSERT {table}.types (k1, k2) VALUES ('a', 1)")
    _, pages = read_to_head(reader)
    reader.close()
    assert [schema for page in pages for schema in page.tables] == list(planned)
    assert [column.name for column in planned[0].key] == ["k2", "k1"]


@pytest.mark.parametrize("server", ["mariadb"], indirect=True)
@pytest.mark.parametrize(("granted", "missing"), [*permutations(["BINLOG MONITOR", "SLAVE MONITOR"])])
def test_the_grant_in_an_error_message_is_enough(
    server: MariaDB, table: str, unique: str, granted: str, missing: str
) -> None:
    """MariaDB has privileges of their own for the status of the replication and of the binlog."""
    server.execute(f"CREATE USER {unique}@'%' IDENTIFIED BY 'p'")
    try:
        server.execute(f"GRANT SELECT, REPLICATION SLAVE, {granted} ON *.* TO {unique}@'%'")
        with pytest.raises(Unavailable, match=missing) as raised:
            source_of(table, server, user=unique, password="p")
        (grant,) = re.findall("`(GRANT [^`]*)`", str(raised.value))
        server.execute(grant)
        source = source_of(table, server, user=unique, password="p")
        reader = open_at(source, begin(source)["-"])
        server.execute(f"INSERT {table}.t VALUES (1, 'a')")
        changes, _ = read_to_head(reader)
        assert short(changes) == [("INSERT", 1, "a")]
        reader.close()
    finally:
        server.execute(f"DROP USER {unique}@'%'")


@pytest.mark.parametrize("server", ["mariadb"], indirect=True)
def test_hidden_columns_of_unique_indexes_of_mariadb_are_not_in_rows(server: MariaDB, unique: str) -> None:
    """I8: no SELECT has them, so snapshots and comparisons do not either."""
    with session(server, unique) as execute:
        execute(
            "CREATE TABLE t (id INT PRIMARY KEY, DB_ROW_HASH_1 BIGINT UNSIGNED, b BLOB, v TEXT, UNIQUE (b), UNIQUE (v))"
        )
        source = source_of(unique, server)
        with closing(open_at(source, begin(source)["-"])) as reader:
            execute("INSERT t VALUES (1, 7, 'x', 'a'), (2, 8, NULL, 'b'), (3, NULL, NULL, NULL)")
            execute("UPDATE t SET v = 'c' WHERE id = 1")
            execute("ALTER TABLE t DROP INDEX b, DROP INDEX v")
            changes, pages = read_to_head(reader)
    assert [change.new for change in changes] == [
        {"id": 1, "DB_ROW_HASH_1": 7, "b": b"x", "v": "a"},
        {"id": 2, "DB_ROW_HASH_1": 8, "b": None, "v": "b"},
        {"id": 3, "DB_ROW_HASH_1": None, "b": None, "v": None},
        {"id": 1, "DB_ROW_HASH_1": 7, "b": b"x", "v": "c"},
    ]
    (statement,) = (each for page in pages for each in page.schema_changes)
    after = statement.tables[0].after
    assert after is not None
    assert [column.name for column in after.columns] == ["id", "DB_ROW_HASH_1", "b", "v"]
