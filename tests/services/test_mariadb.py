"""The embedded MariaDB: its binlog, replication, kills, and the account that it runs as."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from relay.errors import Unavailable
from relay.jvm.jars import fetched
from relay.process.account import reaches, remove_server_folder, unprivileged
from relay.process.managed import accepts
from relay.services.background import down, up
from relay.services.mariadb import PASSWORD, USER, MariaDB
from tests.mysql.kept_binlogs import binlogs, purge_binlogs
from tests.mysql.mariadb_10 import MariaDB10
from tests.process.processes import gone
from tests.services.plain_user import needs_root, run_as_plain_user
from tests.waiting import wait_until

pytestmark = pytest.mark.services


def fill(server: Any, name: str, *ids: int) -> None:
    server.execute(f"CREATE DATABASE IF NOT EXISTS {name}")
    server.execute(f"CREATE TABLE IF NOT EXISTS {name}.item (id INT PRIMARY KEY, name TEXT)")
    for each in ids:
        server.execute(f"INSERT INTO {name}.item VALUES (%s, %s)", (each, f"n° {each}"))


def ids(server: Any, name: str) -> list[int]:
    return [row[0] for row in server.execute(f"SELECT id FROM {name}.item ORDER BY id")]


@pytest.fixture
def primary() -> Iterator[MariaDB]:
    with MariaDB() as server:
        yield server


@pytest.fixture
def replica(primary: MariaDB) -> Iterator[MariaDB]:
    with MariaDB() as server:
        server.replicate_from(primary)
        yield server


@pytest.mark.parametrize("kind", [MariaDB, MariaDB10])
def test_a_release_is_what_it_is_called_and_replicates(kind: type[MariaDB]) -> None:
    with kind() as primary, kind() as replica:
        replica.replicate_from(primary)
        fill(primary, "shop", 1, 2)
        replica.wait_for(primary.gtid)
        assert ids(replica, "shop") == [1, 2]
        for server in (primary, replica):
            assert server.execute("SELECT version()")[0][0].startswith(kind.jar_set.version)


class TestAPrimary:
    def test_its_binlog_has_full_rows_with_column_names(self, mariadb: Any, unique: str) -> None:
        names = ("binlog_format", "binlog_row_image", "binlog_row_metadata", "log_bin", "gtid_strict_mode")
        (values,) = mariadb.execute("SELECT " + ", ".join(f"@@{name}" for name in names))
        assert values == ("ROW", "FULL", "FULL", 1, 1)
        before = mariadb.gtid
        fill(mariadb, unique, 1)
        assert mariadb.gtid != before
        assert mariadb.execute(f"SELECT name FROM {unique}.item") == (("n° 1",),)

    def test_the_relays_account_reads_tables_and_binlogs_but_writes_nothing(self, mariadb: Any, unique: str) -> None:
        fill(mariadb, unique, 7)
        connection = mariadb.connect(USER, database=unique)
        with connection, connection.cursor() as cursor:
            cursor.execute("SELECT id FROM item")
            assert cursor.fetchall() == ((7,),)
            for statement in ("SHOW MASTER STATUS", "SHOW BINARY LOGS", "SHOW SLAVE STATUS"):
                cursor.execute(statement)
            with pytest.raises(pymysql.err.OperationalError, match="denied"):
                cursor.execute("INSERT INTO item VALUES (8, '')")
        with pytest.raises(pymysql.err.OperationalError, match="denied"):
            mariadb.connect(USER, password=f"not {PASSWORD}")

    def test_gtids_carry_the_given_domain_and_server(self) -> None:
        with MariaDB(options={"gtid-domain-id": 4, "server-id": 77, "max-connections": 33}) as server:
            server.execute("CREATE DATABASE a")
            assert server.gtid == "4-77-1"
            assert server.execute("SELECT @@max_connections") == ((33,),)

    def test_an_unknown_option_is_named(self) -> None:
        with pytest.raises(Unavailable, match="no-such-thing"):
            MariaDB(options={"no-such-thing": 1}).start()

    def test_commits_survive_a_kill(self, primary: MariaDB, unique: str) -> None:
        fill(primary, unique, *range(50))
        address, gtid = primary.address, primary.gtid
        primary.kill()
        assert not accepts(primary.port)
        primary.restart()
        assert (primary.address, primary.gtid) == (address, gtid)
        assert ids(primary, unique) == list(range(50))
        primary.execute(f"INSERT INTO {unique}.item VALUES (50, '')")
        assert int(primary.gtid.split("-")[2]) == int(gtid.split("-")[2]) + 1

    def test_purged_binlogs_are_removed(self, primary: MariaDB, unique: str) -> None:
        fill(primary, unique, 1)
        first = binlogs(primary)
        purge_binlogs(primary)
        assert set(binlogs(primary)).isdisjoint(first)
        assert not (primary.data / first[0]).exists()


class TestReplicas:
    def test_a_replica_has_the_primarys_rows_and_gtids(self, primary: MariaDB, replica: MariaDB, unique: str) -> None:
        fill(primary, unique, 1, 2)
        replica.wait_for(primary.gtid)
        assert replica.gtid == primary.gtid
        assert ids(replica, unique) == [1, 2]
        assert primary.server_id != replica.server_id
        assert replica.execute("SELECT @@read_only") == ((1,),)

    def test_a_stopped_replica_lags_until_it_is_started(self, primary: MariaDB, replica: MariaDB, unique: str) -> None:
        fill(primary, unique, 1)
        replica.wait_for(primary.gtid)
        replica.execute("STOP REPLICA")
        fill(primary, unique, 2)
        with pytest.raises(Unavailable, match=rf"has executed {replica.gtid}, not {primary.gtid}"):
            replica.wait_for(primary.gtid, timeout=0.2)
        assert ids(replica, unique) == [1]
        replica.execute("START REPLICA")
        replica.wait_for(primary.gtid)
        assert ids(replica, unique) == [1, 2]

    def test_a_promoted_replica_takes_writes_and_the_old_primary_replicates_from_it(
        self, primary: MariaDB, replica: MariaDB, unique: str
    ) -> None:
        fill(primary, unique, 1)
        replica.wait_for(primary.gtid)
        primary.kill()
        replica.promote()
        assert replica.replication == {}
        assert replica.execute("SELECT @@read_only") == ((0,),)
        fill(replica, unique, 2)
        primary.restart()
        primary.replicate_from(replica)
        primary.wait_for(replica.gtid)
        assert primary.gtid == replica.gtid
        assert ids(primary, unique) == [1, 2]

    def test_a_killed_replica_resumes_where_it_was(self, primary: MariaDB, replica: MariaDB, unique: str) -> None:
        fill(primary, unique, 1)
        replica.wait_for(primary.gtid)
        replica.kill()
        fill(primary, unique, 2)
        replica.restart()
        replica.wait_for(primary.gtid)
        assert ids(replica, unique) == [1, 2]
        assert replica.execute("SELECT @@read_only") == ((1,),)

    def test_a_replica_that_needs_purged_binlogs_reports_the_error(self, primary: MariaDB, unique: str) -> None:
        fill(primary, unique, 1)
        purge_binlogs(primary)
        with MariaDB() as late:
            late.replicate_from(primary)
            wait_until(lambda: late.replication["Last_IO_Error"])
            with pytest.raises(Unavailable, match="1236"):
                late.wait_for(primary.gtid, timeout=0.2)


PLAIN = """
    from relay.services.mariadb import MariaDB

    uid = become_plain()
    with MariaDB() as primary, MariaDB() as replica:
        primary.execute("CREATE DATABASE a")
        replica.replicate_from(primary)
        replica.wait_for(primary.gtid)
        owner = os.stat(f"/proc/{primary.process.pid}").st_uid
        print(owner == uid, replica.execute("SHOW DATABASES LIKE 'a'"), primary.data.parent == primary.folder / "data")
