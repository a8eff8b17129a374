"""Tables as ``information_schema`` describes them now, for plans and checks, never for reading rows.

The layout of rows comes from their stream, which knows the table as it was when they were written.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from relay.table import Column
from relay.types.sql import Form, defined

TABLES = (
    "select c.TABLE_NAME, c.COLUMN_NAME, c.COLUMN_TYPE, k.SEQ_IN_INDEX from information_schema.COLUMNS c"
    " join information_schema.TABLES t on t.TABLE_SCHEMA = c.TABLE_SCHEMA and t.TABLE_NAME = c.TABLE_NAME"
    " left join information_schema.STATISTICS k on k.TABLE_SCHEMA = c.TABLE_SCHEMA and k.TABLE_NAME = c.TABLE_NAME"
    " and k.COLUMN_NAME = c.COLUMN_NAME and k.INDEX_NAME = 'PRIMARY'"
    " where c.TABLE_SCHEMA = '{database}' and t.TABLE_TYPE in ('BASE TABLE', 'SYSTEM VERSIONED')"
    " order by c.TABLE_NAME, c.ORDINAL_POSITION"
)
"""Selects all columns of a database, in the tables' order: table, name, type, and the place in the primary key, from 1.

One statement, since vtgate may send another to another server, which has no tables yet or older ones.
"""

_OLD_TIMES = "/* mariadb-5.3 */"
NEW_TIMES = "run `SET GLOBAL mysql56_temporal_format = ON`, then `ALTER TABLE ... FORCE`"

BINARY = (
    "select SCHEMA_NAME from information_schema.SCHEMATA"
    " where SCHEMA_NAME = '{database}' and DEFAULT_COLLATION_NAME = 'binary'",
    "select TABLE_NAME from information_schema.TABLES"
    " where TABLE_SCHEMA = '{database}' and TABLE_COLLATION = 'binary' limit 1",
)
"""Select rows if text columns are binary in a table of a database, unless their character set is given."""


@dataclass
class Definition:
    """A table as it is now. ``primary``: the columns of its primary key, in the key's order. ``types``: by column.

    ``problem``: why a column, which ``columns`` lacks, cannot be carried.
    """

    columns: list[Column] = field(default_factory=list)
    primary: list[str] = field(default_factory=list)
    problem: str = ""
    types: dict[str, str] = field(default_factory=dict)


def ask(
    execute: Callable[[str], Iterable[Sequence[object]]], database: str, wanted: Iterable[str] | None = None
) -> Mapping[str, Definition]:
    """Return the tables of ``database`` by name, all or only the ``wanted``. ``execute`` returns a statement's rows."""
    columns, keys = [], []
    for *column, place in execute(TABLES.format(database=quoted_text(database))):
        table, name, definition = map(text_of, column)
        columns.append((table, name, definition))
        if place is not None:
            keys.append((table, int(text_of(place)), name))
    return definitions(columns, [(table, name) for table, _, name in sorted(keys)], wanted)


def text_by_default(execute: Callable[[str], Iterable[Sequence[object]]], database: str) -> bool | None:
    """Return True if a text column without a character set is text in every table, else None."""
    binary = any(list(execute(statement.format(database=quoted_text(database)))) for statement in BINARY)
    return None if binary else True


def definitions(
    columns: Iterable[Sequence[str]], keys: Iterable[Sequence[str]], wanted: Iterable[str] | None = None
) -> Mapping[str, Definition]:
    """Return the tables by name, only the ``wanted`` ones if that is given.

    ``columns``: table, name and type of each, in the tables' order. ``keys``: table and name of each column of a
    primary key, in the keys' order.
    """
    chosen = None if wanted is None else set(wanted)
    found: dict[str, Definition] = {}
    for table, column, definition in columns:
        if chosen is None or table in chosen:
            each = found.setdefault(table, Definition())
            each.types[column] = definition
            if _OLD_TIMES in definition:
                each.problem = (
                    f"cannot be read in binlogs: its column {column} is in the format of MariaDB 5.3: {NEW_TIMES}"
                )
            try:
                each.columns.append(carried_column(column, definition))
            except ValueError as error:
                each.problem = f"cannot be relayed with its column {column}: {error}"
    for table, column in keys:
        if table in found:
            found[table].primary.append(column)
    return found


def quoted_text(name: str) -> str:
    return name.replace("\\", "\\\\").replace("'", "''")


def text_of(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def carried_column(name: str, definition: str) -> Column:
    """Return the column that carries one defined as, for example, ``decimal(10,2) unsigned``.

    Raises ValueError for a definition that cannot be read or carried.
    """
    found = defined(definition)
    return Column(name, found.carried, found.type.told, found.type.form is Form.ADDRESS)
