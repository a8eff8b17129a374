"""The objects of a database by ``information_schema``: present tables, and objects that cannot be relayed.

For plans and checks, never for reading rows: their layout comes from their stream.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from relay.config.errors import nearest
from relay.mysql_dialect.alter_effects import ENGINES
from relay.mysql_dialect.printed import detail
from relay.table import Column
from relay.types.sql import Form, defined

Execute = Callable[[str], Iterable[Sequence[object]]]
OWN = ("information_schema", "mysql", "performance_schema", "sys")  # the databases of the server itself

# The columns that a sequence of MariaDB has in the binlog.
# fmt: off
SEQUENCE = (
    "next_not_cached_value", "minimum_value", "maximum_value", "start_value", "increment", "cache_size",
    "cycle_option", "cycle_count",
)
# fmt: on
_OBJECTS = "select TABLE_NAME, TABLE_TYPE, ENGINE from information_schema.TABLES where TABLE_SCHEMA = '{database}'"
_PARTITIONED = (
    "select TABLE_NAME from information_schema.PARTITIONS"
    " where TABLE_SCHEMA = '{database}' and '{name}' in (PARTITION_NAME, SUBPARTITION_NAME)"
)
_TABLES = ("BASE TABLE", "SYSTEM VERSIONED")
_OTHERS = {
    "VIEW": "is a view, whose changes the binlog records under the tables that it selects from: name these",
    "SEQUENCE": "is a sequence, which has no rows: leave it out",
    "MRG_MYISAM": "has the engine MERGE, so its rows are also changed under the names of its tables: name those "
    "instead",
    "BLACKHOLE": "has the engine BLACKHOLE, which keeps no rows: leave it out",
}
_ELSEWHERE = "has the engine {}, so its rows are outside the database and change without its binlog: leave it out"
NOT_TABLES = tuple(_OTHERS[kind] for kind in ("VIEW", "SEQUENCE"))  # the reasons for objects that keep no rows

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
"""Selects a row if text columns without a character set are binary in a table of the database."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A table's definition. ``primary``: key columns in order. ``problem``: why a left-out column is not carried."""

    columns: Sequence[Column]
    primary: Sequence[str]
    types: Mapping[str, str]
    problem: str = ""

    @classmethod
    def of(cls, types: Mapping[str, str], primary: Sequence[str]) -> Self:
        columns, problem = [], ""
        for name, definition in types.items():
            if _OLD_TIMES in definition:
                problem = f"cannot be read in binlogs: its column {name} is in the format of MariaDB 5.3: {NEW_TIMES}"
            try:
                columns.append(carried_column(name, definition))
            except ValueError as error:
                problem = f"cannot be relayed with its column {name}: {error}"
        return cls(columns, primary, types, problem)


def ask(execute: Execute, database: str, wanted: Iterable[str] | None = None) -> Mapping[str, Definition]:
    """Return the tables of ``database`` by name, all or those ``wanted``. ``execute`` returns a statement's rows."""
    chosen = None if wanted is None else set(wanted)
    types, keys = defaultdict[str, dict[str, str]](dict), defaultdict[str, list[tuple[int, str]]](list)
    for *column, place in execute(TABLES.format(database=quoted_text(database))):
        table, name, definition = map(text_of, column)
        if chosen is None or table in chosen:
            types[table][name] = definition
            if place is not None:
                keys[table].append((int(text_of(place)), name))
    return {table: Definition.of(found, [name for _, name in sorted(keys[table])]) for table, found in types.items()}


def text_by_default(execute: Execute, database: str) -> bool | None:
    """Return True if text columns without a character set are text in every table, otherwise None."""
    binary = any(list(execute(statement.format(database=quoted_text(database)))) for statement in BINARY)
    return None if binary else True


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def quoted_text(name: str) -> str:
    return name.replace("\\", "\\\\").replace("'", "''")


def text_of(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def carried_column(name: str, definition: str) -> Column:
    """Return the column for a type such as ``decimal(10,2) unsigned``. Raises ValueError if it cannot be carried."""
    found = defined(definition)
    return Column(name, found.carried, found.type.told, found.type.form is Form.ADDRESS, detail(found))


def unfit(execute: Execute, database: str, table: str = "") -> Mapping[str, str]:
    """Return the objects of ``database``, or only ``table``, that cannot be relayed, with reasons."""
    one = f" and TABLE_NAME = '{quoted_text(table)}'" if table else ""
    found = {}
    for row in execute(_OBJECTS.format(database=quoted_text(database)) + one):
        name, kind, engine = (text_of(value or "").upper() if at else text_of(value) for at, value in enumerate(row))
        if database.lower() in OWN:
            found[name] = "is one of the server's own, whose changes are not logged as rows: leave it out"
        elif kind not in _TABLES:
            found[name] = _OTHERS.get(kind, f"is a {kind}, not a table: leave it out")
        elif engine and engine not in ENGINES:  # only views and sequences have no engine
            found[name] = _OTHERS.get(engine, _ELSEWHERE.format(engine))
    return found


def absent(name: str, known: Collection[str]) -> str:
    """Return what to do about a table that is not among the ``known`` ones, as text after its name."""
    todo = "create it, or remove it from `tables` and `where`; a temporary table is not in the binlog"
    like = nearest(name, known)
    return f": {todo}" if like is None else f": did you mean `{like}`? Otherwise {todo}"


def explained(execute: Execute, database: str, missing: str) -> str:
    """Return what to do about a table that the config names but ``database`` lacks, as text after its name."""
    names = [text_of(row[0]) for row in execute(_OBJECTS.format(database=quoted_text(database)))]
    for name in names:
        if name.lower() == missing.lower():
            return f", but one that is called {name}: use this spelling"
    asked = _PARTITIONED.format(database=quoted_text(database), name=quoted_text(missing.rpartition("#P#")[2]))
    for row in execute(asked):
        return f": it is a partition of the table {text_of(row[0])}: name the table"
    return absent(missing, names)
