"""Servers that replicated, and those that were read until their filters or their binlog changed."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Any

import pymysql
import pytest

from relay.services.mariadb import MariaDB
from tests.mysql.orders import DATABASE
from tests.mysql.server import MySQL, mostly_on_mariadb
from tests.mysql.shards import begin, open_at, read_to_head, short, source_of
from tests.waiting import wait_until

IGNORE = {
    MariaDB: f"SET GLOBAL replicate_ignore_table = '{DATABASE}.t'",
    MySQL: f"CHANGE REPLICATION FILTER REPLICATE_IGNORE_TABLE = ({DATABASE}.t)",
}

OTHER_SERVER = "MySQL: that its filters are read and refused is tried on it here, and what follows from that on MariaDB"

ON_MARIADB = mostly_on_mariadb(OTHER_SERVER)


@pytest.mark.services
@pytest.mark.parametrize("kind", [MariaDB], indirect=True)
def test_a_mariadb_that_left_out_changes_before_it_stopped_to_replicate_is_not_read(primary: Any, kind: Any) -> None:
    """I1: its status has no filters then, and its binlog lacks the changes all the same. MySQL forgets them."""
    with MariaDB() as replica:
        replica.replicate_from(primary)
        replica.execute("STOP REPLICA")
        replica.execute(IGNORE[MariaDB])
        replica.execute("START REPLICA")
        replica.wait_for(primary.gtid)
        replica.execute("STOP REPLICA")
        replica.execute("RESET SLAVE ALL")
        for read_only in ("ON", "OFF"):  # a standby, and a new primary beside the old one
            replica.execute(f"SET GLOBAL read_only = {read_only}")
            unreadable = source_of(DATABASE, primary, replica).unreadable()
            assert f"its Replicate_Ignore_Table is {DATABASE}.t" in unreadable[replica.address]
        source_of(DATABASE, replica)  # alone and writable, it may be where the database is written


@pytest.mark.services
@ON_MARIADB
def test_a_replica_is_left_once_a_filter_is_set(kind: Any, primary: Any) -> None:
    """I1: its executed set goes on, and says that it has all."""
    with kind() as replica:
        replica.replicate_from(primary)
        source = source_of(DATABASE, replica, primary)
        reader: Any = open_at(source, begin(source)["-"])
        primary.execute(f"INSERT {DATABASE}.t VALUES (10, 'a')")
        replica.wait_for(primary.gtid)
        assert [short(read_to_head(reader)[0]), reader.server.address] == [[("INSERT", 10, "a")], replica.address]
        replica.execute("STOP REPLICA")
        replica.execute(IGNORE[kind])
        replica.execute("START REPLICA")
        wait_until(lambda: [read_to_head(reader), reader.server.address == primary.address][1], 30)
        primary.execute(f"INSERT {DATABASE}.t VALUES (11, 'b')")
        assert short(read_to_head(reader)[0]) == [("INSERT", 11, "b")]
        reader.close()


@pytest.mark.services
def test_a_server_is_left_once_it_closes_its_binlog() -> None:
    """I1: it goes on, says that it logs, and sends heartbeats. MySQL does so with `binlog_error_action` only."""
    with MariaDB() as server:
        server.execute(f"CREATE DATABASE {DATABASE}")
        server.execute(f"CREATE TABLE {DATABASE}.t (id INT PRIMARY KEY)")
        source = source_of(DATABASE, server)
        with closing(open_at(source, begin(source)["-"])) as reader:
            read_to_head(reader)
            server.data.chmod(0o500)  # so that the next file cannot be made
            with suppress(pymysql.err.InternalError):
                server.execute("FLUSH BINARY LOGS")
            server.data.chmod(0o700)
            server.execute(f"INSERT {DATABASE}.t VALUES (1)")
            assert server.execute("SELECT @@log_bin") == ((1,),)
            wait_until(lambda: "has closed its binlog" in getattr(reader.read(), "reason", ""), 30)
