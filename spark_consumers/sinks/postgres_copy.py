"""One table of the copy in PostgreSQL: its columns, reading the state of rows, and writing them conditionally.

A batch is written in one transaction: its rows are copied into a temporary table, and one statement takes from there
the rows whose stored state is still the one that was read. So any number of drivers may keep one copy up to date.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from pyspark.sql import DataFrame

from relay.errors import RelayError
from spark_consumers.fold import PartitionOffset, StoredRow
from spark_consumers.plain_items import TableSummary
from spark_consumers.records import Layout
from spark_consumers.sinks import columns, postgres, postgres_values, target
from spark_consumers.sinks.columns import ColumnPlan
from spark_consumers.sinks.faults import RowFault, TableFault
from spark_consumers.sinks.postgres import PROPERTIES, Connection, PostgresDatabase, execute, quoted
from spark_consumers.sinks.postgres_upsert import LEFT_OUT, NewestInPostgres, copied_rows
from spark_consumers.sinks.postgres_values import OURS, has_nul, kind_of, sql_type, stored_types, text_of, value_of
from spark_consumers.sinks.postgres_view import TableView
from spark_consumers.sinks.target import STATE, Key, SelectedRows, TargetTable, Write, Written

_LOCK_TIMEOUT = "5s"
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"

_UNCHANGED = " AND ".join(f"t.{name} IS NOT DISTINCT FROM s.read{name}" for name in STATE)

_STAGED = {
    "n": "integer",
    "key": "text[]",
    "layout": "integer",
    "image": "text",
    "unfit": "text",
    "keep": "boolean",
    "existed": "boolean",
}


class PostgresTable(TargetTable):
    """A table's copy, in its source's schema. ``items``: JSON as json, or variant. ``prefix``: the schema's prefix."""

    keeps_nul = False

    def __init__(
        self, database: PostgresDatabase, source: str, table: str, *, items: str = "json", prefix: str = ""
    ) -> None:
        self._database = database
        self._json = "json" if items == "json" else postgres_values.JSONB
        self.source_table = source, table
        self._schema, self._relation = postgres.identifier(prefix + source), postgres.identifier(table)
        self._view = TableView(self._schema, self._relation)
        self._table = self._view.rows
        self.name = f"copy {database.name}, table {self._table}"
        self._transaction = partial(database.transaction, self._table)
        self._layouts: Mapping[int, Layout] = {}
        self._plan = ColumnPlan((), ())

    # ------------------------------------------------------------------ columns

    def prepare(self, batch: DataFrame, layouts: Mapping[int, Layout]) -> None:
        if layouts == self._layouts:
            return
        with self._locked() as connection:
            stored = {name: kind_of(sql) for name, sql in stored_types(connection, self._table).items()}
            key = postgres_values.primary_key(connection, self._table) if stored else None
            is_ours = self._view.is_ours(connection)
            self._plan = columns.plan(self.name, stored, key, layouts, postgres_values.naming(self._json))
            if not stored:
                self._create(connection)
            self._alter(connection, stored, is_ours)
        self._layouts = dict(layouts)

    @contextmanager
    def _locked(self, *, writes_rows: bool = False) -> Iterator[Connection]:
        """Run a transaction in which no other driver writes to this table, so that none deadlocks."""
        with self._transaction(writes_rows=writes_rows) as connection:
            execute(connection, _LOCK, [self._table])
            yield connection

    def _create(self, connection: Connection) -> None:
        self._create_schema(connection)
        keys = [column.name for column in self._plan.keys]
        listed = [f"{quoted(name)} {sql_type(kind)}" for name, kind in self._plan.added.items()]
        listed += [f"{name} {sql}" for name, sql in OURS.items()]
        execute(
            connection,
            f"CREATE TABLE {self._table} ({', '.join(listed)}, PRIMARY KEY ({', '.join(map(quoted, keys))}))",
        )
        # For the collection of tombstones. No update of a row changes an indexed column, so none has to touch an index.
        execute(connection, f"CREATE INDEX ON {self._table} (_relay_deleted) WHERE _relay_deleted")
        values = [postgres_values.shown(column.name, column.kind) for column in self._plan.keys]
        if values != [*map(quoted, keys)]:  # the view has no column that the primary key could find
            execute(connection, f"CREATE INDEX ON {self._table} ({', '.join(f'({value})' for value in values)})")

    def _alter(self, connection: Connection, stored: Collection[str], is_ours: bool | None) -> None:
        """Add to the ``stored`` columns, widen them, and show them in the view, unless it is somebody else's."""
        added = [f"ADD COLUMN {quoted(name)} {sql_type(kind)}" for name, kind in self._plan.added.items()]
        widened = [f"ALTER COLUMN {quoted(name)} TYPE {sql_type(kind)}" for name, kind in self._plan.widened.items()]
        statements = [f"ALTER TABLE {self._table} {', '.join(added + widened)}"] if stored and added + widened else []
        # I12: of a view that somebody has put in its place, the rows that it leaves out are not to be shown.
        granted = self._view.grants(connection) if is_ours and widened else None
        if granted is not None:
            statements.insert(0, f"DROP VIEW {self._view.view}")
        try:
            if statements:
                # I10: another driver may read rows in one connection, and wait for our lock in a second one to change
                # them. PostgreSQL does not detect this deadlock.
                execute(connection, f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
                self._view.widen(connection, statements)
            if is_ours is None or (is_ours and statements):
                kinds = {column.name: column.kind for column in self._plan.keys}
                names = dict.fromkeys([*stored, *self._plan.added])
                self._view.show(connection, {name: kinds.get(name, "") for name in names}, granted)
        except postgres.InsufficientPrivilege as error:  # somebody else owns this table or view alone
            raise TableFault(f"{self.name}: {error}") from error

    # ------------------------------------------------------------------ reading

    def exists(self, batch: DataFrame) -> bool:
        with self._transaction() as connection:
            return execute(connection, "SELECT to_regclass($1) IS NOT NULL", [self._table]).fetchone() == (True,)

    def read(self, batch: DataFrame, keys: Collection[Key]) -> dict[Key, StoredRow]:
        wanted = [key for key in keys if not has_nul(key)]  # no row has such a key
        listed = ", ".join(f"t.{name}" for name in STATE)
        with self._transaction() as connection:
            rows = execute(
                connection,
                f"SELECT s.n, {listed} FROM json_array_elements($1::json) WITH ORDINALITY AS s(key, n)"
                f" JOIN {self._table} t ON {self._same_key(lambda n: f'(s.key ->> {n})')}",
                [json.dumps(wanted)],
            ).fetchall()
        return {wanted[n - 1]: target.stored_row(values) for n, *values in rows}

    def rows(self, batch: DataFrame, selected: SelectedRows) -> Iterator[tuple[Key, StoredRow]]:
        keys = [text_of(f"t.{quoted(column.name)}", column.kind) for column in self._plan.keys]
        where = selected.where(postgres.literal(selected.topic))
        found = self._database.iterate(f"SELECT {', '.join([*keys, *STATE])} FROM {self._table} t WHERE {where}")
        return ((row[: len(keys)], target.stored_row(row[len(keys) :])) for row in found)

    def _same_key(self, part: Callable[[int], str]) -> str:
        """Return the condition that ``t`` is the row of a key, whose parts from 0 on ``part`` returns."""
        keys = enumerate(self._plan.keys)
        return " AND ".join(f"t.{quoted(key.name)} = {value_of(part(n), key.kind)}" for n, key in keys)

    # ------------------------------------------------------------------ writing

    def write(self, batch: DataFrame, writes: Sequence[Write]) -> set[Key]:
        if not writes:
            return set()
        if unfit := next((write.key for write in writes if has_nul(write.key)), None):
            raise RowFault(f"{self.name}: the key {unfit} has a NUL character, which PostgreSQL cannot store in a text")
        with self._locked(writes_rows=True) as connection:
            staged = [f"{name} {kind}" for name, kind in _STAGED.items()]
            staged += [f"{prefix}{name} {OURS[name].split()[0]}" for prefix in ("", "read") for name in STATE]
            execute(connection, f"CREATE TEMPORARY TABLE relay_batch ({', '.join(staged)}) ON COMMIT DROP")
            with connection.cursor() as cursor, cursor.copy("COPY relay_batch FROM STDIN") as copy:
                for row in self._staged(batch, writes):
                    copy.write_row(row)
            execute(connection, "ANALYZE relay_batch")  # else it may read the whole table to find a few rows
            conflicts = [n for (n,) in execute(connection, self._statement()).fetchall()]
            if conflicts and (same := execute(connection, self._as_before(), [conflicts]).fetchone()):  # I12
                raise RowFault(f"{self.name}: the row {writes[same[0]].key} is not written: {LEFT_OUT}")
        return {writes[n].key for n in conflicts}

    @property
    def decides_newest(self) -> bool:
        # The images name columns as the source does.
        fields = (field.name for layout in self._layouts.values() for field in layout.row or ())
        return all(name == postgres.identifier(name) for name in fields)

    def write_newest(self, changes: DataFrame, found: TableSummary) -> Written:
        rows = self._copied(changes, found)
        with self._locked(writes_rows=True) as connection:
            return self._newest().write(connection, rows, found)

    def write_reads(self, changes: DataFrame, found: TableSummary) -> int:
        rows = self._copied(changes, found, of_snapshots=True)
        with self._locked(writes_rows=True) as connection:
            return self._newest().write_reads(connection, rows, found.reads)

    def _newest(self) -> NewestInPostgres:
        row = self._row("NULL::text") | {name: f"s.{name}" for name in target.OF_CHANGE}
        keys = enumerate(self._plan.keys)
        return NewestInPostgres(
            self._table,
            self._same_key(lambda n: f"s.k{n}"),
            {quoted(column.name): value_of(f"s.k{n}", column.kind) for n, column in keys},
            row | {"_relay_incomplete": "false", "_relay_updated_at": "now()"},
            self._with_fields,
        )

    def _copied(self, changes: DataFrame, found: TableSummary, *, of_snapshots: bool = False) -> Iterator[bytes]:
        rows = found.found.rows(found.layouts, of_snapshots=of_snapshots)
        return copied_rows(changes.sparkSession.sparkContext, rows, len(self._plan.keys))

    def _staged(self, batch: DataFrame, writes: Sequence[Write]) -> Iterator[tuple[object, ...]]:
        """Yield the temporary table's rows; ones with an image come as Spark returns them, partition by partition."""
        wanted: dict[PartitionOffset, int] = {}
        for n, write in enumerate(writes):
            if write.image:
                wanted[write.image] = n
            else:
                yield n, [*write.key], None, None, None, *write.states
        if wanted:
            for partition, offset, layout, image in target.images(batch, *self.source_table).toLocalIterator():
                if (n := wanted.pop((partition, offset), -1)) >= 0:
                    fitted = postgres_values.fitted(image, self._layouts[layout])
                    yield n, [*writes[n].key], layout, *fitted, *writes[n].states
        if wanted:
            raise RelayError(f"{self.name}: {target.LACKS_IMAGES}: those at {sorted(wanted)[:3]}")

    def _statement(self) -> str:
        """Return the statement that writes the rows of ``relay_batch`` and returns the numbers of the others."""
        keys = [quoted(column.name) for column in self._plan.keys]
        row = self._row("s.unfit")
        ours = {name: f"s.{name}" for name in STATE} | {"_relay_updated_at": "now()"}
        source = self._with_fields("relay_batch s")
        updates = [f"{name} = CASE WHEN s.keep THEN t.{name} ELSE {value} END" for name, value in row.items()]
        updates += [f"{name} = {value}" for name, value in ours.items()]
        parts = [value_of(_staged_part(n), column.kind) for n, column in enumerate(self._plan.keys)]
        values = [*parts, *row.values(), *ours.values()]
        inserted = ", ".join((*keys, *row, *ours))
        same = " AND ".join(f"i.{name} = {part}" for name, part in zip(keys, parts, strict=True))
        on_key = f"ON CONFLICT ({', '.join(keys)}) DO NOTHING"  # I12: another unique index refuses the row
        after = "(SELECT count(*) FROM updated) >= 0"  # I12: a new row may have a value that an updated row gives up
        # I7: only over the state that was read. `now()` is the start of the transaction.
        return f"""
            WITH updated AS (
                UPDATE {self._table} t SET {", ".join(updates)} FROM {source}
                WHERE s.existed AND {self._same_key(_staged_part)} AND {_UNCHANGED}
                RETURNING s.n
            ), inserted AS (
                INSERT INTO {self._table} ({inserted}) SELECT {", ".join(values)} FROM {source}
                WHERE NOT s.existed AND {after} {on_key} RETURNING {", ".join(keys)}
            )
            SELECT s.n FROM relay_batch s WHERE NOT CASE WHEN s.existed
                THEN EXISTS (SELECT FROM updated u WHERE u.n = s.n)
                ELSE EXISTS (SELECT FROM inserted i WHERE {same}) END
        """

    def _as_before(self) -> str:
        """Return the query for one of the numbers ``$1`` of rows whose state is the one that was read."""
        return f"""
            SELECT s.n FROM relay_batch s LEFT JOIN {self._table} t ON {self._same_key(_staged_part)}
            WHERE s.n = ANY ($1::integer[]) AND s.existed = (t._relay_event_id IS NOT NULL)
                AND (NOT s.existed OR {_UNCHANGED}) LIMIT 1
        """

    def _row(self, unfit: str) -> dict[str, str]:
        return postgres_values.row_of(self._plan.row, self._layouts, unfit)

    def _with_fields(self, staged: str) -> str:
        """Join ``staged``, which has the alias ``s``, with the fields ``r`` of its images."""
        held = [(name, numbers) for column in self._plan.row for name, numbers in column.layouts.items()]
        fields = dict.fromkeys(postgres.identifier(name) for name, _ in held if name is not None)
        if not fields:
            return staged
        typed = sorted({number for name, numbers in held if name is not None for number in numbers})
        image = f"CASE WHEN s.layout IN ({', '.join(map(str, typed))}) THEN s.image::json END"
        read = ", ".join(f"{quoted(name)} text" for name in fields)
        return f"{staged} LEFT JOIN LATERAL json_to_record({image}) AS r({read}) ON true"

    # ------------------------------------------------------------------ tombstones and properties

    def forget_places(self, batch: DataFrame, topic: str) -> None:
        with self._locked() as connection:
            execute(connection, f"UPDATE {self._table} SET {target.NO_PLACE} WHERE _relay_topic = $1", [topic])

    def delete_tombstones(self, batch: DataFrame, written_before: float) -> int:
        statement = f"DELETE FROM {self._table} WHERE {target.IS_COLLECTED} to_timestamp($1)"
        with self._transaction() as connection:
            return execute(connection, statement, [written_before]).rowcount

    def properties(self, batch: DataFrame) -> Mapping[str, str]:
        with self._transaction() as connection:
            # A read creates nothing, which would be in the way of whoever puts the tables back.
            if execute(connection, "SELECT to_regclass($1::text)", [self._properties]).fetchone() == (None,):
                return {}
            statement = f"SELECT name, value FROM {self._properties} WHERE relation = $1"
            return dict(execute(connection, statement, [self._relation]).fetchall())

    def replace_property(self, batch: DataFrame, name: str, before: str | None, after: str) -> bool:
        place = [self._relation, name]
        with self._transaction() as connection:
            if before is None:
                self._create_schema(connection)
                execute(connection, _LOCK, [self._properties])
                execute(
                    connection,
                    f"CREATE TABLE IF NOT EXISTS {self._properties}"
                    " (relation text, name text, value text NOT NULL, PRIMARY KEY (relation, name))",
                )
                inserted = f"INSERT INTO {self._properties} VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
                return execute(connection, inserted, [*place, after]).rowcount == 1
            updated = f"UPDATE {self._properties} SET value = $3 WHERE relation = $1 AND name = $2 AND value = $4"  # I7
            return execute(connection, updated, [*place, after, before]).rowcount == 1

    @property
    def _properties(self) -> str:
        return f"{quoted(self._schema)}.{PROPERTIES}"

    def _create_schema(self, connection: Connection) -> None:
        if not execute(connection, "SELECT FROM pg_namespace WHERE nspname = $1", [self._schema]).fetchall():
            execute(connection, f"CREATE SCHEMA IF NOT EXISTS {quoted(self._schema)}")


def _staged_part(n: int) -> str:
    return f"s.key[{n + 1}]"
