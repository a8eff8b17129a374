"""A copy in PostgreSQL, where each source has a schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from relay.config import Config, CopyConfig, SourceConfig
from relay.errors import ConfigError, Unavailable
from spark_consumers.kept_rows import OpenKeptRows
from spark_consumers.sinks.copy_target import NOTE, CopyTarget, Renames
from spark_consumers.sinks.kept_postgres import KeptInPostgres
from spark_consumers.sinks.postgres import PREFIX, PostgresDatabase, identifier, problems, swap_schemas, used_schemas

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_consumers.sinks.postgres_copy import PostgresTable


class PostgresTarget(CopyTarget):
    """The copy of ``copy``. ``prefix``: begins its schemas' names.

    Raises ``ConfigError`` for a URL that is wrong, and for a name that PostgreSQL or the copy has for itself.
    """

    def __init__(self, config: Config, copy: CopyConfig, prefix: str = "") -> None:
        self._sources = [source.name for source in config.sources]
        self._items, self._prefix = copy.items, prefix
        _refuse_names(self._sources, config.tables, prefix)
        self._database = PostgresDatabase(copy.url)

    def _schemas(self, prefix: str = "", suffix: str = "") -> list[str]:
        """Return the names of schemas, in the order of the sources."""
        return [identifier(f"{prefix}{source}{suffix}") for source in self._sources]

    def open(self) -> Callable[[str, str], PostgresTable]:
        from spark_consumers.sinks.postgres_copy import PostgresTable

        self._database.connect()
        return partial(PostgresTable, self._database, items=self._items, prefix=self._prefix)

    def check(self, *, offline: bool) -> str:
        if offline:
            return "its packages are installed"
        with closing(self._database):
            if missing := problems(self._database, self._schemas()):
                raise Unavailable("; ".join(missing))
        return "reachable, and may create its tables"

    @contextmanager
    def kept_rows(self, config: Config) -> Iterator[OpenKeptRows]:
        with closing(self._database):
            self._database.connect()
            yield partial(KeptInPostgres, self._database, items=self._items)

    def change_note(self, session: SparkSession, room: str, rule: Callable[[str], str]) -> str:
        batch, table = session.range(0), self.open()(room, "")  # which has the properties of no table
        while True:
            before = table.properties(batch).get(NOTE)
            after = rule(before or "")
            if after == (before or "") or table.replace_property(batch, NOTE, before, after):
                return after

    def content(self, session: SparkSession) -> str | None:
        found = used_schemas(self._database, self._schemas(self._prefix))
        return f"schema {found[0]} is not empty" if found else None

    def refuse_swap(self, present: str) -> None:
        if not self._prefix:
            raise ConfigError("--swap: in PostgreSQL schemas change places in one database: give --into schema:NAME")

    def swap(self, stamp: str, renames: Renames) -> None:
        names = self._schemas(self._prefix), self._schemas(), self._schemas(suffix=f"_{stamp}")
        swap_schemas(self._database, list(zip(*names, strict=True)))

    def kept(self, stamp: str, renames: Renames) -> list[str]:
        return self._schemas(suffix=f"_{stamp}")


def _refuse_names(sources: Sequence[str], tables: Mapping[str, SourceConfig], prefix: str) -> None:
    """Raise ``ConfigError`` for names that PostgreSQL or the copy reserves, and for names that become the same."""
    places = [(identifier(prefix + source), "", f"sources[{n}].name: {source}") for n, source in enumerate(sources)]
    places += [
        (
            identifier(prefix + source.name),
            identifier(table),
            f"sources[{sources.index(source.name)}]: the table {table}",
        )
        for table, source in tables.items()
    ]
    taken: dict[tuple[str, str], str] = {}
    for schema, table, what in places:
        if not table and (schema.startswith("pg_") or schema == "information_schema"):
            raise ConfigError(f"{what}: PostgreSQL keeps the schema {schema} for itself: give the source another name")
        if table.startswith(PREFIX):
            raise ConfigError(f"{what}: the copy has tables of its own whose names begin so: leave it out of `tables`")
        other = taken.setdefault((schema, table), what)
        if other != what:
            raise ConfigError(f"{what}: in PostgreSQL it would have the same name as {other}: {table or schema}")
