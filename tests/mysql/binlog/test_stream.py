"""What a stream makes of the transactions of real servers."""

from __future__ import annotations

import threading
import tracemalloc
from contextlib import closing
from typing import Any

import pytest

from relay.errors import RelayError
from relay.gtid import parse
from relay.mysql.binlog import files
from relay.mysql.binlog.events import Commit, Heartbeat, Rows, Statement, TransactionBegin
from relay.mysql.errors import BinlogPurged, Closed, Diverged, Interrupted
from relay.mysql_dialect.statements import Kind, classify
from relay.services.mariadb import MariaDB
from tests.mysql.kept_binlogs import binlogs, purge_binlogs
from tests.mysql.reading import NUMBERS, connected, is_mysql, position_of, reading, session
from tests.mysql.server import MySQL

pytestmark = pytest.mark.services

# What bounds a recursive query.
LIMIT = {"MariaDB": "max_recursive_iterations", "MySQL": "cte_max_recursion_depth"}


class TestATransaction:
    def test_comes_from_begin_to_commit_with_the_position_after_it(self, server: Any, unique: str) -> None:
        """I4."""
        with session(server, unique) as execute, reading(server, unique) as reader:
            execute("CREATE TABLE t (id INT PRIMARY KEY, n INT)")
            execute("INSERT INTO t VALUES (1, 1), (2, 2)")
            execute("UPDATE t SET n = n + 1")
            execute("UPDATE t SET id = 9 WHERE id = 1")
            found = reader.transactions()
            ((now,),) = execute("SELECT UNIX_TIMESTAMP(NOW(6))")
            executed = parse(server.gtid)
            assert reader.stream.executed == executed
        assert [type(each) for each in found] == [
            TransactionBegin,
            Statement,
            Commit,
            *[TransactionBegin, Rows, Commit] * 3,
        ]
        begins = [each for each in found if isinstance(each, TransactionBegin)]
        assert begins[-1].position == position_of(server)
        for begin in begins:
            assert executed.contains(parse(begin.gtid))
            if is_mysql(server):
                assert begin.committed_at is not None
                assert now - 60 < begin.committed_at / 1e6 <= now
            else:
                assert begin.committed_at is None
        if not is_mysql(server):
            assert begins[-1].gtid in server.gtid.split(",")
        rows = [each for each in found if isinstance(each, Rows)]
        assert [each.changes for each in rows] == [
            [(None, (1, 1)), (None, (2, 2))],
            [((1, 1), (1, 2)), ((2, 2), (2, 3))],
            [((1, 2), (9, 2))],
        ]
        assert {each.table.name for each in rows} == {"t"}

    def test_has_the_rows_that_were_committed(self, server: Any, unique: str) -> None:
        """I1: savepoints rolled back, tables without transactions, XA in one phase, a table from a query."""
        # MySQL refuses to mix tables with and without transactions where GTIDs are consistent.
        rolled_back = () if is_mysql(server) else ("BEGIN", "INSERT INTO t VALUES (4)")
        with session(server, unique) as execute, reading(server, unique) as reader:
            execute("CREATE TABLE t (id INT PRIMARY KEY)")
            execute("CREATE TABLE plain (id INT PRIMARY KEY) ENGINE=MyISAM")
            for statement in (
                "BEGIN",
                "INSERT INTO t VALUES (1)",
                "SAVEPOINT a",
                "INSERT INTO t VALUES (2)",
                "ROLLBACK TO a",
                "INSERT INTO t VALUES (3)",
                "COMMIT",
                *rolled_back,
                "INSERT INTO plain VALUES (5)",
                "ROLLBACK",
                "XA START 'x'",
                "INSERT INTO t VALUES (6)",
                "XA END 'x'",
                "XA COMMIT 'x' ONE PHASE",
                "CREATE TABLE copied (id INT PRIMARY KEY) SELECT id FROM t WHERE id = 1",
                "CREATE TEMPORARY TABLE passing (id INT)",
                "INSERT INTO passing VALUES (7)",
                "REPLACE INTO t VALUES (1)",
                "INSERT INTO t VALUES (6) ON DUPLICATE KEY UPDATE id = 8",
            ):
                execute(statement)
            found = reader.transactions()
        rows = [change for each in found if isinstance(each, Rows) for change in each.changes]
        assert rows == [*((None, (each,)) for each in (1, 3, 5, 6, 1)), ((6,), (8,))]
        begins, commits = (sum(isinstance(each, kind) for each in found) for kind in (TransactionBegin, Commit))
        assert begins == commits

    def test_of_a_statement_has_its_text_and_what_it_means(self, server: Any, unique: str) -> None:
        with session(server, unique) as execute:
            execute('CREATE TABLE `gr"ö``ße` (id INT PRIMARY KEY)')
            with reading(server, unique) as reader:
                execute("SET sql_mode = 'ANSI_QUOTES'")
                execute('/* "x" */ TRUNCATE "gr""ö`ße"')
                execute("SET sql_mode = ''")
                with closing(server.connect(database=unique, charset="latin1")) as other, other.cursor() as cursor:
                    cursor.execute('RENAME TABLE `gr"ö``ße` TO `é`')
                execute("ALTER TABLE `é` ADD COLUMN n INT, ALGORITHM=INSTANT")
                execute("ALTER TABLE `é` RENAME TO f")
                execute("DROP TABLE IF EXISTS f, g")
                execute(f"DROP DATABASE {unique}")
                statements = [each for each in reader.transactions() if isinstance(each, Statement)]
        said = [classify(each.sql, each.database, each.sql_mode) for each in statements]
        assert [(each.kind, each.tables[:1]) for each in said][:3] == [
            (Kind.TRUNCATE, ((unique, 'gr"ö`ße'),)),
            (Kind.RENAME, ((unique, 'gr"ö`ße'),)),
            (Kind.ALTER, ((unique, "é"),)),
        ]
        assert said[-1].kind is Kind.DROP_DATABASE
        assert said[1].renamed[0][1] == (unique, "é")
        assert said[3].renamed[0] == ((unique, "é"), (unique, "f"))
        assert (unique, "f") in {table for each in said[4:-1] for table in each.tables}

    def test_of_mariadb_moves_the_position_in_its_own_domain(self, mariadb: Any, unique: str) -> None:
        """I4."""
        with session(mariadb, unique) as execute, reading(mariadb, unique) as reader:
            execute("CREATE TABLE t (id INT PRIMARY KEY)")
            for domain in (7, 0, 9, 7):
                execute(f"SET gtid_domain_id = {domain}")
                execute("INSERT INTO t SELECT COUNT(*) FROM t")
            reader.transactions()
            assert reader.stream.executed == parse(mariadb.gtid)
            start = reader.stream.executed
            execute("INSERT INTO t VALUES (77)")
            with reading(mariadb, unique, start=start) as again:
                assert again.rows() == [(77,)]

    def test_of_another_database_comes_without_its_rows(self, server: Any, unique: str) -> None:
        """I4: the position advances."""
        with session(server, unique) as execute, reading(server, "another") as reader:
            execute("CREATE TABLE t (id INT PRIMARY KEY)")
            execute("INSERT INTO t VALUES (1)")
            assert [type(each) for each in reader.transactions()] == [
                TransactionBegin,
                Statement,
                Commit,
                TransactionBegin,
                Commit,
            ]
            assert reader.stream.executed == parse(server.gtid)

    def test_of_ten_thousand_rows_takes_the_memory_of_few(self, server: Any, unique: str) -> None:
        """I11."""
        with session(server, unique) as execute:
            execute("CREATE TABLE t (id INT PRIMARY KEY, payload CHAR(200))")
            execute(f"SET {LIMIT[type(server).__name__]} = 100000")
            with reading(server, unique) as reader:
                execute("INSERT INTO t " + NUMBERS.format(10000, ", repeat('x', 200)"))
                execute("DELETE FROM t")
                tracemalloc.start()
                try:
                    count = sum(len(each.changes) for each in reader.each() if isinstance(each, Rows))
                    _, peak = tracemalloc.get_traced_memory()
                finally:
                    tracemalloc.stop()
        assert count == 20_000
        assert peak < 4 << 20


