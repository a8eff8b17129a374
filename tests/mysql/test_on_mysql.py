"""The stream of a real MySQL, where it is not like that of MariaDB: positions, statements, compression, settings."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from relay.gtid import parse
from relay.mysql.binlog import files
from relay.mysql.binlog.events import Commit, Rows, Statement, TransactionBegin
from relay.mysql.errors import BinlogPurged, Diverged, NotCarried
from relay.mysql.start import executed_before
from relay.sql.statements import Kind, classify
from tests.mysql.reading import NUMBERS, connected, reading, session
from tests.mysql.server import MySQL

pytestmark = pytest.mark.services


@pytest.fixture
def own() -> Iterator[MySQL]:
    """A server that a test may break."""
    with MySQL(options={"max-allowed-packet": "64M"}) as server:
        yield server


class TestATransaction:
    def test_is_told_from_begin_to_commit_with_the_set_up_to_and_including_it(self, mysql: Any, unique: str) -> None:
        """I4."""
        with session(mysql, unique) as execute, reading(mysql, unique) as reader:
            execute("CREATE TABLE t (id INT PRIMARY KEY, n INT)")
            execute("INSERT INTO t VALUES (1, 1), (2, 2)")
            execute("UPDATE t SET n = n + 1")
            execute("UPDATE t SET id = 9 WHERE id = 1")
            told = reader.told()
            ((now,),) = execute("SELECT UNIX_TIMESTAMP(NOW(6))")
            executed = mysql.gtid
        assert [type(each) for each in told] == [
            TransactionBegin,
            Statement,
            Commit,
            *[TransactionBegin, Rows, Commit] * 3,
        ]
        begins = [each for each in told if isinstance(each, TransactionBegin)]
        assert [each.is_ddl for each in begins] == [True, False, False, False]
        assert begins[-1].position == f"MySQL56/{executed}"
        for begin in begins:
            assert parse(executed).contains(parse(begin.gtid))
            assert begin.committed_at is not None
            assert now - 60 < begin.committed_at / 1e6 <= now
        assert [each.changes for each in told if isinstance(each, Rows)] == [
            [(None, (1, 1)), (None, (2, 2))],
            [((1, 1), (1, 2)), ((2, 2), (2, 3))],
            [((1, 2), (9, 2))],
        ]

    def test_is_what_was_committed_of_it(self, mysql: Any, unique: str) -> None:
        """I1: savepoints rolled back, tables without transactions, XA in one phase, a table from a query."""
        with session(mysql, unique) as execute, reading(mysql, unique) as reader:
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
                "INSERT INTO plain VALUES (5)",
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
            told = reader.told()
        rows = [change for each in told if isinstance(each, Rows) for change in each.changes]
        assert rows == [*((None, (each,)) for each in (1, 3, 5, 6, 1)), ((6,), (8,))]
        assert sum(isinstance(each, TransactionBegin) for each in told) == sum(
            isinstance(each, Commit) for each in told
        )

    def test_that_is_a_statement_is_told_as_it_was_meant(self, mysql: Any, unique: str) -> None:
        with session(mysql, unique) as execute:
            execute('CREATE TABLE `gr"ö``ße` (id INT PRIMARY KEY)')
            with reading(mysql, unique) as reader:
                execute("SET sql_mode = 'ANSI_QUOTES'")
                execute('/* "x" */ TRUNCATE "gr""ö`ße"')
                execute("SET sql_mode = ''")
                with closing(mysql.connect(database=unique, charset="latin1")) as other, other.cursor() as cursor:
                    cursor.execute('RENAME TABLE `gr"ö``ße` TO `é`')
                execute("ALTER TABLE `é` ADD COLUMN n INT, ALGORITHM=INSTANT")
                execute("ALTER TABLE `é` RENAME TO f")
                execute("DROP TABLE IF EXISTS f, g")
                execute(f"DROP DATABASE {unique}")
                statements = [each for each in reader.told() if isinstance(each, Statement)]
        said = [classify(each.sql, each.database, each.ansi_quotes) for each in statements]
        kinds = [Kind.TRUNCATE, Kind.RENAME, Kind.ALTER, Kind.RENAME, Kind.DROP, Kind.DROP_DATABASE]
        assert [(each.kind, each.tables[:1]) for each in said][:3] == [
            (Kind.TRUNCATE, ((unique, 'gr"ö`ße'),)),
            (Kind.RENAME, ((unique, 'gr"ö`ße'),)),
            (Kind.ALTER, ((unique, "é"),)),
        ]
        assert [each.kind for each in said][-1] == kinds[-1]
        assert said[1].renamed[0][1] == (unique, "é")
        assert said[3].renamed[0] == ((unique, "é"), (unique, "f"))
        assert (unique, "f") in {table for each in said[4:-1] for table in each.tables}

    @pytest.mark.parametrize("rows", [1, 40_000])
    def test_that_is_compressed_is_read_or_refused_with_what_is_missing(
        self, mysql: Any, unique: str, rows: int
    ) -> None:
        """I1, I8."""
        with session(mysql, unique) as execute:
            execute("CREATE TABLE t (id INT PRIMARY KEY, payload VARCHAR(200))")
            execute("SET cte_max_recursion_depth = 100000")
            with reading(mysql, unique) as reader:
                execute("SET binlog_transaction_compression = ON")
                execute("INSERT INTO t " + NUMBERS.format(rows, ", concat(n, repeat('x', 100))"))
                execute("SET binlog_transaction_compression = OFF")
                if importlib.util.find_spec("zstandard") is None:
                    with pytest.raises(NotCarried, match="pip install zstandard"):
                        reader.told()
                    return
                execute("INSERT INTO t VALUES (-1, 'plain')")
                found = reader.rows()
        assert found == [*((each, f"{each}{'x' * 100}") for each in range(1, rows + 1)), (-1, "plain")]


class TestAStream:
    def test_says_what_was_purged_and_what_the_server_never_had(self, own: MySQL, unique: str) -> None:
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
                reading(own, unique, start=parse(f"{own.uuid}:1-1000")) as reader,
                pytest.raises(Diverged, match="more GTIDs than"),
            ):
                reader.until_it_ends()
            # Of another server, which this one says nothing of.
            with reading(own, unique, start=parse(f"{own.gtid},24da167a-0c0c-11e8-8442-00059a3c7b00:1-7")) as reader:
                execute("INSERT INTO t VALUES (2)")
                assert reader.rows() == [(2,)]

    @pytest.mark.parametrize(
        "options",
        [
            {"binlog-checksum": "NONE", "binlog-rows-query-log-events": 1},
            {"binlog-row-event-max-size": 1024, "binlog-encryption": 0, "sql-generate-invisible-primary-key": 1},
        ],
    )
    def test_reads_logs_of_other_settings(self, options: dict[str, str | int], unique: str) -> None:
        """I1."""
        with MySQL(options=options) as server, session(server, unique) as execute, reading(server, unique) as reader:
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

    def test_begins_at_a_time(self, mysql: Any, unique: str) -> None:
        """I1: at the first transaction of that second, or earlier."""
        with session(mysql, unique) as execute:
            execute("CREATE TABLE t (id INT PRIMARY KEY)")
            execute("INSERT INTO t VALUES (1)")
            execute("DO SLEEP(1.1)")
            mysql.execute("FLUSH BINARY LOGS")
            before = parse(mysql.gtid)
            ((now,),) = execute("SELECT UNIX_TIMESTAMP(NOW())")
            execute("INSERT INTO t VALUES (2)")
            with connected(mysql) as server:
                assert executed_before(server, now) == before
                assert not executed_before(server, now - 86400).contains(before)
                assert executed_before(server, now + 86400) == parse(mysql.gtid)


def test_rows_from_before_an_alter_are_read_as_they_were_then(mysql: Any, unique: str) -> None:
    """I8: the table looks different by the time they are read."""
    with session(mysql, unique) as execute, reading(mysql, unique) as reader:
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
        found = [event for event in reader.told() if isinstance(event, Rows)]
    assert [event.changes[0] for event in found] == [
        (None, (1, -1, "y", "é")),
        ((7, 1, -1, "y", "é"), (7, 1, -2, "y", "é")),
        ((1, -2, "y", "é"), (1, -3, "y", "é")),
        (None, (4, 2, "y", "😀")),
        (None, (3, 3, "z")),
    ]
    assert [[key.name for key in event.table.schema.key] for event in found][-2:] == [["id"], ["b", "id"]]


def test_columns_that_a_table_has_only_for_an_index_are_none_of_its_rows(mysql: Any, unique: str) -> None:
    """I8: they are in the server's own layout of the table, and so is a primary key that nobody has written."""
    with session(mysql, unique) as execute, reading(mysql, unique) as reader:
        execute("CREATE TABLE t (j JSON, n INT, KEY a ((n + 1)), KEY b ((CAST(j AS UNSIGNED ARRAY))), id INT KEY)")
        execute("INSERT INTO t VALUES ('[1, 2]', 5, 1)")
        execute("UPDATE t SET n = 6")
        execute("SET sql_generate_invisible_primary_key = ON")
        execute("CREATE TABLE u (n INT)")
        execute("INSERT INTO u VALUES (5), (6)")
        found = [event for event in reader.told() if isinstance(event, Rows)]
    assert [event.changes for event in found] == [
        [(None, ("[1, 2]", 5, 1))],
        [(("[1, 2]", 5, 1), ("[1, 2]", 6, 1))],
        [(None, (1, 5)), (None, (2, 6))],
    ]
    assert [each.name for each in found[-1].table.schema.key] == ["my_row_id"]
