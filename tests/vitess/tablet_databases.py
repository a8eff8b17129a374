"""The databases below the tablets of ``tests.vitess.cluster``: prepared as Vitess' own ``mysqlctl`` would."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from pymysql.cursors import Cursor

from relay.process.account import data_folder, give_ownership
from tests.mysql.mariadb_10 import MariaDB10
from tests.mysql.server import MySQL

_GRANTS = (
    "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, RELOAD, PROCESS, FILE, REFERENCES, INDEX, ALTER, SHOW DATABASES,"
    " CREATE TEMPORARY TABLES, LOCK TABLES, EXECUTE, REPLICATION SLAVE, REPLICATION CLIENT, CREATE VIEW, SHOW VIEW,"
    " CREATE ROUTINE, ALTER ROUTINE, CREATE USER, EVENT, TRIGGER"
)
_ACCOUNTS = {
    "vt_dba@localhost": "ALL",
    "vt_app@localhost": _GRANTS,
    "vt_appdebug@localhost": "SELECT, SHOW DATABASES, PROCESS",
    "vt_allprivs@localhost": _GRANTS,
    "vt_filtered@localhost": _GRANTS,
    "vt_repl@'%'": "REPLICATION SLAVE",
}
"""Those of Vitess' init_db.sql."""

_OPTIONS: dict[str, str | int] = {"max-allowed-packet": "64M", "innodb-lock-wait-timeout": 5}

_MYSQL: dict[str, str | int] = {
    # The tablet decides who replicates, and who is written to.
    "skip-replica-start": 1,
    "super-read-only": 1,
    "relay-log-recovery": 1,
    # Of which Vitess' FullStatus reads how it replicates.
    "performance-schema": 1,
}

# Not read-only: on MariaDB, a tablet alters its own tables at each start, before it makes the database writable.
_MARIADB: dict[str, str | int] = {
    "collation-server": "utf8mb4_general_ci",
    "sql-mode": "STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION",
    "innodb-stats-persistent": 0,
}


class TabletMySQL(MySQL):
    """A MySQL that runs as the same account as its tablet, which refuses to run as root."""

    refuses_root = True
    replicates = True

    def __init__(self) -> None:
        super().__init__(options=_OPTIONS | _MYSQL)

    @property
    def data(self) -> Path:
        return data_folder(self.folder) / "mysql"

    @property
    def socket(self) -> Path:
        return data_folder(self.folder) / "mysql.sock"

    def create_accounts(self) -> None:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SET GLOBAL super_read_only = 0")
            _create_accounts(cursor)
            cursor.execute("SET GLOBAL super_read_only = 1")

    def _prepare(self) -> None:
        super()._prepare()
        give_ownership(data_folder(self.folder))


class TabletMariaDB(MariaDB10):
    """A MariaDB of a release that Vitess knows.

    Vitess 0.23 does not let it replicate: it compares the UUIDs of servers, which a MariaDB does not have
    (SetReplicationSource: ``invalid MySQL 5.6 SID ""``).
    """

    replicates = False

    def __init__(self) -> None:
        super().__init__(options=_OPTIONS | _MARIADB)

    @property
    def program(self) -> str:
        return self.process.command[0]

    def create_accounts(self) -> None:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            _create_accounts(cursor)


def _create_accounts(cursor: Cursor) -> None:
    # Each server has its own: in the binlog they would be transactions that its primary does not have.
    cursor.execute("SET sql_log_bin = 0")
    for account, grants in _ACCOUNTS.items():
        cursor.execute(f"CREATE USER {account}")
        cursor.execute(f"GRANT {grants} ON *.* TO {account}")
    cursor.execute("GRANT GRANT OPTION ON *.* TO vt_dba@localhost")
