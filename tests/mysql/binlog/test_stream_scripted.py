"""What a stream makes of a MySQL 8 server's transactions, which a scripted server sends."""

from __future__ import annotations

import struct
import uuid

import pytest

from relay.gtid import parse
from relay.mysql.binlog.events import (
    COMPRESSED_QUERY,
    MARIADB_GTID,
    STANDALONE,
    Commit,
    Rows,
    Statement,
    TransactionBegin,
)
from relay.mysql.errors import NotCarried
from tests.mysql.encoder import event, gtid, query, rows, table_map
from tests.mysql.scripted import SETTINGS
from tests.mysql.scripted_binlogs import (
    COLUMNS,
    DELETE,
    GTID,
    QUERY,
    TABLE_MAP,
    UPDATE,
    XA_PREPARE,
    XID,
    A,
    B,
    inserted,
    read_commits,
    reading_events,
    transaction,
)


@pytest.mark.parametrize(
    ("sql", "is_temporary"),
    [
        (b"TRUNCATE t", True),
        (b"ALTER TABLE t ADD n INT", True),
        (b"RENAME TABLE t TO u", True),
        (b"CREATE INDEX i ON t (n)", True),
        (b"ALTER TABLE t ADD n INT DEFAULT (CONNECTION_ID()), RENAME TO u", False),
        (b"ALTER TABLE t ADD n INT DEFAULT (@@pseudo_thread_id)", False),
        (b"CREATE TABLE t LIKE temporary", False),
        (b"DROP TABLE t", False),
    ],
)
def test_a_statement_about_a_temporary_table_is_about_no_other(sql: bytes, is_temporary: bool) -> None:
    """I7: a flag of MariaDB's event says that it uses one. A table that is filled from one is not one itself."""
    begins = [event(MARIADB_GTID, struct.pack("<QIB6x", number, 0, STANDALONE)) for number in (10, 11)]
    events = [begins[0], event(QUERY, query(sql), flags=4), begins[1], event(QUERY, query(sql))]
    settings = {**SETTINGS, "gtid_domain_id": "0"}
    with reading_events(events, "MariaDB/0-1-9", settings=settings) as (stream, _):
        temporary, other = (each for each in read_commits(stream, 2) if isinstance(each, Statement))
    assert (temporary.classified.temporary, other.classified.temporary) == (is_temporary, False)


@pytest.mark.parametrize(
    ("sql", "mode"), [(b"TRUNCATE TABLE [a`b]", 1 << 10), (b'TRUNCATE "a`b"', 1 << 2), (b"TRUNCATE `a``b`", 1 << 20)]
)
def test_a_statement_has_the_names_that_its_session_has_read(sql: bytes, mode: int) -> None:
    """I1."""
    with reading_events([event(GTID, gtid(A, 10)), event(QUERY, query(sql, mode=mode))]) as (stream, _):
        (statement,) = (each for each in read_commits(stream, 1) if isinstance(each, Statement))
    assert (statement.sql_mode, statement.classified.tables) == (mode, (("shop", "a`b"),))


def test_a_comment_for_mariadb_is_executed_by_mariadb() -> None:
    """I1."""
    sql = event(QUERY, query(b"ALTER TABLE t /*M! RENAME TO u, */ ADD n INT"))
    on_mariadb = [event(MARIADB_GTID, struct.pack("<QIB6x", 10, 0, STANDALONE)), sql]
    with reading_events([event(GTID, gtid(A, 10)), sql]) as (stream, _):
        (altered,) = (each for each in read_commits(stream, 1) if isinstance(each, Statement))
    with reading_events(on_mariadb, "MariaDB/0-1-9", settings={**SETTINGS, "gtid_domain_id": "0"}) as (stream, _):
        (renamed,) = (each for each in read_commits(stream, 1) if isinstance(each, Statement))
    assert (altered.classified.renamed, len(renamed.classified.renamed)) == ((), 1)


def test_a_session_with_the_character_set_binary_has_names_in_utf8() -> None:
    """I1."""
    with reading_events([event(GTID, gtid(A, 10)), event(QUERY, query("TRUNCATE `é`".encode(), charset=63))]) as (
        stream,
        _,
    ):
        (statement,) = (each for each in read_commits(stream, 1) if isinstance(each, Statement))
    assert statement.classified.tables == (("shop", "é"),)


