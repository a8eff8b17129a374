"""Embedded MariaDB servers, small and fast: any number, primaries and replicas."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from relay.errors import Unavailable
from relay.jvm.jars import SETS, JarSet, cache_folder, fetched
from relay.process.account import data_folder, give_ownership, reachable_copy, remove_server_folder, unprivileged
from relay.process.folders import made_once
from relay.process.managed import HOST, ManagedProcess
from relay.services.server import EmbeddedServer

USER = "relay"
PASSWORD = "relay"
"""The account of the relay and of replicas, which may read all tables and the binlog, from any host."""

BINLOG: dict[str, str | int] = {
    "log-bin": "binlog",
    "binlog-format": "ROW",
    "binlog-row-image": "FULL",
    "binlog-row-metadata": "FULL",
    "log-slave-updates": 1,
    "gtid-strict-mode": 1,
    "sync-binlog": 0,
    # 2: every commit is written, but not synced. With 0, up to a second of commits is only in the server's memory, so
    # after a kill it would lack transactions that are in its binlog.
    "innodb-flush-log-at-trx-commit": 2,
}

_SMALL: dict[str, str | int] = {
    "performance-schema": 0,
    "innodb-buffer-pool-size": "32M",
    "innodb-log-file-size": "16M",
    "innodb-undo-tablespaces": 0,
    "innodb-use-native-aio": 0,  # the kernel has few contexts for it; further servers would wait or fail
    "aria-pagecache-buffer-size": "8M",
    "key-buffer-size": "1M",
    "open-files-limit": 4096,
    "debug-no-sync": 1,
}

SETTINGS: dict[str, str | int] = {
    **BINLOG,
    **_SMALL,
    "bind-address": HOST,
    "skip-name-resolve": 1,
    "character-set-server": "utf8mb4",
    "ssl": 0,  # with it, every start makes a key and a certificate
    "max-connections": 300,
    "max-connect-errors": 4294967295,  # a client that only checks the port a hundred times would be blocked
    "innodb-buffer-pool-dump-at-shutdown": 0,
    "innodb-buffer-pool-load-at-startup": 0,
    "innodb-fast-shutdown": 2,
    "slave-net-timeout": 5,
}

# The statements that create the account.
ACCOUNT = (
    f"CREATE OR REPLACE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}'",
    f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT, SLAVE MONITOR ON *.* TO {USER}@'%'",
)

_BOOTSTRAP_SECONDS = 120.0
_BOOTSTRAP = ("system_tables.sql", "performance_tables.sql", "system_tables_data.sql")


class SQLServer(EmbeddedServer):
    """The base class of the embedded MariaDB, and of the MySQL servers in tests: connections and statements.

    Its root needs no password on the local socket.
    """

    _read_only = False  # kept for a restart

    @property
    @abstractmethod
    def socket(self) -> Path:
        """The path of its local socket."""

    @property
    def host(self) -> str:
        return HOST

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def login(self) -> str:
        return f"mysql -S {self.socket} -u root; a config has `user: {USER}` and `password: {PASSWORD}`"

    def connect(self, user: str = "root", **settings: Any) -> Connection[Cursor]:
        """Return a connection with autocommit: as root over the socket, or as another user with the password.

        ``settings``: settings of pymysql. Raises ``pymysql.err.OperationalError``.
        """
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

    def _set_read_only(self, value: bool) -> None:
        self.execute("SET GLOBAL read_only = %s", (int(value),))
        self._read_only = value

    def _ready(self) -> bool:
        try:
            with closing(self.connect(USER, connect_timeout=5)) as connection:
                connection.ping()
        except (pymysql.err.OperationalError, pymysql.err.InternalError):
            return False
        return True


class MariaDB(SQLServer):
    """A MariaDB on the loopback address. If started by root, it runs as another user.

    ``options``: the server's, such as ``{"max-allowed-packet": "64M"}``.
    """

    name = "mariadb"
    refuses_root = True
    jar_set: ClassVar[JarSet] = SETS["mariadb"]

    @property
    def server_id(self) -> int:
        return int(self.options.get("server-id", self.port))

    @property
    def data(self) -> Path:
        return data_folder(self.folder) / "mariadb"

    @property
    def socket(self) -> Path:
        return data_folder(self.folder) / "mysql.sock"

    @property
    def gtid(self) -> str:
        """The GTID position of its binlog: the transactions that it has executed, as a primary or as a replica."""
        return str(self.execute("SELECT @@gtid_binlog_pos")[0][0])

    # ------------------------------------------------------------------ replication

    def replicate_from(self, primary: MariaDB) -> None:
        """Replicate from ``primary``, after the transactions executed here, read-only for everybody except root.

        ``restart`` preserves this. A former primary can replicate, too, unless the new one lacks some of its
        transactions.
        """
        self.execute("STOP SLAVE")
        self._set_read_only(True)
        self.execute("SET GLOBAL gtid_slave_pos = @@gtid_current_pos")
        self.execute(
            "CHANGE MASTER TO master_host=%s, master_port=%s, master_user=%s, master_password=%s,"
            " master_use_gtid=slave_pos, master_connect_retry=1, master_heartbeat_period=1,"
            " master_ssl=0, master_ssl_verify_server_cert=0",
            (HOST, primary.port, USER, PASSWORD),
        )
        self.execute("START SLAVE")

    def promote(self) -> None:
        """Make it a primary. Transactions not executed yet are lost: call ``wait_for`` first."""
        self.execute("STOP SLAVE")
        self.execute("RESET SLAVE ALL")
        self._set_read_only(False)

    def wait_for(self, gtid: str, timeout: float = 30.0) -> None:
        """Wait until a replica has executed the position. Raises ``Unavailable`` after ``timeout`` seconds."""
        ((answer,),) = self.execute("SELECT MASTER_GTID_WAIT(%s, %s)", (gtid, timeout))
        if answer != 0:
            state = self.replication
            errors = [state[each] for each in ("Last_IO_Error", "Last_SQL_Error") if state.get(each)]
            reason = "; ".join(errors) or ("it is slow" if state else "it has no primary")
            raise Unavailable(f"{self.address} has executed {self.gtid}, not {gtid}, after {timeout:.0f} s: {reason}")

    @property
    def replication(self) -> dict[str, Any]:
        """The row of SHOW SLAVE STATUS; empty if this server has no primary."""
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SHOW SLAVE STATUS")
            row = cursor.fetchone()
            return dict(zip((each[0] for each in cursor.description), row, strict=True)) if row else {}

    # ------------------------------------------------------------------ the process

    def _prepare(self) -> None:
        if not self.data.is_dir():
            self._read_only = False
            # Renamed only when complete.
            part = self.data.with_name("part")
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(_template(self.jar_set), part)
            give_ownership(part)
            part.rename(self.data)

    def _command(self) -> list[str]:
        settings = SETTINGS | {"port": self.port, "server-id": self.server_id}
        settings |= {"socket": str(self.socket), "pid-file": "mysqld.pid", "tmpdir": str(data_folder(self.folder))}
        settings |= {"read-only": int(self._read_only)} | self.options
        return _mariadbd(self.jar_set, self.data, settings)


def _mariadbd(jar_set: JarSet, data: Path, settings: Mapping[str, str | int], *flags: str) -> list[str]:
    folder = reachable_copy(fetched(jar_set)[0].parent)
    places = {"basedir": folder, "lc-messages-dir": folder / "share", "character-sets-dir": folder / "share/charsets"}
    options = (f"--{name}={value}" for name, value in {**places, "datadir": data, **settings}.items())
    return [str(folder / "mariadbd"), "--no-defaults", *options, *flags]


def _template(jar_set: JarSet) -> Path:
    """Return the data folder of a new server, made once for each version and settings."""
    scripts = fetched(jar_set)[0].parent / "share"
    statements = ["CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n"]
    statements += [path.read_text() for name in _BOOTSTRAP for path in scripts.glob(f"*_{name}")]
    statements += [f"{each};\n" for each in ("FLUSH PRIVILEGES", *ACCOUNT)]
    sql = "".join(statements)
    digest = hashlib.sha256(f"{sql}{_SMALL}".encode()).hexdigest()[:8]
    template = cache_folder() / f"mariadb-data-{jar_set.version}-{digest}"
    return made_once(template, lambda: _bootstrap(jar_set, sql, template))


def _bootstrap(jar_set: JarSet, sql: str, template: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="relay-mariadb-"))
    data = data_folder(folder)
    script = folder / "bootstrap.sql"
    script.write_text(sql)
    # The server's account may not be allowed to write to this process' temporary folder.
    command = _mariadbd(jar_set, data, {**_SMALL, "tmpdir": str(data)}, "--bootstrap")
    process = ManagedProcess(command, folder / "log", account=unprivileged(), stdin=script)
    try:
        if (problem := process.run(_BOOTSTRAP_SECONDS)) is not None:
            raise Unavailable(f"cannot create the first data folder of MariaDB in {data}: it {problem}")
        part = template.with_name(template.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(data, part)
        part.rename(template)
    finally:
        remove_server_folder(folder)