class TestAStream:
    def test_continues_exactly_after_any_transaction(self, server: Any, unique: str) -> None:
        """I1, I3."""
        with session(server, unique) as execute, reading(server, unique) as reader:
            execute("CREATE TABLE t (id INT PRIMARY KEY)")
            for number in range(5):
                execute(f"INSERT INTO t VALUES ({number})")
            positions = [each.position for each in reader.transactions() if isinstance(each, TransactionBegin)][1:]
            for number, position in enumerate(positions):
                with reading(server, unique, start=parse(position)) as again:
                    assert again.rows() == [(rest,) for rest in range(number + 1, 5)]

    def test_has_heartbeats_with_their_times(self, server: Any, unique: str) -> None:
        """I10."""
        with reading(server, unique) as reader:
            times: list[float] = []
            while not times:  # a server that has just started does not know the time of its log
                times = [
                    each.timestamp for each in reader.stream.read(5) if isinstance(each, Heartbeat) and each.timestamp
                ]
            (now,) = server.execute("SELECT UNIX_TIMESTAMP(NOW(6))")[0]
        assert now - 60 < times[-1] < now

    def test_is_interrupted_when_the_server_dies_and_continues_when_it_is_back(self, own: Any, unique: str) -> None:
        """I1."""
        with session(own, unique) as execute:
            execute("CREATE TABLE t (id INT PRIMARY KEY)")
            with reading(own, unique) as reader:
                execute("INSERT INTO t VALUES (1)")
                assert reader.rows() == [(1,)]
                executed = reader.stream.executed
                own.kill()
                with pytest.raises(Interrupted):
                    reader.until_it_fails()
        own.restart()
        with session(own, unique) as execute, reading(own, unique, start=executed) as reader:
            execute("INSERT INTO t VALUES (2)")
            assert reader.rows() == [(2,)]

    def test_has_rows_that_are_longer_than_a_packet(self, own: Any, unique: str) -> None:
        """I1."""
        sizes = [(1 << 24) - 100, (1 << 24) - 1, 1 << 24, 20_000_000]
        with session(own, unique) as execute, reading(own, unique) as reader:
            execute("CREATE TABLE t (id INT PRIMARY KEY, payload LONGBLOB)")
            for size in sizes:
                execute(f"INSERT INTO t VALUES ({size}, repeat('x', {size}))")
            rows = reader.rows()
        assert [(row[0], len(row[1])) for row in rows if row] == [(size, size) for size in sizes]

    def test_continues_in_the_next_file(self, own: Any, unique: str) -> None:
        with session(own, unique) as execute, reading(own, unique) as reader:
            execute("CREATE TABLE t (id INT PRIMARY KEY)")
            execute("INSERT INTO t VALUES (1)")
            before = own.gtid
            execute("FLUSH BINARY LOGS")
            execute("INSERT INTO t VALUES (2)")
            found = list(reader.each())
            with connected(own) as connection:
                looked = [files.look_into(connection, name) for name in connection.binlogs()]
                with pytest.raises(BinlogPurged):
                    files.look_into(connection, "binlog.999999")
        assert [event.changes[0][1] for event in found if isinstance(event, Rows)] == [(1,), (2,)]
        assert [event.file for event in found if isinstance(event, Commit)][-1] == binlogs(own)[-1]
        assert looked[-1].before == parse(before)
        assert not looked[0].before
        assert looked[0].begun <= looked[-1].begun

    def test_can_be_closed_by_another_thread(self, server: Any, unique: str) -> None:
        with reading(server, unique) as reader:
            failures: list[Exception] = []

            def read() -> None:
                try:
                    while True:
                        reader.stream.read(30)
                except RelayError as fault:
                    failures.append(fault)

            thread = threading.Thread(target=read)
            thread.start()
            reader.stream.close()
            thread.join(120)
            assert not thread.is_alive()
            assert type(failures[0]) is Closed

    def test_raises_what_was_purged_and_what_the_server_never_had(self, own: Any, unique: str) -> None:
        """I9."""
        with session(own, unique) as execute:
            execute("CREATE TABLE t (id INT PRIMARY KEY)")
            start = parse(own.gtid)
            execute("INSERT INTO t VALUES (1)")
            purge_binlogs(own)
            with reading(own, unique, start=start) as reader, pytest.raises(BinlogPurged, match=r"purged.*1236"):
                reader.transactions()
            with connected(own) as connection:
                assert files.purged(connection) == parse(own.gtid)
            ahead, message = (
                (f"{own.uuid}:1-1000", "more GTIDs than") if is_mysql(own) else ("0-1-1000", "not in the master")
            )
            with reading(own, unique, start=parse(ahead)) as reader, pytest.raises(Diverged, match=message):
                reader.until_it_fails()
            # MySQL does not report transactions of other servers.
            last = f"{own.gtid},24da167a-0c0c-11e8-8442-00059a3c7b00:1-7" if is_mysql(own) else f"0-{own.server_id}-3"
            execute("INSERT INTO t VALUES (2)")
            with reading(own, unique, start=parse(last)) as reader:
                assert reader.rows() == [(2,)]

    @pytest.mark.parametrize(
        ("kind", "options"),
        [
            (MariaDB, {"log-bin-compress": 1, "log-bin-compress-min-len": 10}),
            (MariaDB, {"binlog-checksum": "NONE"}),
            (MariaDB, {"binlog-annotate-row-events": 1, "binlog-row-event-max-size": 1024}),
            (MySQL, {"binlog-checksum": "NONE", "binlog-rows-query-log-events": 1}),
            (
                MySQL,
                {"binlog-row-event-max-size": 1024, "binlog-encryption": 0, "sql-generate-invisible-primary-key": 1},
            ),
        ],
    )
    def test_reads_binlogs_with_other_settings(self, kind: Any, options: dict[str, str | int], unique: str) -> None:
        """I1."""
        with kind(options=options) as server, session(server, unique) as execute, reading(server, unique) as reader:
            execute("CREATE TABLE t (id INT PRIMARY KEY, payload TEXT)")
            execute("INSERT INTO t " + NUMBERS.format(200, ", repeat('x', 300)"))
            execute("UPDATE t SET payload = repeat('y', 3000) WHERE id < 3")
            execute("DELETE FROM t WHERE id = 1")
            changes = reader.changes()
        assert [after for _, after in changes[:200]] == [(each, "x" * 300) for each in range(1, 201)]
        assert changes[200:] == [
            ((1, "x" * 300), (1, "y" * 3000)),
            ((2, "x" * 300), (2, "y" * 3000)),
            ((1, "y" * 3000), None),
        ]


