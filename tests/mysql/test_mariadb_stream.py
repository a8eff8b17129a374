"""The stream of a real MariaDB, where it is not like that of MySQL: positions, statements, settings, TLS."""

from __future__ import annotations

import ssl
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from relay.errors import RelayError
from relay.gtid import parse
from relay.mysql.binlog import files
from relay.mysql.binlog.dump import Dump
from relay.mysql.binlog.events import Commit, Rows, Statement, TransactionBegin
from relay.mysql.connection import connect
from relay.mysql.errors import BinlogPurged, Closed, Denied, Diverged
from relay.services.mariadb import MariaDB
from relay.services.sql_server import PASSWORD, USER
from relay.sql.statements import Kind, classify
from tests.certificates import Authority
from tests.mysql.reading import connected, reading, session

pytestmark = pytest.mark.services


@pytest.fixture
def own() -> Iterator[MariaDB]:
    """A server that a test may break."""
    with MariaDB(options={"max-allowed-packet": "64M"}) as server:
        yield server


class TestATransaction:
    def test_is_told_from_begin_to_commit_with_the_set_up_to_and_including_it(self, mariadb: Any, unique: str) -> None:
        """I4."""
        with session(mariadb, unique) as execute, reading(mariadb, unique) as reader:
            execute("CREATE TABLE t (id INT PRIMARY KEY, n INT)")
            execute("INSERT INTO t VALUES (1, 1), (2, 2)")
            execute("UPDATE t SET n = n + 1")
            told = reader.told()
            last = mariadb.gtid
            assert reader.stream.executed == parse(last)
        assert [type(each) for each in told] == [
            TransactionBegin,
            Statement,
            Commit,
            *[TransactionBegin, Rows, Commit] * 2,
        ]
        begins = [each for each in told if isinstance(each, TransactionBegin)]
        assert [each.is_ddl for each in begins] == [True, False, False]
        assert begins[-1].position == f"MariaDB/{last}"
        assert last.endswith(begins[-1].gtid)
        updates = told[-2]
        assert isinstance(updates, Rows)
        assert updates.changes == [((1, 1), (1, 2)), ((2, 2), (2, 3))]
        assert updates.table.name == "t"

    def test_is_what_was_committed_of_it(self, mariadb: Any, unique: str) -> None:
        """I1: savepoints rolled back, tables without transactions, XA in one phase, a table from a query."""
        with session(mariadb, unique) as execute, reading(mariadb, unique) as reader:
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
                "BEGIN",
                "INSERT INTO t VALUES (4)",
                "INSERT INTO plain VALUES (5)",
                "ROLLBACK",
                "XA START 'x'",
                "INSERT INTO t VALUES (6)",
                "XA END 'x'",
                "XA COMMIT 'x' ONE PHASE",
                "CREATE TABLE copied (id INT PRIMARY KEY) SELECT id FROM t WHERE id = 1",
                "CREATE TEMPORARY TABLE passing (id INT)",
                "INSERT INTO passing VALUES (7)",
            ):
                execute(statement)
            assert reader.rows() == [(1,), (3,), (5,), (6,), (1,)]

    def test_that_is_a_statement_is_told_as_it_was_meant(self, mariadb: Any, unique: str) -> None:
        with session(mariadb, unique) as execute:
            execute('CREATE TABLE `gr"ö``ße` (id INT PRIMARY KEY)')
            with reading(mariadb, unique) as reader:
                execute("SET sql_mode = 'ANSI_QUOTES'")
                execute('/* "x" */ TRUNCATE "gr""ö`ße"')
                execute("SET sql_mode = ''")
                with closing(mariadb.connect(database=unique, charset="latin1")) as other, other.cursor() as cursor:
                    cursor.execute('RENAME TABLE `gr"ö``ße` TO `é`')
                statements = [each for each in reader.told() if isinstance(each, Statement)]
        said = [classify(each.sql, each.database, each.ansi_quotes) for each in statements]
        assert [each.kind for each in said] == [Kind.TRUNCATE, Kind.RENAME]
        assert [each.tables for each in said] == [((unique, 'gr"ö`ße'),)] * 2
        assert said[1].renamed[0][1] == (unique, "é")

    def test_of_many_domains_stands_in_each(self, mariadb: Any, unique: str) -> None:
        """I4."""
        with session(mariadb, unique) as execute, reading(mariadb, unique) as reader:
            execute("CREATE TABLE t (id INT PRIMARY KEY)")
            for domain in (7, 0, 9, 7):
                execute(f"SET gtid_domain_id = {domain}")
                execute("INSERT INTO t SELECT COUNT(*) FROM t")
            reader.told()
            assert reader.stream.executed == parse(mariadb.gtid)
            start = reader.stream.executed
            execute("INSERT INTO t VALUES (77)")
            with reading(mariadb, unique, start=start) as again:
                assert again.rows() == [(77,)]


