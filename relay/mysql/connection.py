"""One MySQL or MariaDB server: what it is, whether its binlog is fit to be read, and how far it has got.

May be changed here: the settings that are asked for. They are what the decoding in this package rests on.
"""

from __future__ import annotations

import re
import ssl as tls
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from relay.errors import RelayError, Unavailable
from relay.gtid import GtidError, GtidSet, parse
from relay.mysql.errors import BinlogPurged, Denied, Diverged, Interrupted, NotCarried

CONNECT_TIMEOUT = 10.0
READ_TIMEOUT = 30.0

_DENIED = frozenset(
    {1044, 1045, 1130, 1142, 1227, 1251, 1698, 1820, 1862, 1873, 2049, 2054, 2059, 2061, 3118, 3159, 4151}
)
_PASSING = frozenset({1040, 1053, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1205, 1226, 1290, 1317, 1927})
_BINLOG = 1236
_NOT_LOGGING = 1381
# What servers say of a position that is not of their history; the second of a hole in it.
_ELSEWHERE = ("not in the master's binlog", "is missing the gtid", "more gtids than", "gtid_strict_mode")

_TAGGED = re.compile(r"(?<=:)[a-z_]\w*(?=:)", re.IGNORECASE)

_VARIABLES = (
    "log_bin",
    "binlog_format",
    "binlog_row_image",
    "binlog_row_metadata",
    "binlog_row_value_options",
    "binlog_transaction_compression",
    "log_slave_updates",
    "log_replica_updates",
    "gtid_mode",
    "gtid_domain_id",
    "gtid_strict_mode",
    "group_replication_group_name",
    "innodb_native_foreign_keys",
    "read_only",
    "super_read_only",
    "server_id",
    "server_uuid",
    "version",
)


@dataclass(frozen=True, slots=True)
class Login:
    """Where a server is and who reads there. ``ssl``: None for a connection that is not encrypted."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    ssl: tls.SSLContext | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def connect(self) -> Connection[Cursor]:
        """Raises ``Interrupted`` or ``Denied``."""
        try:
            return pymysql.connect(
                host=self.host,
                port=self.port,
                user=self.user,
                password=self.password,
                ssl=self.ssl,
                ssl_disabled=self.ssl is None,
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=CONNECT_TIMEOUT,
                read_timeout=READ_TIMEOUT,
                write_timeout=READ_TIMEOUT,
            )
        except (pymysql.err.MySQLError, OSError, RuntimeError) as fault:
            raise translated(fault, self.address) from None


class ServerConnection:
    """A server that was connected to; ``connect`` makes it. Used by one thread at a time."""

    def __init__(self, account: Login, connection: Connection[Cursor]) -> None:
        self.account = account
        self._connection = connection
        self.settings: Mapping[str, str] = self._settings()
        self.version = self.settings["version"]
        self.flavour: Literal["MySQL56", "MariaDB"] = "MariaDB" if "gtid_domain_id" in self.settings else "MySQL56"
        self.server_id = int(self.settings["server_id"])
        self.uuid = self.settings.get("server_uuid", "")
        asked = time.time()
        ((now,),) = self.execute("SELECT UNIX_TIMESTAMP(NOW(6))")
        # The server's clock less ours, at least: what it took to answer is counted against it.
        self.clock = float(now) - time.time()
        self.clock_error = time.time() - asked

    def __repr__(self) -> str:
        return f"<ServerConnection[{self.account.address}: {self.flavour} {self.version}]>"

    @property
    def is_mariadb(self) -> bool:
        return self.flavour == "MariaDB"

    def close(self) -> None:
        self._connection.close()

    def execute(self, statement: str, arguments: Sequence[object] | None = None) -> Sequence[tuple[Any, ...]]:
        """Run one statement. Raises ``Interrupted``, ``Denied`` or ``Unavailable``."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(statement, arguments)
                return cursor.fetchall()
        except (pymysql.err.MySQLError, OSError) as fault:
            raise translated(fault, self.account.address) from None

    def _settings(self) -> Mapping[str, str]:
        names = ", ".join(["%s"] * len(_VARIABLES))
        rows = self.execute(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})", _VARIABLES)
        return {str(name).lower(): str(value) for name, value in rows}

    def refresh(self) -> None:
        """Ask for the settings again."""
        self.settings = self._settings()

    @property
    def read_only(self) -> bool:
        """As of the last ``refresh``: a replica, commonly."""
        return _on(self.settings.get("read_only")) or _on(self.settings.get("super_read_only"))

    @property
    def logs_cascades(self) -> bool:
        """Whether what foreign keys change is in the binlog: MySQL's own since 9.6, unless it is told otherwise."""
        return not _on(self.settings.get("innodb_native_foreign_keys", "ON"))

    @property
    def in_group(self) -> bool:
        """Whether it is of a group of MySQL's group replication. No SHOW REPLICA STATUS tells of that."""
        return bool(self.settings.get("group_replication_group_name"))

    def executed(self) -> GtidSet:
        """Return what is in its binlog. Raises ``Unavailable``, ``NotCarried`` for GTIDs with tags."""
        return self.gtid_set("@@global.gtid_binlog_pos" if self.is_mariadb else "@@global.gtid_executed")

    def gtid_set(self, variable: str) -> GtidSet:
        """Return the set that a variable holds. Raises ``Unavailable``, ``NotCarried``."""
        ((text,),) = self.execute(f"SELECT {variable}")
        text = str(text).replace("\n", "")
        try:
            return parse(f"{self.flavour}/{text}")
        except GtidError as fault:
            tagged = _TAGGED.search(text)
            raise NotCarried(
                f"{self.account.address}: its binlog cannot be read: "
                + (
                    f"transactions have GTIDs with tags ({tagged[0]}), which are not supported"
                    if tagged
                    else str(fault)
                )
            ) from None

    def binlogs(self) -> list[str]:
        """Return the names of its binlog files, oldest first. Raises ``Unavailable``."""
        return [str(row[0]) for row in self.execute("SHOW BINARY LOGS")]

    @property
    def grant(self) -> str:
        """The statement that gives the user what is needed. MariaDB has a right of its own for replication's state."""
        more = ", SLAVE MONITOR" if self.is_mariadb else ""
        return f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT{more} ON *.* TO {self.account.user}"

    def verify(self) -> None:
        """Raises ``Denied``: it names every setting that does not fit, and the SQL that mends it; ``NotCarried``."""
        problems = self._problems()
        if problems:
            raise Denied(f"{self.account.address}: its binlog cannot be read: " + "; ".join(problems))
        self.executed()  # whether it can be

    def _problems(self) -> list[str]:
        settings = self.settings
        found: list[str] = []
        if not _on(settings.get("log_bin")):
            found.append("it writes none: start it with `log_bin` (its configuration file)")
        wanted = [("binlog_format", "ROW"), ("binlog_row_image", "FULL"), ("binlog_row_metadata", "FULL")]
        for name, value in wanted:
            has = settings.get(name)
            if has is None:
                found.append(f"it has no {name}: MySQL 8.0.1 or MariaDB 10.5 is needed, it is {self.version}")
            elif has.upper() != value:
                found.append(f"{name} is {has}: `SET GLOBAL {name} = '{value}'`")
        if settings.get("binlog_row_value_options"):
            found.append("JSON is logged in parts: `SET GLOBAL binlog_row_value_options = ''`")
        if not self.is_mariadb and settings.get("gtid_mode", "OFF").upper() != "ON":
            found.append(
                f"gtid_mode is {settings.get('gtid_mode', 'OFF')}: `SET GLOBAL enforce_gtid_consistency = ON`, then "
                "`SET GLOBAL gtid_mode = ...` by OFF_PERMISSIVE and ON_PERMISSIVE to ON"
            )
        if self.read_only and not self.logs_replicated:
            found.append(self._replicated_problem)
        return found

    @property
    def logs_replicated(self) -> bool:
        """Whether what it replicates comes into its own binlog, as by default MariaDB's replicas do not do."""
        return _on(self.settings.get("log_replica_updates", self.settings.get("log_slave_updates", "ON")))

    def verify_replica(self) -> None:
        """Raises ``Denied`` if a server that replicates does not log it, be it writable or not."""
        if not self.logs_replicated:
            raise Denied(f"{self.account.address}: its binlog cannot be read: {self._replicated_problem}")

    @property
    def _replicated_problem(self) -> str:
        name = "log_slave_updates" if self.is_mariadb else "log_replica_updates"
        return f"it does not log what it replicates: start it with `{name}`"


