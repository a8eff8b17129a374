"""What of a database cannot be relayed: views, sequences, tables of some engines, and tables of the server itself."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from relay.mysql_dialect.alter_parts import ENGINES
from relay.mysql_dialect.definitions import quoted_text, text_of

Execute = Callable[[str], Iterable[Sequence[object]]]

OWN = ("information_schema", "mysql", "performance_schema", "sys")
"""The databases of the server itself."""

SEQUENCE = (
    "next_not_cached_value",
    "minimum_value",
    "maximum_value",
    "start_value",
    "increment",
    "cache_size",
    "cycle_option",
    "cycle_count",
)
"""The columns that a sequence of MariaDB has in the binlog."""

ABSENT = ": create it, or remove it from `tables` and `where`; a temporary table is not in the binlog"
"""What to do about a table that is not there."""

_OBJECTS = "select TABLE_NAME, TABLE_TYPE, ENGINE from information_schema.TABLES where TABLE_SCHEMA = '{database}'"
_PARTITIONED = (
    "select TABLE_NAME from information_schema.PARTITIONS"
    " where TABLE_SCHEMA = '{database}' and '{name}' in (PARTITION_NAME, SUBPARTITION_NAME)"
)
_TABLES = ("BASE TABLE", "SYSTEM VERSIONED")
_OTHERS = {
    "VIEW": "is a view, and the binlog has its changes as those of the tables that it selects from: name these",
    "SEQUENCE": "is a sequence, which has no rows: leave it out",
    "MRG_MYISAM": "has the engine MERGE, so its rows are also changed under the names of its tables: name these",
    "BLACKHOLE": "has the engine BLACKHOLE, which keeps no rows: leave it out",
}
_ELSEWHERE = "has the engine {}, so its rows are outside of the database and change without its binlog: leave it out"


NOT_TABLES = tuple(_OTHERS[kind] for kind in ("VIEW", "SEQUENCE"))
"""The reasons of objects that keep no rows."""


def unfit(execute: Execute, database: str, table: str = "") -> Mapping[str, str]:
    """Return what of ``database`` cannot be relayed, each with the reason; only views and sequences have no engine.

    ``table``: asks for this one alone.
    """
    one = f" and TABLE_NAME = '{quoted_text(table)}'" if table else ""
    found = {}
    for row in execute(_OBJECTS.format(database=quoted_text(database)) + one):
        name, kind, engine = (text_of(value or "").upper() if at else text_of(value) for at, value in enumerate(row))
        if database.lower() in OWN:
            found[name] = "is one of the server's own, whose changes are not logged as rows: leave it out"
        elif kind not in _TABLES:
            found[name] = _OTHERS.get(kind, f"is a {kind}, and no table: leave it out")
        elif engine and engine not in ENGINES:
            found[name] = _OTHERS.get(engine, _ELSEWHERE.format(engine))
    return found


def explained(execute: Execute, database: str, missing: str) -> str:
    """Return what to do about a table that the config names and that ``database`` lacks, to be put after its name."""
    for row in execute(_OBJECTS.format(database=quoted_text(database))):
        if (name := text_of(row[0])).lower() == missing.lower():
            return f", but one that is called {name}: write it so"
    asked = _PARTITIONED.format(database=quoted_text(database), name=quoted_text(missing.rpartition("#P#")[2]))
    for row in execute(asked):
        return f": it is a partition of the table {text_of(row[0])}: name the table"
    return ABSENT
