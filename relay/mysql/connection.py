"""A connection to a MySQL or MariaDB server: login, flavour, settings, GTIDs, and whether its binlog can be read."""

from __future__ import annotations

import re
import ssl as tls
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Literal

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor, DictCursor

from relay.aws import Refused
from relay.errors import Unavailable
from relay.gtid import GtidError, GtidSet, parse
from relay.mysql.errors import FAULTS, Denied, Interrupted, NotCarried, translated
from relay.mysql.text_rows import row_packets, values_of
from relay.mysql_dialect.read_only import is_read_only
from relay.process.connections import closed_on_error
from relay.process.service_clock import ServiceClock

CONNECT_TIMEOUT = 10.0  # seconds
READ_TIMEOUT = 30.0  # seconds

# Authentication plugins that send the password as it is, and the error code for unusable ones.
_CLEAR = ("mysql_clear_password", "dialog")
_NO_PLUGIN = 2059

_SESSION = (
    f"SET SESSION sql_select_limit = {2**64 - 1}, wait_timeout = 28800, net_write_timeout = 3600"
    " /*M!, system_versioning_asof = DEFAULT */"
)
"""Lets a SELECT return all present rows, and keeps the connection alive, whatever the server's own settings are."""

Password = str | Callable[[], str]

_TAGGED = re.compile(r"(?<=:)[a-z_]\w*(?=:)", re.IGNORECASE)

# Whether MySQL shows primary keys that it generated itself. The binlog always has them.
_SHOWS_KEYS = "show_gipk_in_create_table_and_information_schema"

LEAVE_NOTHING_OUT = {
    "replica_exec_mode": ("STRICT",),
    "replica_skip_errors": ("OFF",),
    "replica_type_conversions": ("", "ALL_NON_LOSSY"),
    "replicate_events_marked_for_skip": ("REPLICATE",),
    "slave_exec_mode": ("STRICT",),
    "slave_run_triggers_for_rbr": ("NO",),
    "slave_skip_errors": ("OFF",),
    "slave_type_conversions": ("", "ALL_NON_LOSSY"),
}
"""Settings of a replica, with the only values that let it apply everything unchanged."""

FILTERS = ("Do_DB", "Ignore_DB", "Do_Table", "Ignore_Table", "Wild_Do_Table", "Wild_Ignore_Table", "Rewrite_DB")
"""The filters of a replica, with their names after ``Replicate_`` in its status."""

# fmt: off
_VARIABLES = (
    *(f"replicate_{name}".lower() for name in FILTERS), *LEAVE_NOTHING_OUT, _SHOWS_KEYS,
    "binlog_error_action", "binlog_format", "binlog_row_image", "binlog_row_metadata", "binlog_row_value_options",
    "group_replication_group_name", "gtid_domain_id", "gtid_mode", "innodb_native_foreign_keys", "log_bin",
    "log_replica_updates", "log_slave_updates", "lower_case_table_names", "read_only", "server_id", "server_uuid",
    "super_read_only", "version",
)
# fmt: on


@dataclass(frozen=True, slots=True)
class Login:
    """A server, and who reads there. ``ssl``: None if unencrypted. ``password``: or what makes one per connection."""

    host: str
    port: int
    user: str
    password: Password = field(repr=False)
    ssl: tls.SSLContext | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def connect(self) -> Connection[Cursor]:
        """Connect and log in. Raises ``Interrupted`` or ``Denied``."""
        try:
            # PyMySQL would encode it as Latin-1, but servers use UTF-8.
            password = (self.password if isinstance(self.password, str) else self.password()).encode()
        except UnicodeEncodeError:  # its text contains the password
            raise Denied(f"{self.address}: the password is not UTF-8") from None
        except Refused as fault:
            raise Denied(f"{self.address}: {fault}") from fault
        except Unavailable as fault:
            raise Interrupted(f"{self.address}: {fault}") from fault
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
                # Such as a malformed public key.
                raise Denied(f"{self.address}: cannot log in: {fault}") from None
            raise translated(fault, self.address) from None
        if self.ssl is not None and not connection._secure:  # type: ignore[attr-defined]
            # PyMySQL 1.1 continues without TLS if the server, or somebody who pretends to be the server, offers none.
            connection.close()
            raise Denied(f"{self.address}: it offers no TLS, which `tls` requires")
        return connection