def test_the_flag_of_temporary_tables_says_nothing_in_mysql() -> None:
    """I1: a procedure that has used one sets it for what it does to other tables."""
    events = [event(GTID, gtid(A, 10)), event(QUERY, query(b"TRUNCATE t"), flags=4)]
    with reading_events(events) as (stream, _):
        (statement,) = (each for each in read_commits(stream, 1) if isinstance(each, Statement))
    assert not statement.classified.temporary


def test_an_event_of_another_kind_of_server_is_refused_after_what_was_before_it() -> None:
    """I8: with a checksum that is right."""
    events = [*transaction(10, *inserted(1)), event(MARIADB_GTID, gtid(A, 11))]
    with reading_events(events) as (stream, _):
        assert len(read_commits(stream, 1)) == 3
        with pytest.raises(NotCarried, match="an event is malformed"):
            read_commits(stream, 1)


@pytest.mark.parametrize("stored", [b"\x81\x05garbage", b"\x01\x05of an unknown compression"])
def test_a_compressed_statement_that_is_malformed_is_refused_with_its_place(stored: bytes) -> None:
    """I8: with a checksum that is right."""
    events = [event(GTID, gtid(A, 10)), event(COMPRESSED_QUERY, query(stored))]
    with reading_events(events) as (stream, _), pytest.raises(NotCarried, match=f"GTID {A}:10: an event is malformed"):
        read_commits(stream, 1)


