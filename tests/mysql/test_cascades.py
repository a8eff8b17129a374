"""Foreign keys that change rows without logging it are warned of (I1)."""

from __future__ import annotations

import logging

import pytest

from relay.mysql.binlog.events import Rows
from relay.services.mariadb import MariaDB
from tests.mysql.reading import reading, session
from tests.mysql.shards import source_of

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