def test_rows_from_before_an_alter_have_the_columns_of_then(server: Any, unique: str) -> None:
    """I8: when they are read, the table looks different."""
    with session(server, unique) as execute, reading(server, unique) as reader:
        execute("CREATE TABLE t (id INT PRIMARY KEY, a INT, b ENUM('x', 'y'), c VARCHAR(9) CHARACTER SET latin1)")
        execute("INSERT INTO t VALUES (1, -1, 'y', 'é')")
        execute("ALTER TABLE t MODIFY a INT UNSIGNED FIRST, MODIFY b ENUM('y', 'x', 'z'), CHANGE c d VARCHAR(9)")
        execute("INSERT INTO t VALUES (4294967295, 2, 'y', '😀')")
        execute("ALTER TABLE t DROP COLUMN d, DROP PRIMARY KEY, ADD PRIMARY KEY (b, id)")
        execute("INSERT INTO t VALUES (3, 3, 'z')")
        execute("DROP TABLE t")
        found = [event for event in reader.transactions() if isinstance(event, Rows)]
    assert [event.table.names for event in found] == [("id", "a", "b", "c"), ("a", "id", "b", "d"), ("a", "id", "b")]
    assert [event.changes[0][1] for event in found] == [(1, -1, "y", "é"), (4294967295, 2, "y", "😀"), (3, 3, "z")]
    assert [[key.name for key in event.table.schema.key] for event in found] == [["id"], ["id"], ["b", "id"]]


