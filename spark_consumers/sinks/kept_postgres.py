"""The rows of a table of the copy in PostgreSQL, read as text."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from spark_consumers.kept_rows import KeptRow, KeptRows
from spark_consumers.records import Layout
from spark_consumers.sinks import columns, postgres
from spark_consumers.sinks.postgres import PostgresDatabase, quoted
from spark_consumers.sinks.postgres_values import JSONB, UNFIT, kind_of, naming, primary_key, stored_types, text_of
from spark_consumers.sinks.postgres_view import TableView

_ENDS = {"integer": 1 << 31, "bigint": 1 << 63}


class KeptInPostgres(KeptRows):
    """The rows of the table of ``layout``; none if there is no table. ``items``: how it keeps JSON."""

    def __init__(
        self, database: PostgresDatabase, layout: Layout, wanted: Sequence[str | None], *, items: str = "json"
    ) -> None:
        self._database = database
        self._table = TableView(postgres.identifier(layout.source), postgres.identifier(layout.table)).rows
        self.where = f"{database.name}, table {self._table}"
        self._wanted = [columns.ITEM if name is None else name for name in wanted]
        with database.transaction() as connection:
            types = stored_types(connection, self._table)
            key = primary_key(connection, self._table) or None
        self._selected: str | None = None
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
            key, (*values, deleted, incomplete, event_id, unfit) = row[:at], row[at:]
            fit: tuple[Any, ...] = tuple(values)
            if unfit is not None:
                others = orjson.loads(unfit)
                fit = tuple(others.get(name, value) for name, value in zip(self._wanted, fit, strict=True))
            yield KeptRow(key, None if deleted else fit, incomplete, event_id)


def _value_of(text: str, sql: str) -> str:
    """Return the SQL of a key's part; null for a number that the column cannot have, since it is to be widened."""
    if sql == "bytea":
        return f"decode({text}, 'base64')"
    if sql in _ENDS:
        whole = f"trunc({text}::numeric)"
        fits = f"{whole} = {text}::numeric AND {whole} BETWEEN -{_ENDS[sql]} AND {_ENDS[sql] - 1}"
        return f"CASE WHEN {fits} THEN {whole}::{sql} END"
    return f"{text}::{'numeric' if sql.startswith('numeric') else sql}"
