"""A PostgreSQL database: its connection, its errors in the user's words, and the names in its SQL."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

from relay.config import redacted
from relay.config.hidden import HIDDEN
from relay.errors import ConfigError, RelayError, Unavailable
from relay.extras import needs
from spark_consumers.sinks.faults import RowFault, TableFault

with needs("postgres", "a `copy.url` in PostgreSQL"):
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from psycopg.errors import InsufficientPrivilege as InsufficientPrivilege

Connection = psycopg.Connection[tuple[Any, ...]]

_SETTINGS = {
    "application_name": "relay copy",
    "connect_timeout": "10",  # seconds
    # So that a server that is gone without a word is noticed after a minute.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
"""Settings of a connection, unless the URL has another value."""

_WITHIN = (
    "SELECT set_config(name, value, true) FROM (VALUES ('synchronous_commit', 'off', 'local'), "
    "('lock_timeout', '0', '1min')) AS s(name, given, value) WHERE current_setting(name) = given"
)
"""Lets the server write a transaction to its disk before it reports it as committed, and bounds waits for locks."""

_HOLDER = """
SELECT format('process %s, user %s, application %s', pid, usename, application_name) FROM pg_locks JOIN
 pg_stat_activity USING (pid) WHERE granted AND pid <> pg_backend_pid() AND CASE locktype
 WHEN 'relation' THEN relation = to_regclass($1)
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
 WHEN 'advisory' THEN classid::bigint << 32 | objid::bigint = hashtextextended($1, 0) END
 ORDER BY mode = 'AccessShareLock' LIMIT 1"""
"""Who holds a table, rows of it, or our own lock on it: first those who do more than read it."""

PREFIX = "_relay_"
"""How the names of the copy's own tables begin, which stand beside its views."""

PROPERTIES = f"{PREFIX}properties"
"""The table of each schema with the properties of its other tables."""

_LONGEST_NAME = 63  # bytes; PostgreSQL cuts longer ones
_DIGEST = 8

# By the SQLSTATE, or its first two characters: no connection, the server ended the transaction, wrong user or password,
# no such database, a transaction that may be tried again, no resources, a lock of others, an operator or a restart, a
# system error, one inside PostgreSQL.
_UNAVAILABLE = frozenset({"08", "25", "28", "3D", "40", "53", "55006", "55P03", "57", "58", "72000", "XX"})
# Values, constraints, triggers, and a row that an index or a page has no room for.
_OF_ROWS = frozenset({"21", "22", "23", "38", "39", "44", "54000", "P0"})
# No permission, and a server that only reads.
_REFUSED = frozenset({"42501", "25006"})