"""

KILLED = """
    import time
    from relay.services.mariadb import MariaDB

    server = MariaDB().start()
    print(server.process.pid, server.folder, flush=True)
    time.sleep(300)
"""


class TestItsAccount:
    def test_it_does_not_run_as_root(self, primary: MariaDB) -> None:
        assert os.stat(f"/proc/{primary.process.pid}").st_uid != 0
        assert primary.data.stat().st_uid == os.stat(f"/proc/{primary.process.pid}").st_uid

    @needs_root
    def test_an_unprivileged_user_can_run_it_with_its_own_cache(self, tmp_path: Path) -> None:
        unpacked = fetched(MariaDB.jar_set)[0].parent
        answer = run_as_plain_user(PLAIN, tmp_path, {f"jars/{unpacked.name}": unpacked})
        assert answer == "True (('a',),) True\n"

    @needs_root
    def test_data_is_in_a_folder_that_the_account_can_reach_and_is_removed(self, tmp_path: Path) -> None:
        account = unprivileged()
        assert account is not None
        assert not reaches(account, tmp_path)
        with MariaDB(tmp_path / "server") as server:
            data = server.data
            assert reaches(account, data)
            server.execute("CREATE DATABASE kept")
        with server:
            assert server.data == data
            assert server.execute("SHOW DATABASES LIKE 'kept'") == (("kept",),)
        remove_server_folder(tmp_path / "server")
        assert not data.exists()
        assert not (tmp_path / "server").exists()


class TestCleaningUp:
    def test_a_stop_leaves_nothing(self) -> None:
        with MariaDB() as server:
            folder, data, pid = server.folder, server.data, server.process.pid
        assert gone(pid)
        assert not folder.exists()
        assert not data.exists()

    def test_it_dies_with_a_killed_parent(self) -> None:
        parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(KILLED)], stdout=subprocess.PIPE, text=True)
        with parent:
            assert parent.stdout is not None
            pid, folder = parent.stdout.readline().split()
            assert not gone(int(pid), within=0)
            parent.send_signal(signal.SIGKILL)
        assert gone(int(pid))
        remove_server_folder(Path(folder))

    def test_up_starts_it_and_down_removes_its_data(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RELAY_STATE", str(tmp_path))
        (service,) = up(["mariadb"])
        data = (tmp_path / "services" / "mariadb" / "data").resolve() / "mariadb"
        assert accepts(service.port)
        assert (data / "ibdata1").exists()
        assert down() == [service]
        assert gone(service.pid)
        assert not data.exists()
