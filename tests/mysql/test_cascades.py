"""Foreign keys that change rows without logging it are warned of (I1)."""

from __future__ import annotations

import logging
from contextlib import closing

import pytest

from relay.change import Change
from relay.errors import RelayError
from relay.mysql.binlog.events import Rows
from relay.services.mariadb import MariaDB
from tests.mysql.reading import reading, session
from tests.mysql.shards import begin, open_at, read_to_head, read_until, source_of

pytestmark = pytest.mark.services


@pytest.fixture
def database(mariadb: MariaDB, unique: str) -> str:
    with session(mariadb, unique) as execute:
        execute("CREATE TABLE parent (id INT PRIMARY KEY)")
        execute("CREATE TABLE kept (id INT PRIMARY KEY, parent INT, FOREIGN KEY (parent) REFERENCES parent (id))")
        execute(
            "CREATE TABLE child (id INT PRIMARY KEY, parent INT, CONSTRAINT of_parent FOREIGN KEY (parent)"
            " REFERENCES parent (id) ON DELETE CASCADE ON UPDATE SET NULL)"
        )
    return unique


def test_a_server_that_does_not_log_cascades_gets_a_warning_for_each_foreign_key(
    mariadb: MariaDB, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        source_of(database, mariadb).close()
        said = [record.getMessage() for record in caplog.records]
        caplog.clear()
        source_of(database, mariadb, tables=["parent", "kept"]).close()
        assert caplog.records == []
    (warning,) = said
    assert f"changes by the foreign key of_parent to {database}.child are not relayed" in warning
    assert "when rows of parent change, InnoDB runs ON DELETE CASCADE and ON UPDATE SET NULL" in warning


def test_a_foreign_key_is_seen_however_the_server_prints_names(database: str, caplog: pytest.LogCaptureFixture) -> None:
    with MariaDB(options={"sql-mode": "ANSI_QUOTES"}) as server, session(server, database) as execute:
        execute("CREATE TABLE parent (id INT PRIMARY KEY)")
        execute("CREATE TABLE child (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES parent (id) ON DELETE CASCADE)")
        for setting in ("sql_mode = 'ANSI_QUOTES'", "sql_quote_show_create = 0"):
            execute(f"SET GLOBAL {setting}")
            caplog.clear()
            source_of(database, server).close()
            assert f"child_ibfk_1 to {database}.child are not relayed" in caplog.text, setting


def test_a_foreign_key_that_is_added_while_the_relay_runs_is_warned_of(
    mariadb: MariaDB, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = source_of(database, mariadb, tables=["parent", "kept"])
    with session(mariadb, database) as execute, closing(open_at(source, begin(source)["-"])) as reader:
        execute("ALTER TABLE kept ADD CONSTRAINT late FOREIGN KEY (id) REFERENCES parent (id) ON DELETE CASCADE")
        execute("INSERT parent VALUES (1)")
        execute("CREATE TABLE gone (id INT PRIMARY KEY)")
        execute("DROP TABLE gone")
        changes, _ = read_to_head(reader)
    assert [change.table for change in changes] == ["parent"]
    assert caplog.text.count(f"changes by the foreign key late to {database}.kept are not relayed") == 1


def test_a_table_that_a_view_has_replaced_is_relayed_to_its_end(
    mariadb: MariaDB, database: str, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I10: SHOW CREATE TABLE of a view needs a privilege that the relay does not ask for."""
    user = f"{unique}u"
    with session(mariadb, database) as execute:
        execute(f"CREATE USER {user}@'%' IDENTIFIED BY 'p'")
        execute(f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT, SLAVE MONITOR ON *.* TO {user}@'%'")
        try:
            source = source_of(database, mariadb, user=user, password="p")
            position = begin(source)["-"]
            execute("RENAME TABLE child TO new")
            execute("CREATE VIEW child AS SELECT * FROM new")
            execute("INSERT child VALUES (1, NULL)")
            with closing(open_at(source, position)) as reader:
                changes, _ = read_to_head(reader)
        finally:
            execute(f"DROP USER {user}@'%'")
    assert [change.table for change in changes] == ["child", "new"]
    assert f"changes by the foreign key of_parent to {database}.new are not relayed" in caplog.text


def test_versions_that_a_table_gets_while_the_relay_runs_are_refused(mariadb: MariaDB, database: str) -> None:
    """I8: an old version would replace the row."""
    with session(mariadb, database) as execute:
        execute("DROP TABLE child, kept")
    source = source_of(database, mariadb, tables=["parent"], key={"parent": ["id"]})
    with session(mariadb, database) as execute, closing(open_at(source, begin(source)["-"])) as reader:
        execute("INSERT parent VALUES (1)")
        execute("DROP TABLE parent")
        execute("CREATE TABLE parent (id INT PRIMARY KEY) WITH SYSTEM VERSIONING")
        execute("INSERT parent VALUES (2)")
        execute("DELETE FROM parent WHERE id = 2")
        seen: list[Change] = []

        def goes_on(changes: list[Change]) -> bool:
            seen[:] = changes
            return False

        with pytest.raises(RelayError, match="is system-versioned"):
            read_until(reader, goes_on)
    assert [change.operation.value for change in seen] == ["INSERT", "TRUNCATE"]


def test_rows_that_a_cascade_deletes_are_not_in_the_binlog(mariadb: MariaDB, database: str) -> None:
    """If a later server logs them, the warning must be removed."""
    with session(mariadb, database) as execute:
        execute("INSERT parent VALUES (1)")
        execute("INSERT child VALUES (10, 1)")
        with reading(mariadb, database) as stream:
            execute("DELETE FROM parent")
            found = [event for event in stream.transactions() if isinstance(event, Rows)]
        assert execute("SELECT * FROM child") == ()
    assert [(rows.table.name, rows.changes) for rows in found] == [("parent", [((1,), None)])]
