"""The base class of the embedded MariaDB and of the MySQL servers in tests: connections and statements."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from relay.process.managed import HOST
from relay.services.server import EmbeddedServer

USER = "relay"
PASSWORD = "relay"
"""The account of the relay and of replicas, which may read all tables and the binlog, from any host."""


class SQLServer(EmbeddedServer):
    """A server on the loopback address. Its root needs no password on the local socket."""

    # It is kept for a restart.
    _read_only = False

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