def test_rows_from_before_an_instant_alter_have_the_columns_of_then(server: Any, unique: str) -> None:
    """I8."""
    with session(server, unique) as execute, reading(server, unique) as reader:
        execute("CREATE TABLE t (id INT PRIMARY KEY, a INT, b ENUM('x', 'y'), c VARCHAR(9) CHARACTER SET latin1)")
        execute("INSERT INTO t VALUES (1, -1, 'y', 'é')")
        execute("ALTER TABLE t ADD COLUMN e INT DEFAULT 7 FIRST, ALGORITHM=INSTANT")
        execute("UPDATE t SET a = -2")
        execute("ALTER TABLE t DROP COLUMN e, ALGORITHM=INSTANT")
        execute("UPDATE t SET a = -3")
        execute("ALTER TABLE t MODIFY a INT FIRST, MODIFY b ENUM('y', 'x', 'z'), CHANGE c d VARCHAR(9)")
        execute("INSERT INTO t VALUES (4, 2, 'y', '😀')")
        execute("ALTER TABLE t DROP COLUMN d, DROP PRIMARY KEY, ADD PRIMARY KEY (b, id)")
        execute("INSERT INTO t VALUES (3, 3, 'z')")
        execute("DROP TABLE t")
        found = [event for event in reader.transactions() if isinstance(event, Rows)]
    assert [event.changes[0] for event in found] == [
        (None, (1, -1, "y", "é")),
        ((7, 1, -1, "y", "é"), (7, 1, -2, "y", "é")),
        ((1, -2, "y", "é"), (1, -3, "y", "é")),
        (None, (4, 2, "y", "😀")),
        (None, (3, 3, "z")),
    ]
    assert [[key.name for key in event.table.schema.key] for event in found][-2:] == [["id"], ["b", "id"]]


def test_hidden_columns_of_functional_indexes_are_not_in_rows_of_mysql(mysql: Any, unique: str) -> None:
    """I8: the server's own layout has them, and also generated invisible primary keys."""
    with session(mysql, unique) as execute, reading(mysql, unique) as reader:
        execute("CREATE TABLE t (j JSON, n INT, KEY a ((n + 1)), KEY b ((CAST(j AS UNSIGNED ARRAY))), id INT KEY)")
        execute("INSERT INTO t VALUES ('[1, 2]', 5, 1)")
        execute("UPDATE t SET n = 6")
        execute("SET sql_generate_invisible_primary_key = ON")
        execute("CREATE TABLE u (n INT)")
        execute("INSERT INTO u VALUES (5), (6)")
        found = [event for event in reader.transactions() if isinstance(event, Rows)]
    assert [event.changes for event in found] == [
        [(None, ("[1, 2]", 5, 1))],
        [(("[1, 2]", 5, 1), ("[1, 2]", 6, 1))],
        [(None, (1, 5)), (None, (2, 6))],
    ]
    assert [each.name for each in found[-1].table.schema.key] == ["my_row_id"]
