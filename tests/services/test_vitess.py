"""The embedded Vitess: routing over shards, VStream, the journal of a reshard, kills, and cleaning up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.constants import ER

from relay.jvm.jars import jars
from relay.process.account import remove_server_folder
from relay.process.managed import accepts
from relay.services.background import down, status, up
from relay.services.vitess import Vitess, database
from relay.services.vitess_build import vtcombo
from tests import needs
from tests.process.processes import gone
from tests.services.plain_user import needs_root, run_as_plain_user
from tests.services.vstream import vstream

pytestmark = pytest.mark.services

ITEM = "CREATE TABLE item (id BIGINT UNSIGNED PRIMARY KEY, name TEXT)"
HASHED = {
    "sharded": True,
    "vindexes": {"hash": {"type": "hash"}},
    "tables": {"item": {"column_vindexes": [{"column": "id", "name": "hash"}]}},
}


@pytest.fixture(scope="module")
def own() -> Iterator[Vitess]:
    """A cluster that these tests may break: two shards to split and merge, and their targets."""
    needs.vitess()
    keyspaces = {"source": ["-80", "80-"], "target": ["-40", "40-80", "80-c0", "c0-"]}
    with Vitess(keyspaces=keyspaces, schemas=dict.fromkeys(keyspaces, (ITEM, HASHED))) as cluster:
        yield cluster


def until(stream: Iterator[bytes], *texts: bytes) -> bytes:
    """Return the first message of a stream that contains all the texts. Raises ``TimeoutError`` after ten minutes.

    A stream that brings nothing but keeps its connection alive does not end by itself.
    """
    deadline, passed = time.monotonic() + 600, []
    for message in stream:
        if all(text in message for text in texts):
            return message
        passed.append(message)
        if time.monotonic() > deadline:
            break
    raise TimeoutError(f"no message with {texts} among {len(passed)}, the last of which are {passed[-20:]}")


def test_rows_go_to_the_shard_of_their_keyspace_id(own: Vitess) -> None:
    """The hash vindex of 1 is 166b40b44aba4bd6, of 6 f098480ac4c4be71 (Vitess' vindexes/hash_test.go)."""
    for each in (1, 6):
        own.execute("INSERT INTO item (id, name) VALUES (%s, 'x')", "source", (each,))
    assert own.execute("SELECT id FROM item", "source:-80") == ((1,),)
    assert own.execute("SELECT id FROM item", "source:80-") == ((6,),)
    below = own.mariadb.connect("vt_dba", password="", unix_socket=str(own.mariadb.socket), database="vt_source_80-")
    with closing(below), below.cursor() as cursor:
        cursor.execute("SELECT id FROM item")
        assert cursor.fetchall() == ((6,),)


def test_a_deadlock_between_shards_ends_after_the_lock_wait_timeout(own: Vitess) -> None:
    """No server detects such a deadlock."""
    for each in (1001, 1002):
        own.execute("INSERT INTO item (id, name) VALUES (%s, 'x')", "source", (each,))
    of_shard = "SELECT id FROM item WHERE id IN (1001, 1002)"
    assert [len(own.execute(of_shard, f"source:{shard}")) for shard in ("-80", "80-")] == [1, 1]
    update, meet = "UPDATE item SET name = concat(name, 'y') WHERE id = %s", threading.Barrier(2)

    def both(first: int, second: int) -> str:
        with closing(own.connect("source")) as connection, connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute(update, (first,))
            meet.wait(120)
            try:
                cursor.execute(update, (second,))
                cursor.execute("COMMIT")
            except pymysql.err.OperationalError as error:
                if error.args[0] != ER.LOCK_WAIT_TIMEOUT:
                    raise
                cursor.execute("ROLLBACK")
                return ""
            return "y"

    with ThreadPoolExecutor() as pool:
        written = "".join(pool.map(both, (1001, 1002), (1002, 1001)))
    names = own.execute("SELECT name FROM item WHERE id IN (1001, 1002)", "source")
    assert names == ((f"x{written}",),) * 2


def test_tables_can_be_added_through_vtgate(vitess: Any, unique: str) -> None:
    for statement in (
        f"CREATE TABLE {unique} (id BIGINT PRIMARY KEY, name TEXT)",
        f"ALTER VSCHEMA ON {unique} ADD VINDEX hash(id) USING hash",
    ):
        vitess.execute(statement)
    with closing(vitess.connect()) as connection, connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO {unique} (id, name) VALUES (%s, 'é')", [(each,) for each in range(100)])
        cursor.execute(f"SELECT count(*), sum(name = 'é') FROM {unique}")
        assert cursor.fetchall() == ((100, 100),)


def test_the_mariadb_below_logs_full_rows(own: Vitess) -> None:
    names = ("binlog_format", "binlog_row_image", "binlog_row_metadata")
    assert own.mariadb.execute("SELECT " + ", ".join(f"@@{name}" for name in names)) == (("ROW", "FULL", "FULL"),)


def test_vstream_returns_a_shards_position_and_then_its_rows(own: Vitess) -> None:
    stream = vstream(own.vtgate, [("source", "-80", "current")])
    until(stream, b"MariaDB/0-")
    own.execute("INSERT INTO item (id, name) VALUES (3, 'the third')", "source")
    until(stream, b"source.item", b"the third")


def test_vstream_copies_existing_rows(own: Vitess) -> None:
    own.execute("INSERT INTO item (id, name) VALUES (2, 'the second')", "source")
    until(vstream(own.vtgate, [("source", "-80", "")]), b"the second")


@pytest.mark.parametrize(
    ("participants", "targets"),
    [
        ([("source", "-80")], [("target", "-40"), ("target", "40-80")]),
        ([("source", "-80"), ("source", "80-")], [("target", "c0-")]),
        ([("source", "-80"), ("source", "80-")], [("target", "-40"), ("target", "40-80"), ("target", "80-c0")]),
    ],
    ids=["1→2", "2→1", "2→3"],
)
def test_a_journal_moves_a_stream_to_the_targets(
    own: Vitess, participants: list[tuple[str, str]], targets: list[tuple[str, str]]
) -> None:
    stream = vstream(own.vtgate, [(*each, "current") for each in participants], journals=True)
    for _ in participants:
        until(stream, b"MariaDB/0-")
    at = own.position
    number = own.journal(participants, targets)
    rows = own.mariadb.execute("SELECT db_name FROM _vt.resharding_journal WHERE val LIKE %s", (f"id:{number} %",))
    assert sorted(row[0].decode() for row in rows) == [database(*each) for each in participants]
    until(
        stream, at.encode(), *(shard.encode() for _, shard in targets), *(shard.encode() for _, shard in participants)
    )
    for keyspace, shard in targets:
        name = f"{number} in {shard}"
        key = int.from_bytes(os.urandom(7), "big")
        own.execute("INSERT INTO item (id, name) VALUES (%s, %s)", f"{keyspace}:{shard}", (key, name))
        until(stream, f"{keyspace}.item".encode(), name.encode())


def test_a_killed_vtgate_restarts_with_the_data(own: Vitess) -> None:
    own.execute("INSERT INTO item (id, name) VALUES (11, 'kept')", "source")
    address, below = own.vtgate, own.mariadb.process.pid
    own.process.kill()
    assert not accepts(own.port)
    assert own.mariadb.alive
    assert not own.alive
    own.restart()
    assert (own.vtgate, own.mariadb.process.pid) == (address, below)
    assert own.execute("SELECT name FROM item WHERE id = 11", "source") == (("kept",),)


def test_a_killed_cluster_restarts_with_the_data(own: Vitess) -> None:
    own.execute("INSERT INTO item (id, name) VALUES (12, 'kept')", "source")
    own.kill()
    assert not accepts(own.mariadb.port)
    own.restart()
    assert own.execute("SELECT name FROM item WHERE id = 12", "source") == (("kept",),)
    stream = vstream(own.vtgate, [("source", "-80", "current")])
    until(stream, b"MariaDB/0-")


def test_none_of_its_processes_runs_as_root(own: Vitess) -> None:
    assert all(os.stat(f"/proc/{each.pid}").st_uid != 0 for each in own.processes)


def test_the_mariadb_below_can_be_killed_alone(own: Vitess) -> None:
    own.mariadb.kill()
    states = [own.alive]
    own.mariadb.restart()
    states.append(own.alive)
    assert states == [False, True]
    own.execute("INSERT INTO item (id, name) VALUES (13, 'after')", "source")
    until(vstream(own.vtgate, [("source", "-80", ""), ("source", "80-", "")]), b"after")


def test_it_writes_nothing_to_the_tmp_folder(own: Vitess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    own.process.kill()
    own.restart()
    assert list(tmp_path.iterdir()) == []


PLAIN = """
    from relay.services.vitess import Vitess

    uid = become_plain()
    with Vitess(keyspaces={"k": ["0"]}, schemas={"k": ("CREATE TABLE item (id INT PRIMARY KEY)", {})}) as cluster:
        cluster.execute("INSERT INTO item (id) VALUES (1)")
        owners = {os.stat(f"/proc/{each.pid}").st_uid for each in cluster.processes}
        print(owners == {uid}, cluster.execute("SELECT id FROM item"))
"""


@needs_root
def test_an_unprivileged_user_can_run_it_with_its_own_cache(own: Vitess, tmp_path: Path) -> None:
    database_, built = jars("mariadb")[0].parent, vtcombo().parent
    cached = {f"jars/{database_.name}": database_, built.name: built}
    assert run_as_plain_user(PLAIN, tmp_path, cached) == "True ((1,),)\n"


KILLED = """
    import time
    from relay.services.vitess import Vitess

    cluster = Vitess(keyspaces={"k": ["0"]}).start()
    print(*[each.pid for each in cluster.processes], cluster.folder, flush=True)
    time.sleep(300)
"""


def test_all_its_processes_die_with_a_killed_parent(own: Vitess) -> None:
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(KILLED)], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        *pids, folder = parent.stdout.readline().split()
        assert len(pids) == 2
        assert not any(gone(int(pid), within=0) for pid in pids)
        parent.send_signal(signal.SIGKILL)
    assert all(gone(int(pid)) for pid in pids)
    remove_server_folder(Path(folder))


def test_up_starts_it_and_down_stops_all_of_it(own: Vitess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_STATE", str(tmp_path))
    (service,) = up(["vitess"])
    data = (tmp_path / "services" / "vitess" / "data").resolve()
    pids = [pid for pid, _ in service.processes]
    assert len(pids) == 2
    assert up(["vitess"]) == status() == [service]
    os.kill(pids[1], signal.SIGKILL)
    assert gone(pids[1])
    assert [each.running for each in status()] == [False]
    assert down() == [service]
    assert all(gone(pid) for pid in pids)
    assert not data.exists()