class TestAStream:
    def test_is_closed_by_another_thread(self, mariadb: Any, unique: str) -> None:
        with reading(mariadb, unique) as reader:
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
            thread.join(10)
            assert not thread.is_alive()
            assert type(failures[0]) is Closed

    def test_says_what_was_purged_and_what_the_server_never_had(self, own: MariaDB, unique: str) -> None:
        """I9."""
        with session(own, unique) as execute:
            execute("CREATE TABLE t (id INT PRIMARY KEY)")
            start = parse(own.gtid)
            execute("INSERT INTO t VALUES (1)")
            own.purge_binlogs()
            with reading(own, unique, start=start) as reader, pytest.raises(BinlogPurged, match=r"purged.*1236"):
                reader.told()
            with connected(own) as there:
                assert files.purged(there) == parse(own.gtid)
            with (
                reading(own, unique, start=parse("0-1-1000")) as reader,
                pytest.raises(Diverged, match="not in the master"),
            ):
                reader.until_it_ends()
            execute("INSERT INTO t VALUES (2)")
            with reading(own, unique, start=parse(f"0-{own.server_id}-3")) as reader:
                assert reader.rows() == [(2,)]

    @pytest.mark.parametrize(
        "options",
        [
            {"log-bin-compress": 1, "log-bin-compress-min-len": 10},
            {"binlog-checksum": "NONE"},
            {"binlog-annotate-row-events": 1, "binlog-row-event-max-size": 1024},
        ],
    )
    def test_reads_logs_of_other_settings(self, options: dict[str, str | int], unique: str) -> None:
        """I1."""
        with MariaDB(options=options) as server, session(server, unique) as execute, reading(server, unique) as reader:
            execute("CREATE TABLE t (id INT PRIMARY KEY, payload TEXT)")
            execute("INSERT INTO t SELECT seq, repeat('x', 300) FROM seq_1_to_200")
            execute("UPDATE t SET payload = repeat('y', 3000) WHERE id < 3")
            execute("DELETE FROM t WHERE id = 1")
            changes = reader.changes()
        assert [after for _, after in changes[:200]] == [(each, "x" * 300) for each in range(1, 201)]
        assert changes[200:] == [
            ((1, "x" * 300), (1, "y" * 3000)),
            ((2, "x" * 300), (2, "y" * 3000)),
            ((1, "y" * 3000), None),
        ]

    def test_is_read_through_tls(self, unique: str) -> None:
        # Not below the folder of the tests, which a server's account cannot reach.
        with tempfile.TemporaryDirectory() as folder:
            self._read_through_tls(Path(folder), unique)

    def _read_through_tls(self, folder: Path, unique: str) -> None:
        authority = Authority(folder)
        folder.chmod(0o755)
        pem = authority.issue("server")
        for each in (pem, authority.ca):
            each.chmod(0o644)
        options: dict[str, str | int] = {"ssl": 1, "ssl-cert": str(pem), "ssl-key": str(pem)}
        context = ssl.create_default_context(cafile=str(authority.ca))
        with MariaDB(options=options) as server, session(server, unique) as execute:
            execute("CREATE TABLE t (id INT PRIMARY KEY, payload LONGBLOB)")
            execute(f"ALTER USER {USER}@'%' REQUIRE SSL")
            with reading(server, unique, context=context) as reader:
                execute("INSERT INTO t VALUES (1, repeat('x', 3000000))")
                (row,) = reader.rows()
                assert row is not None
                assert row[1] == b"x" * 3_000_000
                assert reader.stream.read(0.01) == []
            with pytest.raises(Denied, match="Access denied"):
                connect(server.host, server.port, USER, PASSWORD)


class TestAServer:
    def test_says_what_it_is_and_fits(self, mariadb: Any) -> None:
        with connected(mariadb) as server:
            server.verify()
            assert server.flavour == "MariaDB"
            assert not server.read_only
            assert server.executed() == parse(mariadb.gtid)
            assert server.binlogs() == [name for name, *_ in mariadb.execute("SHOW BINARY LOGS")]
            assert abs(server.clock) < 5

    def test_that_does_not_fit_is_told_what_to_set(self, mariadb: Any) -> None:
        mariadb.execute("SET GLOBAL binlog_format = MIXED")
        try:
            with connected(mariadb) as server, pytest.raises(Denied, match="SET GLOBAL binlog_format = 'ROW'"):
                server.verify()
        finally:
            mariadb.execute("SET GLOBAL binlog_format = ROW")

    def test_refuses_a_wrong_password_and_is_not_asked_again(self, mariadb: Any) -> None:
        with pytest.raises(Denied, match="Access denied"):
            connect(mariadb.host, mariadb.port, USER, "wrong")

    def test_refuses_a_user_that_may_not_read_the_log(self, mariadb: Any, unique: str) -> None:
        mariadb.execute(f"CREATE USER {unique}@'%' IDENTIFIED BY 'secret'")
        with (
            closing(connect(mariadb.host, mariadb.port, unique, "secret")) as server,
            closing(Dump.from_gtid(server, parse("MariaDB/"))) as dump,
            pytest.raises(Denied, match="REPLICATION SLAVE"),
        ):
            dump.read(10)
