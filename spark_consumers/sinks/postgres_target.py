"""A copy in PostgreSQL, where each source has a schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from relay.config import Config, CopyConfig, SourceConfig
from relay.errors import ConfigError, Unavailable
from spark_consumers.kept_rows import KeptRow, KeptRows, OpenKeptRows
from spark_consumers.records import Layout
from spark_consumers.sinks import columns, postgres
from spark_consumers.sinks.columns import UNFIT
from spark_consumers.sinks.places import NOTE, CopyTarget, Renames
from spark_consumers.sinks.postgres import PREFIX, PostgresDatabase, execute, identifier, quoted
from spark_consumers.sinks.postgres_values import JSONB, kind_of, naming, primary_key, stored_types, text_of
from spark_consumers.sinks.postgres_view import TableView

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_consumers.sinks.postgres_copy import PostgresTable


class PostgresTarget(CopyTarget):
    """The copy of ``copy``. ``prefix``: a schema prefix. Raises ``ConfigError`` for a wrong URL or reserved names."""

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
            if missing := postgres.problems(self._database, self._schemas()):
                raise Unavailable("; ".join(missing))
        return "reachable, and may create its tables"

    @contextmanager
    def kept_rows(self, config: Config) -> Iterator[OpenKeptRows]:
        with closing(self._database):
            self._database.connect()
            yield partial(KeptInPostgres, self._database, items=self._items)

    def change_note(self, session: SparkSession, room: str, rule: Callable[[str], str]) -> str:
        from spark_consumers.sinks.target import change_property

        return change_property(self.open()(room, ""), session.range(0), NOTE, rule)  # which has those of no table

    def content(self, session: SparkSession) -> str | None:
        with self._database.transaction() as connection:
            found = execute(
                connection,
                "SELECT nspname::text FROM pg_namespace n WHERE nspname = ANY ($1::text[])"
                " AND EXISTS (SELECT FROM pg_class WHERE relnamespace = n.oid) ORDER BY 1",
                [self._schemas(self._prefix)],
            ).fetchone()
        return f"schema {found[0]} is not empty" if found else None

    def refuse_swap(self, present: str) -> None:
        if not self._prefix:
            raise ConfigError("--swap: PostgreSQL can only swap schemas within one database: use --into schema:NAME")

    def swap(self, stamp: str, renames: Renames) -> None:
        """What is granted on a schema and its tables is then granted on what took their place.

        A schema that is not there under its new name, as after the swap, is left out.
        """
        names = self._schemas(self._prefix), self._schemas(), self.kept(stamp, renames)
        with self._database.transaction() as connection:
            there = {name for (name,) in execute(connection, "SELECT nspname::text FROM pg_namespace").fetchall()}
            for rebuilt, present, kept in zip(*names, strict=True):
                if rebuilt not in there:
                    continue
                if present in there:
                    for _, grant in postgres.grants(connection, present, rebuilt):
                        execute(connection, grant)
                    execute(connection, f"ALTER SCHEMA {quoted(present)} RENAME TO {quoted(kept)}")
                execute(connection, f"ALTER SCHEMA {quoted(rebuilt)} RENAME TO {quoted(present)}")

    def kept(self, stamp: str, renames: Renames) -> list[str]:
        return self._schemas(suffix=f"_{stamp}")


def _refuse_names(sources: Sequence[str], tables: Mapping[str, SourceConfig], prefix: str) -> None:
    """Raise ``ConfigError`` for names that PostgreSQL or the copy reserves, and for names that become the same."""
    named = [(source, "", f"sources[{n}].name: {source}") for n, source in enumerate(sources)]
    for table, source in tables.items():
        named.append((source.name, table, f"sources[{sources.index(source.name)}]: the table {table}"))
    taken: dict[tuple[str, str], str] = {}
    for name, table, what in named:
        schema = identifier(prefix + name)
        if not table and (schema.startswith("pg_") or schema == "information_schema"):
            raise ConfigError(f"{what}: PostgreSQL reserves the schema name {schema}: give the source another name")
        if table.startswith(PREFIX):
            raise ConfigError(
                f"{what}: names that begin with {PREFIX} are reserved for the copy's own tables: leave this table out "
                "of `tables`"
            )
        if (other := taken.setdefault((schema, identifier(table)), what)) != what:
            raise ConfigError(
                f"{what} and {other} would have the same name in PostgreSQL, {identifier(table) or schema}: give the "
                "source another name, or leave one of the tables out of `tables`"
            )


_ENDS = {"integer": 1 << 31, "bigint": 1 << 63}


class KeptInPostgres(KeptRows):
    """The rows of the table of ``layout``; none if there is no table. ``items``: how it keeps JSON."""

    def __init__(
        self, database: PostgresDatabase, layout: Layout, wanted: Sequence[str | None], *, items: str = "json"
    ) -> None:
        self._database = database
        self._table = TableView(identifier(layout.source), identifier(layout.table)).rows
        self.where = f"{database.name}, table {self._table}"
        self._wanted = [columns.ITEM if name is None else name for name in wanted]
        self._selected: str | None = None
        with database.transaction() as connection:
            types = stored_types(connection, self._table)
            key = primary_key(connection, self._table) or None
        if not types:
            return
        stored = {name: kind_of(sql) for name, sql in types.items()}
        found = columns.plan(self.where, stored, key, {0: layout}, naming("json" if items == "json" else JSONB))
        places = columns.held_in(found, stored)
        self._key = [(key.name, types[key.name]) for key in found.keys]
        texts = [text_of(f"t.{quoted(each)}", stored[each]) for each, _ in self._key]
        for one in wanted:
            held = ", ".join(text_of(f"t.{quoted(each)}", stored[each]) for each in places[one])
            texts.append(f"coalesce({held})" if held else "NULL")
        texts += ["_relay_deleted", "_relay_incomplete", "_relay_event_id", f"{UNFIT}::text"]
        self._selected = f"SELECT {', '.join(texts)} FROM {self._table} t"

    def all(self) -> Iterator[KeptRow]:
        return self._read("")

    def some(self, count: int) -> Iterator[KeptRow]:
        return self._read("", f"ORDER BY random() LIMIT {count}")

    def of(self, keys: Sequence[Sequence[str]]) -> Iterator[KeptRow]:
        if self._selected is None:
            return iter(())
        # PostgreSQL has no text with a NUL character, so no row has such a key.
        listed = json.dumps([key for key in keys if not any("\0" in part for part in key)])
        same = " AND ".join(
            f"t.{quoted(name)} = {_value_of(f'(s.key ->> {n})', sql)}" for n, (name, sql) in enumerate(self._key)
        )
        return self._read(f"JOIN json_array_elements({postgres.literal(listed)}::json) AS s(key) ON {same}")

    def _read(self, joined: str, rest: str = "") -> Iterator[KeptRow]:
        if self._selected is None:
            return
        at = len(self._key)
        where = "WHERE (NOT _relay_deleted OR _relay_incomplete)"
        for row in self._database.iterate(f"{self._selected} {joined} {where} {rest}"):
            yield KeptRow.read(self._wanted, row[:at], row[at:])


def _value_of(text: str, sql: str) -> str:
    """Return the SQL of a key's part; null for a number that the column cannot have, since it is to be widened."""
    if sql == "bytea":
        return f"decode({text}, 'base64')"
    if sql in _ENDS:
        whole = f"trunc({text}::numeric)"
        fits = f"{whole} = {text}::numeric AND {whole} BETWEEN -{_ENDS[sql]} AND {_ENDS[sql] - 1}"
        return f"CASE WHEN {fits} THEN {whole}::{sql} END"
    return f"{text}::{'numeric' if sql.startswith('numeric') else sql}"
