"""The embedded PostgreSQL: kills, what it leaves, and the account that it runs as."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from relay.errors import Unavailable
from relay.jvm.jars import fetch_all
from relay.process.managed import accepts
from relay.services import postgres
from relay.services.background import down, up
from relay.services.postgres import PostgresServer
from tests.process.processes import gone
from tests.services.plain_user import needs_root, run_as_plain_user

pytestmark = pytest.mark.services


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as found:
        yield found


def test_commits_survive_a_kill_while_clients_are_connected(server: PostgresServer) -> None:
    server.execute("CREATE TABLE item (id int PRIMARY KEY, name text)")
    server.execute("INSERT INTO item VALUES (%s, %s)", (1, "n° 1"))
    url = server.url
    with closing(psycopg.connect(url)) as connection:
        connection.execute("INSERT INTO item VALUES (2, 'not committed')")
        server.kill()
        assert not accepts(server.port)
        server.restart()
    assert server.url == url
    assert server.execute("SELECT * FROM item") == [(1, "n° 1")]


def test_a_wrong_password_is_refused(server: PostgresServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(server.url.replace(f":{postgres.PASSWORD}@", ":wrong@"))


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(Unavailable, match="no_such_thing"):
        PostgresServer(options={"no_such_thing": "1"}).start()


def test_it_starts_under_the_umask_of_the_command_line() -> None:
    """As root, it runs as another user, who may not read what root writes under this umask."""
    before = os.umask(0o077)
    try:
        with PostgresServer() as server:
            assert server.execute("SELECT 1") == [(1,)]
    finally:
        os.umask(before)


def test_a_stop_leaves_nothing() -> None:
    with PostgresServer() as server:
        folder, data, pid = server.folder, server.data, server.process.pid
    assert gone(pid)
    assert not folder.exists()
    assert not data.exists()


def test_up_starts_it_and_down_removes_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_STATE", str(tmp_path))
    (service,) = up(["postgres"])
    data = (tmp_path / "services" / "postgres" / "data").resolve() / "postgres"
    assert postgres.serves(service.address)
    assert (data / "PG_VERSION").exists()
    assert down() == [service]
    assert gone(service.pid)
    assert not data.exists()


PLAIN = """
    from relay.services.postgres import PostgresServer

    uid = become_plain()
    with PostgresServer() as server:
        owner = os.stat(f"/proc/{server.process.pid}").st_uid
        print(owner == uid, server.execute("SELECT 1"), server.data.parent == server.folder / "data")
"""


def test_it_does_not_run_as_root(server: PostgresServer) -> None:
    assert os.stat(f"/proc/{server.process.pid}").st_uid != 0


@needs_root
def test_an_unprivileged_user_can_run_it_with_its_own_cache(tmp_path: Path) -> None:
    unpacked = fetch_all(["postgres"])["postgres"]
    assert run_as_plain_user(PLAIN, tmp_path, {f"jars/{unpacked.name}": unpacked}) == "True [(1,)] True\n"