class _ClearPassword:
    """Sends the password itself to a server that asks for it, but only over TLS: anybody else could be that server."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def authenticate(self, _: object) -> Any:
        connection = self._connection
        if not connection._secure:
            raise pymysql.err.OperationalError(
                _NO_PLUGIN,
                "it asks for the password in clear text, which is sent only over TLS: set `tls`, or change the "
                "user's authentication plugin",
            )
        connection.write_packet(connection.password + b"\0")
        answer = connection._read_packet()
        answer.check_error()
        return answer


class ServerConnection:
    """An open connection, for one thread. ``settings``: the server's variables. ``clock``: is told its time."""

    def __init__(self, account: Login, connection: Connection[Cursor], clock: ServiceClock | None = None) -> None:
        self.account = account
        self._connection = connection
        self.refresh()
        self.version = self.settings["version"]
        self.flavour: Literal["MySQL56", "MariaDB"] = "MariaDB" if "gtid_domain_id" in self.settings else "MySQL56"
        self.server_id = int(self.settings["server_id"])
        self.uuid = self.settings.get("server_uuid", "")
        # I1: names come in backticks, and statements keep their standard meaning, whatever the server's settings are.
        session = "SET SESSION sql_mode = '', sql_quote_show_create = 1"
        self.execute(f"{session}, {_SHOWS_KEYS} = ON" if _SHOWS_KEYS in self.settings else session)  # I1
        self.clock = clock or ServiceClock()
        self.now()

    @property
    def is_mariadb(self) -> bool:
        return self.flavour == "MariaDB"

    @property
    def identity(self) -> str:
        """The server's identity for its replicas: its UUID, or MariaDB's server id."""
        return str(self.server_id) if self.is_mariadb else self.uuid.lower()

    def close(self) -> None:
        self._connection.close()

    def execute(self, statement: str, arguments: Sequence[object] | None = None) -> Sequence[tuple[Any, ...]]:
        """Run one statement. Raises ``Interrupted``, ``Denied`` or ``Unavailable``."""
        return self._rows(Cursor, statement, arguments)

    def named_rows(self, statement: str) -> Sequence[Mapping[str, object]]:
        """Run one statement and return its rows by column name. Raises as ``execute`` does."""
        return self._rows(DictCursor, statement)

    def _rows(self, kind: type[Cursor], statement: str, arguments: Sequence[object] | None = None) -> Sequence[Any]:
        try:
            with self._connection.cursor(kind) as cursor:
                cursor.execute(statement, arguments)
                return cursor.fetchall()
        except FAULTS as fault:
            raise translated(fault, self.account.address) from None

    def status_by(self, statements: Sequence[str], what: str) -> Sequence[Mapping[str, object]]:
        """Return the rows of the first statement that is known. Raises ``Denied`` with the GRANT, ``Unavailable``."""
        *newer, last = statements
        try:
            for statement in newer:
                try:
                    return self.named_rows(statement)
                except Denied:
                    raise
                except Unavailable:
                    continue
            return self.named_rows(last)
        except Denied as error:
            raise Denied(f"{error}. The relay must know {what}: `{self.grant}`") from None

    def raw_rows(self, statement: str) -> Generator[tuple[bytes | None, ...]]:
        """Run one statement and yield its rows as sent. Closing it drops the rest. Raises as ``execute`` does."""
        with closing(self.row_packets(statement)) as packets:
            for packet in packets:
                yield self.row_of(packet)

    def row_of(self, packet: bytes) -> tuple[bytes | None, ...]:
        """Return the values in the packet of a row. Raises ``Interrupted``."""
        try:
            return values_of(packet)
        except (IndexError, KeyError):
            raise Interrupted(f"{self.account.address}: its answer is not in MySQL's protocol") from None

    def row_packets(self, statement: str) -> Generator[bytes]:
        """Run one statement and yield packets for `row_of`. Closing it drops the rest. Raises as ``execute`` does."""
        try:
            yield from row_packets(self._connection, statement)
        except FAULTS as fault:
            raise translated(fault, self.account.address) from None

    def visible(self) -> GtidSet:
        """Return the executed set that queries see: transactions are in the binlog a moment earlier."""
        if not self.is_mariadb:
            return self.executed()  # MySQL adds to the set after the storage engines have committed
        ((text,),) = self.execute("SELECT BINLOG_GTID_POS(%s, %s)", self.visible_place())
        return parse(f"MariaDB/{text or ''}")

    def visible_place(self) -> tuple[str, int]:
        """Return the place in MariaDB's binlog up to which a query sees all transactions, and none after it."""
        self.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        try:
            found = {str(name).lower(): value for name, value in self.execute("SHOW STATUS LIKE 'binlog_snapshot_%'")}
        finally:
            self.execute("COMMIT")
        return str(found["binlog_snapshot_file"]), int(found["binlog_snapshot_position"])

    def refresh(self) -> None:
        """Read the settings again. Raises ``Unavailable``."""
        names = ", ".join(["%s"] * len(_VARIABLES))
        rows = self.execute(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})", _VARIABLES)
        self.settings: Mapping[str, str] = {str(name).lower(): str(value) for name, value in rows}

    @property
    def read_only(self) -> bool:
        """Whether it was read-only at the last ``refresh``, as replicas usually are."""
        return any(is_read_only(self.settings.get(name)) for name in ("read_only", "super_read_only"))

    @property
    def logs_cascades(self) -> bool:
        """Whether rows changed by foreign keys are in the binlog: by default since MySQL 9.6, never in MariaDB."""
        return not _on(self.settings.get("innodb_native_foreign_keys", "ON"))

    @property
    def stores_lower_case(self) -> bool:
        """Whether it stores names of databases and tables in lower case, however statements write them."""
        return self.settings.get("lower_case_table_names") == "1"

    def now(self) -> float:
        """Return the time by the server's clock, in seconds. Raises ``Unavailable``."""
        ((now,),) = self.execute("SELECT @@timestamp")
        self.clock.note(float(now), self.account.address)
        return float(now)

    def executed(self) -> GtidSet:
        """Return the GTID set of its binlog. Raises ``Unavailable``, ``NotCarried`` for GTIDs with tags."""
        return self.gtid_set("@@global.gtid_binlog_pos" if self.is_mariadb else "@@global.gtid_executed")

    def gtid_set(self, variable: str) -> GtidSet:
        """Return the GTID set in a variable. Raises ``Unavailable``, ``NotCarried``."""
        ((text, now),) = self.execute(f"SELECT {variable}, @@timestamp")
        self.clock.note(float(now), self.account.address)
        return self.parsed(str(text))

    def parsed(self, text: str) -> GtidSet:
        """Read a GTID set as the server writes it. Raises ``NotCarried``."""
        text = text.replace("\n", "")
        try:
            return parse(f"{self.flavour}/{text}")
        except GtidError as fault:
            tagged = _TAGGED.search(text)
            reason = f"it has GTIDs with tags ({tagged[0]}), which the relay does not support" if tagged else fault
            raise NotCarried(f"{self.account.address}: its binlog cannot be read: {reason}") from None

    def most_unacknowledged(self) -> int:
        """Return the most of its transactions that may wait for semi-synchronous replicas: each holds a session."""
        found = self.execute(
            "SHOW GLOBAL STATUS WHERE Variable_name LIKE 'Rpl_semi_sync_%_wait_sessions' "
            "OR Variable_name = 'Threads_connected'"
        )
        counts = {str(name).lower(): int(value) for name, value in found}
        sessions = counts.pop("threads_connected", 0)
        return sessions if any(counts.values()) else 0  # of a group, only the first counts as waiting

    def binlog_state(self) -> str:
        """MariaDB: the last GTID of each server in each domain of its binlog. Raises ``Unavailable``."""
        ((text,),) = self.execute("SELECT @@global.gtid_binlog_state")
        return str(text)

    def binlogs(self) -> list[str]:
        """Return the names of its binlog files, oldest first. Raises ``Unavailable``."""
        return [str(row[0]) for row in self.execute("SHOW BINARY LOGS")]

    def binlog_status(self) -> Mapping[str, object]:
        """Return the status of its binlog. Raises ``Denied`` if the server has closed it, ``Unavailable``."""
        newer = () if self.is_mariadb else ("SHOW BINARY LOG STATUS",)
        found = self.status_by((*newer, "SHOW MASTER STATUS"), "what its binlog leaves out")  # before MySQL 8.2
        if not found and _on(self.settings.get("log_bin")):  # I1: connections that read it remain open, too
            raise Denied(
                f"{self.account.address}: it has closed its binlog after an error, and its changes since then are not "
                "logged: see its error log, restart it, and take a snapshot"
            )
        return found[0] if found else {}

    @property
    def grant(self) -> str:
        """The statement that grants the user all privileges needed. MariaDB has one for the replication status."""
        more = ", SLAVE MONITOR" if self.is_mariadb else ""
        return f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT{more} ON *.* TO {self.account.user}"

    def verify(self, *, is_replica: bool = False) -> None:
        """Raise ``Denied`` with every wrong setting and the SQL to fix it; ``NotCarried`` for GTIDs with tags."""
        settings, found = self.settings, list[str]()
        if not _on(settings.get("log_bin")):
            found.append("the server does not write one: set `log_bin` in its configuration file and restart it")
        for name, value in (("binlog_format", "ROW"), ("binlog_row_image", "FULL"), ("binlog_row_metadata", "FULL")):
            if (has := settings.get(name)) is None:
                found.append(
                    f"it has no {name}: the relay needs MySQL 8.0.1 or MariaDB 10.5, or later; this is {self.version}"
                )
            elif has.upper() != value:
                found.append(f"{name} is {has}: run `SET GLOBAL {name} = '{value}'`")
        if (action := settings.get("binlog_error_action", "ABORT_SERVER").upper()) != "ABORT_SERVER":  # I1
            found.append(
                f"binlog_error_action is {action}, so the server continues without a binlog after an error: set it to "
                "ABORT_SERVER in its configuration file or parameter group, and until a restart with `SET GLOBAL`"
            )
        if settings.get("binlog_row_value_options"):
            found.append("it logs partial JSON: run `SET GLOBAL binlog_row_value_options = ''`")
        if not self.is_mariadb and settings.get("gtid_mode", "OFF").upper() != "ON":
            found.append(
                f"gtid_mode is {settings.get('gtid_mode', 'OFF')}: run `SET GLOBAL enforce_gtid_consistency = ON`, "
                "then `SET GLOBAL gtid_mode = ...` with OFF_PERMISSIVE, ON_PERMISSIVE and ON, in this order"
            )
        logs_replicated = settings.get("log_replica_updates", settings.get("log_slave_updates", "ON"))
        if (is_replica or self.read_only) and not _on(logs_replicated):  # by default, MariaDB does not
            name = "log_slave_updates" if self.is_mariadb else "log_replica_updates"
            found.append(f"it does not log what it replicates: set `{name}` in its configuration file and restart it")
        if found:
            raise Denied(f"{self.account.address}: its binlog cannot be read: " + "; ".join(found))
        self.executed()  # raises for GTIDs with tags


def _on(value: str | None) -> bool:
    return value is not None and value.upper() in ("ON", "1", "YES", "TRUE")


def connect(
    host: str,
    port: int = 3306,
    user: str = "",
    password: Password = "",
    ssl: tls.SSLContext | None = None,
    clock: ServiceClock | None = None,
) -> ServerConnection:
    """Connect to a server. ``clock``: see `ServerConnection`. Raises ``Interrupted``, ``Denied``, ``Unavailable``."""
    account = Login(host, port, user, password, ssl)
    with closed_on_error(account.connect()) as connection:
        return ServerConnection(account, connection, clock)