class PostgresDatabase:
    """The database at ``url``, over one connection, which is opened when it is needed. For one thread at a time."""

    def __init__(self, url: str) -> None:
        """Raises ``ConfigError`` for a URL with unknown or invalid settings."""
        self.name = redacted(url.partition("?")[0])
        try:
            settings: dict[str, Any] = {**_SETTINGS, **conninfo_to_dict(url), "client_encoding": "UTF8"}
            self._settings = make_conninfo(**settings)
        except psycopg.ProgrammingError as error:
            said = _first_line(error)
            # The part of the URL that it quotes may be the password, unless it is the name of a setting.
            said = said if "parameter" in said else re.sub('".*"', HIDDEN, said)
            raise ConfigError(f"`copy.url`: {said}") from error
        self._connection: Connection | None = None

    def connect(self) -> None:
        """Connect. Raises ``Unavailable``."""
        with self.transaction():
            pass

    @contextmanager
    def transaction(self, table: str = "", *, writes_rows: bool = False) -> Iterator[Connection]:
        """Run a transaction, which is rolled back on any error. ``table``: a table that may be locked.

        Raises ``Unavailable`` and ``TableFault``, and also ``RowFault`` if it ``writes_rows`` from changes.
        """
        with self._errors(table, writes_rows=writes_rows):
            if self._connection is None or self._connection.closed:
                self._connection = self._connect()
            with self._connection.transaction():
                execute(self._connection, _WITHIN)  # I1: the checkpoint does not go back if the server loses a batch
                yield self._connection

    def iterate(self, statement: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query of any size, in a separate transaction. Raises what ``transaction`` does."""
        with (
            self._errors(),
            closing(self._connect()) as connection,
            psycopg.RawServerCursor(connection, "relay_rows") as cursor,
        ):
            execute(connection, _WITHIN)
            yield from cursor.execute(statement.encode())

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _connect(self) -> Connection:
        # Without prepared statements poolers can serve it, and names may hold any character.
        return psycopg.connect(self._settings, prepare_threshold=None, cursor_factory=psycopg.RawCursor)

    @contextmanager
    def _errors(self, table: str = "", *, writes_rows: bool = False) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            explained = self._explained(error, table, writes_rows)
            if not isinstance(explained, RowFault):  # many may follow
                self.close()  # whatever state it is in
            raise explained from error

    def _explained(self, error: psycopg.Error, table: str, writes_rows: bool) -> RelayError:
        state = error.sqlstate or ""
        said, kinds = f"copy {self.name}: {_first_line(error)}", {state, state[:2]}
        if isinstance(error, psycopg.errors.LockNotAvailable) and table:
            said += f": {table} is held by {self._holder(table)}: let it end its transaction"
        if state in _REFUSED:
            return Unavailable(f"{said}: `relay check` says what the copy needs")
        # Another driver has created the same schema at the same time, for another table.
        is_faster = state == "23505" and not writes_rows
        has_ended = not state and isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
        if kinds & _UNAVAILABLE or is_faster or has_ended:
            return Unavailable(said)
        if not state:
            return RelayError(said)
        return RowFault(said) if writes_rows and kinds & _OF_ROWS else TableFault(said)

    def _holder(self, table: str) -> str:
        with suppress(psycopg.Error), closing(self._connect()) as connection:
            if found := execute(connection, _HOLDER, [table]).fetchone():
                return str(found[0])
        return "somebody else"


def execute(connection: Connection, statement: str, arguments: Sequence[Any] = ()) -> psycopg.Cursor[tuple[Any, ...]]:
    """Execute a statement whose arguments are ``$1``, ``$2`` and so on."""
    return connection.execute(statement.encode(), arguments or None)


def problems(database: PostgresDatabase, schemas: Sequence[str]) -> list[str]:
    """Return what a copy into ``schemas`` lacks, each with the statement that grants it. Raises ``Unavailable``."""
    found = []
    with database.transaction() as connection:
        ((user, name, reads_only, may_create, may_stage),) = execute(
            connection,
            "SELECT current_user::text, current_database()::text, current_setting('transaction_read_only')::boolean,"
            " has_database_privilege(current_database(), 'CREATE'),"
            " has_database_privilege(current_database(), 'TEMPORARY')",
        )
        rights = dict(
            execute(
                connection,
                "SELECT nspname::text, has_schema_privilege(oid, 'USAGE') AND has_schema_privilege(oid, 'CREATE')"
                " FROM pg_namespace WHERE nspname = ANY ($1::text[])",
                [list(schemas)],
            ).fetchall()
        )
    if reads_only:
        found.append("it only allows reading: use the address of the primary")
    if not may_stage:
        found.append(f"GRANT TEMPORARY ON DATABASE {quoted(name)} TO {quoted(user)}")
    absent = [schema for schema in schemas if schema not in rights]
    if absent and not may_create:
        found += [f"CREATE SCHEMA {quoted(schema)} AUTHORIZATION {quoted(user)}" for schema in absent]
    refused = [schema for schema, allowed in rights.items() if not allowed]
    return found + [f"GRANT USAGE, CREATE ON SCHEMA {quoted(schema)} TO {quoted(user)}" for schema in refused]


def grants(connection: Connection, present: str, rebuilt: str) -> list[tuple[str, str]]:
    """Return what grants on ``rebuilt`` and its tables what is granted on ``present`` and its tables of the same names.

    Each with the name of the table, "" for the schema. Views are tables.
    """
    rows = execute(
        connection,
        "SELECT name, there.object, privilege_type, rolname::text, is_grantable FROM ("
        " SELECT '' AS name, format('SCHEMA %I', $2::text) AS object, nspacl AS acl, nspowner AS owner"
        " FROM pg_namespace WHERE nspname = $1::text"
        " UNION ALL SELECT relname::text, format('%I.%I', $2::text, relname), relacl, relowner FROM pg_class"
        " JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = $1::text AND relkind IN ('r', 'v')"
        " AND to_regclass(format('%I.%I', $2::text, relname)) IS NOT NULL"
        ") there, LATERAL aclexplode(acl) LEFT JOIN pg_roles ON pg_roles.oid = grantee WHERE grantee <> owner",
        [present, rebuilt],
    ).fetchall()
    found = []
    for name, target, privilege, role, is_grantable in rows:
        grantee = "PUBLIC" if role is None else quoted(role)
        option = " WITH GRANT OPTION" if is_grantable else ""
        found.append((name, f"GRANT {privilege} ON {target} TO {grantee}{option}"))
    return found


def identifier(name: str) -> str:
    """Return a name as PostgreSQL stores it: one that is too long ends in a digest."""
    raw = name.encode()
    if len(raw) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(raw).hexdigest()[:_DIGEST]
    return f"{raw[: _LONGEST_NAME - _DIGEST - 1].decode(errors='ignore')}_{digest}"


def quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def literal(text: str) -> str:
    """Return ``text`` as an SQL string literal, for servers with standard_conforming_strings."""
    escaped = text.replace("'", "''")
    return f"'{escaped}'"


def _first_line(error: psycopg.Error) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
