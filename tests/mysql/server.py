"""Real MySQL servers from a mysqld that the machine has: as many at once as wanted, primaries and replicas.

May be changed here: the settings. They make it small and quick, and its binlog fit for the relay. MySQL itself is not
among the embedded services: there is no package of it that could be fetched as those are.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import ClassVar

from relay.errors import Unavailable
from relay.process.managed import HOST, ManagedProcess
from relay.services.sql_server import PASSWORD, USER, SQLServer
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
        # As in relay.services.mariadb: what is in the binlog survives the server, but not the machine.
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


class MySQL(SQLServer):
    """A MySQL on the loopback address, of the mysqld that ``RELAY_TEST_MYSQLD`` names; skips the test without it.

    ``options``: of the server, beyond those here or in their place.
    """

    name: ClassVar[str] = "mysql"
    start_timeout: ClassVar[float] = 120.0

    def __init__(self, *, options: Mapping[str, str | int] | None = None) -> None:
        super().__init__()
        self._program = needs.mysqld()
        self._options = dict(options or {})

    @property
    def data(self) -> Path:
        """Where its data and binlogs are."""
        return self.folder / "data"

    @property
    def socket(self) -> Path:
        return self.folder / "mysql.sock"

    # ------------------------------------------------------------------ SQL

    @property
    def gtid(self) -> str:
        """What it has executed."""
        return str(self.execute("SELECT @@gtid_executed")[0][0]).replace("\n", "")

    @property
    def uuid(self) -> str:
        return str(self.execute("SELECT @@server_uuid")[0][0])

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

    # ------------------------------------------------------------------ the process

    def _prepare(self) -> None:
        if not self.data.is_dir():
            shutil.copytree(_template(self._program), self.data)

    def _command(self) -> list[str]:
        settings = SETTINGS | {"port": self.port, "server-id": self.port, "socket": str(self.socket)}
        settings |= {"pid-file": str(self.folder / "pid"), "tmpdir": str(self.folder), "datadir": str(self.data)}
        return _mysqld(self._program, settings | {"read-only": int(self._read_only)} | self._options)


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
