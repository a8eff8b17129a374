"""Real MySQL servers from a mysqld that the machine has: as many at once as wanted, primaries and replicas.

May be changed here: the settings. They make it small and quick, and its binlog fit for the relay. MySQL itself is not
among the embedded services: there is no package of it that could be fetched as those are.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from relay.errors import Unavailable
from relay.local.mariadb import PASSWORD, USER
from relay.local.process import HOST, ManagedProcess
from relay.local.server import Server
from tests import needs

BINLOG: dict[str, str | int] = {
    "log-bin": "binlog",
    "binlog-format": "ROW",
    "binlog-row-metadata": "FULL",
    "gtid-mode": "ON",
    "enforce-gtid-consistency": "ON",
}
"""What the relay needs and is not so by default."""

_SMALL: dict[str, str | int] = {
    "performance-schema": 0,
    "innodb-buffer-pool-size": "32M",
    "innodb-redo-log-capacity": "8M",
    "innodb-use-native-aio": 0,
    "mysqlx": 0,
    # Its own default is a folder that only packages make.
    "secure-file-priv": "NULL",
}

SETTINGS = (
    BINLOG
    | _SMALL
    | {
        "bind-address": HOST,
        "skip-name-resolve": 1,
        "sync-binlog": 0,
        # As in relay.local.mariadb: what is in the binlog survives the server, but not the machine.
        "innodb-flush-log-at-trx-commit": 2,
        "innodb-doublewrite": 0,
        "max-connect-errors": 4294967295,
        "innodb-buffer-pool-dump-at-shutdown": 0,
        "innodb-buffer-pool-load-at-startup": 0,
        "innodb-fast-shutdown": 2,
        "replica-net-timeout": 5,
    }
)

ACCOUNT = (
    f"CREATE USER IF NOT EXISTS {USER}@'%' IDENTIFIED BY '{PASSWORD}'",
    f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {USER}@'%'",
)
"""The statements that make the account of the relay and the replicas, with the server's own way to check passwords."""

_INITIALIZE_SECONDS = 240.0
_PURGE_SECONDS = 10.0


