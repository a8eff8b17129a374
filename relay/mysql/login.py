"""Where a MySQL or MariaDB server is, and how a user logs in there."""

from __future__ import annotations

import ssl as tls
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from relay.aws import Refused
from relay.errors import Unavailable
from relay.mysql.errors import FAULTS, Denied, Interrupted, translated

CONNECT_TIMEOUT = 10.0  # seconds
READ_TIMEOUT = 30.0  # seconds

# Authentication plugins that send the password as it is, and the code of the error for unusable ones.
_CLEAR = ("mysql_clear_password", "dialog")
_NO_PLUGIN = 2059

_SESSION = (
    f"SET SESSION sql_select_limit = {2**64 - 1}, wait_timeout = 28800, net_write_timeout = 3600"
    " /*M!, system_versioning_asof = DEFAULT */"
)
"""Lets a SELECT return all present rows, and the connection last, whatever the server's own settings are.

It leaves other settings, such as `sql_mode`, to the users of the connection.
"""

Password = str | Callable[[], str]


@dataclass(frozen=True, slots=True)
class Login:
    """Where a server is and which user reads there. ``ssl``: None for a connection that is not encrypted.

    ``password``: or what makes a new one for each connection.
    """

    host: str
    port: int
    user: str
    password: Password = field(repr=False)
    ssl: tls.SSLContext | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def connect(self) -> Connection[Cursor]:
        """Raises ``Interrupted`` or ``Denied``."""
        text = self.password if isinstance(self.password, str) else self._new_password(self.password)
        try:
            password = text.encode()  # PyMySQL would take Latin-1, and servers take UTF-8
        except UnicodeEncodeError:  # its text has the password in it
            raise Denied(f"{self.address}: the password is not UTF-8") from None
        try:
            connection = pymysql.connect(
                host=self.host,
                port=self.port,
                user=self.user,
                password=password,
                ssl=self.ssl,
                ssl_disabled=self.ssl is None,
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=CONNECT_TIMEOUT,
                read_timeout=READ_TIMEOUT,
                write_timeout=READ_TIMEOUT,
                init_command=_SESSION,  # I1
                auth_plugin_map=dict.fromkeys(_CLEAR, _ClearPassword),
            )
        except FAULTS as fault:
            if isinstance(fault, ValueError) and not isinstance(fault, UnicodeError):
                # Such as a public key that is none.
                raise Denied(f"{self.address}: it cannot be logged in to: {fault}") from None
            raise translated(fault, self.address) from None
        if self.ssl is not None and not _is_encrypted(connection):
            # PyMySQL 1.1 goes on without TLS if the server, or somebody who pretends to be it, offers none.
            connection.close()
            raise Denied(f"{self.address}: it offers no TLS, which `tls` requires")
        return connection

    def _new_password(self, make: Callable[[], str]) -> str:
        try:
            return make()
        except Refused as fault:
            raise Denied(f"{self.address}: {fault}") from fault
        except Unavailable as fault:
            raise Interrupted(f"{self.address}: {fault}") from fault


class _ClearPassword:
    """Sends the password itself to a server that asks for it, and only over TLS: anybody else could be that server.

    PyMySQL makes one for a connection that authenticates so.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def authenticate(self, _: object) -> Any:
        connection = self._connection
        if not _is_encrypted(connection):
            raise pymysql.err.OperationalError(
                _NO_PLUGIN,
                "it asks for the password in clear text, which it gets only over TLS: set `tls`, or give the user "
                "another authentication plugin",
            )
        connection.write_packet(connection.password + b"\0")
        answer = connection._read_packet()
        answer.check_error()
        return answer


def _is_encrypted(connection: Any) -> bool:
    return bool(connection._secure)