def _on(value: str | None) -> bool:
    return value is not None and value.upper() in ("ON", "1", "YES", "TRUE")


def connect(
    host: str, port: int = 3306, user: str = "", password: str = "", ssl: tls.SSLContext | None = None
) -> ServerConnection:
    """Connect to a server. Raises ``Interrupted``, ``Denied``, ``Unavailable``."""
    account = Login(host, port, user, password, ssl)
    connection = account.connect()
    try:
        return ServerConnection(account, connection)
    except BaseException:
        connection.close()
        raise


def translated(fault: Exception, address: str) -> RelayError:
    """Return the error to raise for what PyMySQL raised."""
    if isinstance(fault, pymysql.err.MySQLError) and fault.args and isinstance(fault.args[0], int):
        return refusal(fault.args[0], str(fault.args[1]) if len(fault.args) > 1 else "", address)
    if isinstance(fault, RuntimeError):
        # PyMySQL's word for an optional package that is missing.
        return Denied(f"{address}: {fault}")
    if isinstance(fault, struct.error):
        return Interrupted(f"{address}: what it answers is not MySQL's protocol")
    return Interrupted(f"{address}: {fault or type(fault).__name__}")


def refusal(code: int, text: str, address: str) -> RelayError:
    """Return the error to raise for what a server said."""
    said = f"{address}: {text} ({code})"
    if code in _DENIED:
        needs = ": the user needs REPLICATION SLAVE and REPLICATION CLIENT, in MariaDB SLAVE MONITOR as well"
        return Denied(said + (needs if code == 1227 else ""))
    if code in _PASSING or 2000 <= code < 2049:
        return Interrupted(said)
    if code == _NOT_LOGGING:
        return Denied(f"{said}: start it with `log_bin`")
    if code != _BINLOG:
        return Unavailable(said)
    lower = text.lower()
    if "same server_uuid" in lower or "same server_id" in lower or "same server id" in lower:
        return Interrupted(said)
    if any(each in lower for each in _ELSEWHERE):
        return Diverged(said)
    if "purged" in lower or "could not find first log" in lower or "could not find gtid state" in lower:
        return BinlogPurged(said)
    return Unavailable(said)