class TestATransaction:
    def test_begins_with_its_gtid_and_the_set_up_to_and_including_it(self) -> None:
        """I4."""
        events = [*transaction(10, *inserted(1)), *transaction(5, *inserted(2), server=B)]
        with reading_events(events) as (stream, _):
            begin, _, _, other, *_ = read_commits(stream, 2)
            assert (begin.gtid, begin.position) == (f"{A}:10", f"MySQL56/{A}:1-10")
            assert (other.gtid, other.position) == (f"{B}:5", f"MySQL56/{A}:1-10,{B}:5")
            assert stream.executed == parse(f"{A}:1-10,{B}:5")

    def test_has_its_rows_before_and_after_each_change(self) -> None:
        body = table_map(7, "shop", "orders", COLUMNS)
        bodies = [
            *inserted(1, 2),
            (TABLE_MAP, body),
            (UPDATE, rows(7, COLUMNS, [(1, b"x"), (1, b"y")], 2)),
            (TABLE_MAP, body),
            (DELETE, rows(7, COLUMNS, [(2, None)])),
        ]
        with reading_events(transaction(10, *bodies)) as (stream, _):
            begin, insert, update, delete, commit = read_commits(stream, 1)
        assert insert.changes == [(None, (1, b"x")), (None, (2, b"x"))]
        assert update.changes == [((1, b"x"), (1, b"y"))]
        assert delete.changes == [((2, None), None)]
        assert (begin.timestamp, commit) == (1_700_000_000, Commit("binlog.000001", 1000))

    def test_has_the_time_of_its_first_commit(self) -> None:
        """I3: a replica has another time of its own."""
        here = event(GTID, gtid(A, 10, immediate=1_700_000_000_123_456))
        replicated = event(GTID, gtid(B, 1, immediate=1_700_000_009_000_000, original=1_700_000_000_654_321))
        end = [event(QUERY, query(b"BEGIN")), event(XID, bytes(8))]
        with reading_events([here, *end, replicated, *end]) as (stream, _):
            first, _, second, _ = read_commits(stream, 2)
        assert (first.committed_at, second.committed_at) == (1_700_000_000_123_456, 1_700_000_000_654_321)

    def test_of_a_ddl_statement_ends_with_it(self) -> None:
        events = [event(GTID, gtid(A, 10)), event(QUERY, query(b"ALTER TABLE orders ADD x int")), *transaction(11)]
        with reading_events(events) as (stream, _):
            found = read_commits(stream, 2)
        assert [type(each) for each in found] == [TransactionBegin, Statement, Commit, TransactionBegin, Commit]
        assert (found[1].sql, found[1].database) == ("ALTER TABLE orders ADD x int", "shop")

    def test_that_makes_a_procedure_which_begins_transactions_ends_with_it(self) -> None:
        made = event(QUERY, query(b"CREATE DEFINER=`root`@`%` PROCEDURE `p`() START TRANSACTION"))
        with reading_events([event(GTID, gtid(A, 10)), made, *transaction(11)]) as (stream, _):
            found = read_commits(stream, 2)
        assert [type(each) for each in found] == [TransactionBegin, Statement, Commit, TransactionBegin, Commit]

    def test_that_creates_a_table_before_a_comment_about_transactions_ends_with_it(self) -> None:
        """I1: what it empties would be dropped with it."""
        made = event(QUERY, query(b"CREATE TABLE `orders` (`id` int) -- START TRANSACTION"))
        with reading_events([event(GTID, gtid(A, 10)), made, *transaction(11)]) as (stream, _):
            found = read_commits(stream, 2)
        assert [type(each) for each in found] == [TransactionBegin, Statement, Commit, TransactionBegin, Commit]

    def test_that_creates_a_table_from_a_query_ends_with_its_rows(self) -> None:
        made = event(QUERY, query(b"CREATE TABLE `orders` (`id` int) START TRANSACTION"))
        events = [event(GTID, gtid(A, 10)), made, *(event(*each) for each in inserted(1)), event(XID, bytes(8))]
        with reading_events(events) as (stream, _):
            assert [type(each) for each in read_commits(stream, 1)] == [TransactionBegin, Statement, Rows, Commit]

    def test_without_an_end_is_dropped_if_it_has_no_rows_and_refused_if_it_has(self) -> None:
        """I1: the server died while it wrote it, so it never committed."""
        cut = [event(GTID, gtid(A, 10)), event(QUERY, query(b"BEGIN"))]
        with reading_events([*cut, *transaction(10, *inserted(1))]) as (stream, _):
            assert [type(each) for each in read_commits(stream, 1)] == [
                TransactionBegin,
                TransactionBegin,
                Rows,
                Commit,
            ]
            assert stream.executed == parse(f"{A}:1-10")
        cut += [event(*each) for each in inserted(1)]
        with (
            reading_events([*cut, *transaction(10)]) as (stream, _),
            pytest.raises(NotCarried, match=r"shop\.orders has no end"),
        ):
            read_commits(stream, 1)

    def test_that_has_no_end_is_not_in_the_position(self) -> None:
        """I4: another one may come under its GTID, from a server that has it."""
        cut = [event(GTID, gtid(A, 10)), event(QUERY, query(b"BEGIN"))]
        with reading_events([*cut, *transaction(11, *inserted(1))]) as (stream, _):
            read_commits(stream, 1)
            assert stream.executed == parse(f"{A}:1-9:11")

    def test_adds_its_gtid_to_the_position_in_whatever_order_servers_commit(self) -> None:
        servers = [str(uuid.UUID(int=each)) for each in (5, 3, 9)]
        numbers = [(server, number) for number in (3, 1, 2, 7, 6, 9) for server in servers]
        events = [each for server, number in numbers for each in transaction(number, server=server)]
        with reading_events(events) as (stream, _):
            begins = [each for each in read_commits(stream, len(numbers)) if isinstance(each, TransactionBegin)]
        seen = parse(f"{A}:1-9")
        for begin, (server, number) in zip(begins, numbers, strict=True):
            seen |= parse(f"{server}:{number}")
            assert begin.position == seen.position


def test_an_xa_transaction_is_returned_once_it_commits_in_one_phase() -> None:
    """I1: MySQL says only after its rows whether it commits."""
    xa = [
        event(GTID, gtid(A, 10)),
        event(QUERY, query(b"XA START X'61',X'',1")),
        *(event(*each) for each in inserted(1, 2)),
        event(QUERY, query(b"XA END X'61',X'',1")),
    ]
    end = event(XA_PREPARE, b"\1" + bytes(12))
    with reading_events([*xa, end, *transaction(11, *inserted(3))]) as (stream, _):
        found = read_commits(stream, 2)
        assert [type(each) for each in found] == [TransactionBegin, Rows, Commit] * 2
        assert [after[0] for each in found if isinstance(each, Rows) for _, after in each.changes if after] == [1, 2, 3]
        assert stream.executed == parse(f"{A}:1-11")
    with reading_events(xa) as (stream, _):
        found = [each for _ in range(3) for each in stream.read(0.1)]
        assert not any(isinstance(each, Rows) for each in found)
