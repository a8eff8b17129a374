"""Real MySQL servers, primaries and replicas, from a mysqld of the machine.

The settings make them small and quick, and their binlogs readable for the relay. MySQL is not an embedded service: of
the package registries only Debian's sid has it, in whatever version is current (``debian_mysql``).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import ClassVar

import pytest

from relay.errors import Unavailable
from relay.jvm.jars import cache_folder
from relay.process.folders import made_once
from relay.process.managed import HOST, ManagedProcess
from relay.services.mariadb import PASSWORD, USER, MariaDB, SQLServer
from tests import needs

BINLOG: dict[str, str | int] = {
    "log-bin": "binlog",
    "binlog-format": "ROW",
    "binlog-row-metadata": "FULL",
    "gtid-mode": "ON",
    "enforce-gtid-consistency": "ON",
}
"""Settings that the relay needs and that are not defaults."""

_SMALL: dict[str, str | int] = {
    "performance-schema": 0,
    "innodb-buffer-pool-size": "32M",
    "innodb-redo-log-capacity": "8M",
    "innodb-use-native-aio": 0,
    "mysqlx": 0,
    # The default is a folder that only packages create.
    "secure-file-priv": "NULL",
}

SETTINGS = (
    BINLOG
    | _SMALL
    | {
        "bind-address": HOST,
        "skip-name-resolve": 1,
        "sync-binlog": 0,
        # As in relay.services.mariadb: the binlog survives a crash of the server, but not of the machine.
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
"""The statements that create the account of the relay and the replicas, with the default authentication."""

_INITIALIZE_SECONDS = 240.0


class MySQL(SQLServer):
    """A MySQL on the loopback address, from the mysqld in ``RELAY_TEST_MYSQLD``; skips the test without it.

    ``options``: of the server, which override those here.
    """

    name: ClassVar[str] = "mysql"
    start_timeout: ClassVar[float] = 120.0

    def __init__(self, *, options: Mapping[str, str | int] | None = None) -> None:
        super().__init__()
        self.program = needs.mysqld()
        self._options = dict(options or {})

    @property
    def data(self) -> Path:
        """The folder of its data and binlogs."""
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
        """Follow the primary from the executed set on, read-only except for root. Survives ``restart``."""
        self.execute("STOP REPLICA")
        self._set_read_only(True)
        self.execute(
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST=%s, SOURCE_PORT=%s, SOURCE_USER=%s, SOURCE_PASSWORD=%s,"
            " SOURCE_AUTO_POSITION=1, SOURCE_CONNECT_RETRY=1, SOURCE_HEARTBEAT_PERIOD=1, GET_SOURCE_PUBLIC_KEY=1",
            (HOST, primary.port, USER, PASSWORD),
        )
        self.execute("START REPLICA")

    def promote(self) -> None:
        """Make it a primary with what it has executed: ``wait_for`` what must not be lost first."""
        self.execute("STOP REPLICA")
        self.execute("RESET REPLICA ALL")
        self._set_read_only(False)

    def wait_for(self, gtid: str, timeout: float = 120.0) -> None:
        """Wait until a replica has executed a set. Raises ``Unavailable`` if it does not in time."""
        ((late,),) = self.execute("SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, %s)", (gtid, timeout))
        if late:
            raise Unavailable(f"{self.address} has executed {self.gtid}, not {gtid}, after {timeout:.0f} s")

    # ------------------------------------------------------------------ the process

    def _prepare(self) -> None:
        if not self.data.is_dir():
            shutil.copytree(_template(self.program), self.data)

    def _command(self) -> list[str]:
        settings = SETTINGS | {"port": self.port, "server-id": self.port, "socket": str(self.socket)}
        settings |= {"pid-file": "pid", "tmpdir": str(self.socket.parent), "datadir": str(self.data)}
        return _mysqld(self.program, settings | {"read-only": int(self._read_only)} | self._options)


def _mysqld(program: str, settings: Mapping[str, str | int], *flags: str) -> list[str]:
    # It runs as root only with this option.
    user = ["--user=root"] if os.geteuid() == 0 else []
    return [program, "--no-defaults", *user, *(f"--{name}={value}" for name, value in settings.items()), *flags]


@cache
def _template(program: str) -> Path:
    """Return the data folder of a server before its first start, made once for each version and settings.

    Making one takes 3 s of CPU.
    """
    version = subprocess.run([program, "--version"], capture_output=True, check=True).stdout
    digest = hashlib.sha256(b"%b %b" % (version, repr((_SMALL, ACCOUNT)).encode())).hexdigest()[:8]
    template = cache_folder() / f"mysql-data-{digest}"
    return made_once(template, lambda: _initialize(program, template))


def _initialize(program: str, template: Path) -> None:
    with tempfile.TemporaryDirectory(dir=template.parent, prefix=f"{template.name}-") as folder:
        data, script = Path(folder) / "data", Path(folder) / "account.sql"
        script.write_text("".join(f"{each};\n" for each in ACCOUNT))
        command = _mysqld(program, {**_SMALL, "datadir": str(data), "init-file": str(script)}, "--initialize-insecure")
        process = ManagedProcess(command, Path(folder) / "log")
        if (problem := process.run(_INITIALIZE_SECONDS)) is not None:
            raise Unavailable(f"cannot create the data folder of MySQL: it {problem}")
        # Each server creates its UUID at its first start.
        (data / "auto.cnf").unlink(missing_ok=True)
        data.rename(template)


def mostly_on_mariadb(reason: str) -> pytest.MarkDecorator:
    """Return the mark of tests whose fixture ``kind`` is MariaDB, and in ``make faults`` MySQL, for a ``reason``."""
    other = pytest.param(MySQL, marks=pytest.mark.faults(reason))
    return pytest.mark.parametrize("kind", [MariaDB, other], indirect=True)