class MySQL(Server):
    """A MySQL on the loopback address, of the mysqld that ``RELAY_TEST_MYSQLD`` names; skips the test without it.

    ``options``: of the server, beyond those here or in their place.
    """

    name: ClassVar[str] = "mysql"
    start_timeout: ClassVar[float] = 120.0

    def __init__(self, *, options: Mapping[str, str | int] | None = None) -> None:
        super().__init__()
        self._program = needs.mysqld()
        self._options = dict(options or {})
        self._read_only = False

    @property
    def host(self) -> str:
        return HOST

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def data(self) -> Path:
        """Where its data and binlogs are."""
        return self.folder / "data"

    @property
    def socket(self) -> Path:
        return self.folder / "mysql.sock"

    # ------------------------------------------------------------------ SQL

    def connect(self, user: str = "root", **settings: Any) -> Connection[Cursor]:
        """Return a connection that commits by itself. ``settings``: pymysql's."""
        if user == "root":
            settings = {"unix_socket": str(self.socket)} | settings
        else:
            settings = {"host": HOST, "port": self.port, "password": PASSWORD} | settings
        return pymysql.connect(
            user=user, **({"autocommit": True, "charset": "utf8mb4", "ssl_disabled": True} | settings)
        )

    def execute(self, statement: str, arguments: object = None) -> tuple[tuple[Any, ...], ...]:
        """Run one statement as root and return its rows."""
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statement, arguments)
            return tuple(cursor.fetchall())

    @property
    def gtid(self) -> str:
        """What it has executed."""
        return str(self.execute("SELECT @@gtid_executed")[0][0]).replace("\n", "")

    @property
    def uuid(self) -> str:
        return str(self.execute("SELECT @@server_uuid")[0][0])

    @property
    def binlogs(self) -> list[str]:
        """The names of the binlog files it still has, oldest first."""
        return [row[0] for row in self.execute("SHOW BINARY LOGS")]

    # ------------------------------------------------------------------ replication

    def replicate_from(self, primary: MySQL) -> None:
        """Follow the primary from what was executed here, read-only for all but root. Survives ``restart``."""
        self.execute("STOP REPLICA")
        self._set_read_only(True)
        self.execute(
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST=%s, SOURCE_PORT=%s, SOURCE_USER=%s, SOURCE_PASSWORD=%s,"
            " SOURCE_AUTO_POSITION=1, SOURCE_CONNECT_RETRY=1, SOURCE_HEARTBEAT_PERIOD=1, GET_SOURCE_PUBLIC_KEY=1",
            (HOST, primary.port, USER, PASSWORD),
        )
        self.execute("START REPLICA")

    def stop_replication(self) -> None:
        """Let it fall behind. ``start_replication`` goes on where it stopped."""
        self.execute("STOP REPLICA")

    def start_replication(self) -> None:
        """Go on after ``stop_replication``."""
        self.execute("START REPLICA")

    def promote(self) -> None:
        """Make it a primary, with what it has executed so far: ``wait_for`` what must not be lost before."""
        self.execute("STOP REPLICA")
        self.execute("RESET REPLICA ALL")
        self._set_read_only(False)

    def wait_for(self, gtid: str, timeout: float = 30.0) -> None:
        """Wait until a replica has executed what the set names. Raises ``Unavailable`` when it has not."""
        ((late,),) = self.execute("SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, %s)", (gtid, timeout))
        if late:
            raise Unavailable(f"{self.address} has executed {self.gtid}, not {gtid}, after {timeout:.0f} s")

    def purge_binlogs(self) -> None:
        """Begin a new binlog and remove all that came before. Raises ``Unavailable`` if a reader holds them."""
        self.execute("FLUSH BINARY LOGS")
        newest = self.binlogs[-1]
        deadline = time.monotonic() + _PURGE_SECONDS
        while self.binlogs[0] != newest:
            self.execute("PURGE BINARY LOGS TO %s", (newest,))
            if time.monotonic() > deadline:
                raise Unavailable(f"{self.address} still has {self.binlogs[0]}: something reads there")

    def _set_read_only(self, value: bool) -> None:
        self.execute("SET GLOBAL read_only = %s", (int(value),))
        self._read_only = value

    # ------------------------------------------------------------------ the process

    def _prepare(self) -> None:
        if not self.data.is_dir():
            shutil.copytree(_template(self._program), self.data)

    def _command(self) -> list[str]:
        settings = SETTINGS | {"port": self.port, "server-id": self.port, "socket": str(self.socket)}
        settings |= {"pid-file": str(self.folder / "pid"), "tmpdir": str(self.folder), "datadir": str(self.data)}
        return _mysqld(self._program, settings | {"read-only": int(self._read_only)} | self._options)

    def _ready(self) -> bool:
        try:
            with closing(self.connect(USER, connect_timeout=5)) as connection:
                connection.ping()
        except (pymysql.err.OperationalError, pymysql.err.InternalError):
            return False
        return True


def _mysqld(program: str, settings: Mapping[str, str | int], *flags: str) -> list[str]:
    # As root it runs only if it is told to.
    user = ["--user=root"] if os.geteuid() == 0 else []
    return [program, "--no-defaults", *user, *(f"--{name}={value}" for name, value in settings.items()), *flags]


@cache
def _template(program: str) -> Path:
    """Return a data folder as it is before a server's first start, made once for all servers of this process."""
    folder = Path(tempfile.mkdtemp(prefix="relay-mysql-template-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    data, script = folder / "data", folder / "account.sql"
    script.write_text("".join(f"{each};\n" for each in ACCOUNT))
    command = _mysqld(program, {**_SMALL, "datadir": str(data), "init-file": str(script)}, "--initialize-insecure")
    process = ManagedProcess(command, folder / "log")
    try:
        process.start()
        if process.process.wait(_INITIALIZE_SECONDS) != 0:
            raise Unavailable(f"cannot make MySQL's first data folder:\n{process.log_tail()}")
    finally:
        process.kill()
    # Each server has a name of its own, made at its first start.
    (data / "auto.cnf").unlink(missing_ok=True)
    return data
