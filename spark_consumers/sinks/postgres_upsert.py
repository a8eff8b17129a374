"""Writes the newest change of each item of a batch to a table in PostgreSQL, and decides in its SQL which are newer.

The changes are copied into a temporary table, and one statement takes those that are newer than the stored row. The
Java class `CopiedRows` creates them, since Spark's SQL and Python take several times as long as PostgreSQL does for the
rest. They are binary, as "COPY" in PostgreSQL's documentation describes it: to escape texts takes as long as all else.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext

from spark_consumers.java_classes import new_instance
from spark_consumers.plain_items import TableSummary
from spark_consumers.plain_tokens import PLAIN_END
from spark_consumers.sinks import postgres
from spark_consumers.sinks.faults import RowFault
from spark_consumers.sinks.postgres import Connection, execute
from spark_consumers.sinks.target import IS_BEHIND, IS_OLDER_THAN_READ, Written
from spark_consumers.spark_internals import bytes_of

COPIED_COLUMNS = {
    "_relay_partition": "integer",
    "_relay_offset": "bigint",
    "_relay_topic": "text",
    "_relay_token": "text",
    "_relay_deleted": "boolean",
    "_relay_event_id": "text",
    "layout": "integer",
    "image": "text",
    "stem": "text",
    "first": "text",
    "number": "text",
    "changes": "integer",
    "first_offset": "bigint",
    "as_of": "bigint",
}
"""What follows the parts of the key in a row, in the order of the rows of `PlainItems`."""

LEFT_OUT = "a trigger leaves it out, or changes its key"
"""Why the database says that it has not written a row, although nobody else has."""

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)  # no flags, no extension
_TRAILER = b"\xff\xff"

_PLACE = "s._relay_partition, s._relay_offset"


def copied_rows(context: SparkContext, rows: Any, keys: int) -> Iterator[bytes]:
    """Yield what COPY reads, one row for each of ``rows`` of `PlainItems`. ``keys``: how many parts a key has."""
    several = bytes_of(context, rows.mapPartitions(new_instance(context, "CopiedRows", keys)))
    yield _HEADER
    yield from several.toLocalIterator()
    yield _TRAILER


@dataclass(frozen=True, slots=True)
class NewestInPostgres:
    """``table``: its SQL name. ``same_key``: the condition that its row ``t`` has the key of a staged row ``s``.

    ``keys``: the values of the key columns, and ``row``: what a change sets in the other columns, by column, in the SQL
    of a staged row, which ``source`` joins with the fields of its image. The parts of a key are k0, k1, ...
    """

    table: str
    same_key: str
    keys: Mapping[str, str]
    row: Mapping[str, str]
    source: Callable[[str], str]

    def write(self, connection: Connection, rows: Iterable[bytes], found: TableSummary) -> Written:
        """Write changes from ``copied_rows``, in a transaction in which no other driver writes to the table."""
        self._copy(connection, rows)
        is_older = f"({is_stored('<', 's.first')} OR t._relay_token IS NULL AND NOT {IS_BEHIND})"
        ((written,),) = execute(connection, self._upsert(is_older, {}, "0"))
        if written == found.items:
            return Written(found.changes, 0, ())
        # All statements of the transaction have one ``now()``.
        is_written = "t._relay_updated_at = now() AND t._relay_event_id = s._relay_event_id"
        is_same = " AND ".join(f"t.{name} = s.{name}" for name in ("_relay_token", "_relay_event_id"))
        is_old = f"coalesce({is_stored('>', 's.number')} OR ({is_same} AND NOT t._relay_incomplete), false)"
        unwritten = (
            f"SELECT {', '.join(f's.{name}' for name in self._parts)}, s.changes, {is_old} FROM relay_newest s"
            f" LEFT JOIN {self.table} t ON {self.same_key} WHERE ({is_written}) IS NOT TRUE"
        )
        return Written.of(found.changes, execute(connection, unwritten).fetchall())

    def write_reads(self, connection: Connection, rows: Iterable[bytes], reads: int) -> int:
        """Write so many rows of snapshots as `write` writes changes; return how many were written."""
        self._copy(connection, rows)
        is_older = IS_OLDER_THAN_READ.format(timestamp="(t._relay_token::json ->> 'timestamp')::bigint")
        ((written,),) = execute(connection, self._upsert(is_older, {"_relay_read_as_of": "s.as_of"}, "s.as_of"))
        left_out = (
            f"SELECT FROM relay_newest s LEFT JOIN {self.table} t ON {self.same_key}"
            f" WHERE t._relay_event_id IS NULL OR t._relay_read_as_of <> s.as_of AND {is_older} LIMIT 1"
        )
        if written < reads and execute(connection, left_out).fetchall():  # I12
            raise RowFault(f"a row of a snapshot is not written to {self.table}: {LEFT_OUT}")
        return int(written)

    def _copy(self, connection: Connection, rows: Iterable[bytes]) -> None:
        staged = dict.fromkeys(self._parts, "text") | COPIED_COLUMNS
        listed = ", ".join(f"{name} {kind}" for name, kind in staged.items())
        execute(connection, f"CREATE TEMPORARY TABLE relay_newest ({listed}) ON COMMIT DROP")
        with connection.cursor() as cursor, cursor.copy("COPY relay_newest FROM STDIN (FORMAT binary)") as copy:
            for several in rows:
                copy.write(several)
        # Else it may read the whole table to find a few rows. A sample of 300 rows says enough, and takes no time.
        execute(connection, "SET LOCAL default_statistics_target = 1")
        execute(connection, f"ANALYZE relay_newest ({', '.join(self._parts)})")

    @property
    def _parts(self) -> list[str]:
        return [f"k{n}" for n in range(len(self.keys))]

    def _upsert(self, is_older: str, more: Mapping[str, str], read_as_of: str) -> str:
        """Return the statement that writes the items, and returns how many it has written.

        ``is_older``: whether the stored row is. ``more``: what else is updated. ``read_as_of``: its value in new rows.
        """
        source = self.source("relay_newest s")
        updates = ", ".join(f"{name} = {value}" for name, value in {**self.row, **more}.items())
        inserted = {**self.keys, **self.row, "_relay_read_as_of": read_as_of}
        on_key = f"ON CONFLICT ({', '.join(self.keys)}) DO NOTHING"  # I12: another unique index refuses the row
        # I7: only over what is older. The rest is inserted if there is no such row.
        return f"""
            WITH updated AS (
                UPDATE {self.table} t SET {updates} FROM {source}
                WHERE {self.same_key} AND {is_older}
                RETURNING {_PLACE}
            ), inserted AS (
                INSERT INTO {self.table} ({", ".join(inserted)}) SELECT {", ".join(inserted.values())} FROM {source}
                WHERE NOT EXISTS (SELECT FROM updated u WHERE ({_PLACE}) = (u._relay_partition, u._relay_offset))
                {on_key} RETURNING 1
            )
            SELECT (SELECT count(*) FROM updated) + (SELECT count(*) FROM inserted)
        """


def is_stored(operator: str, number: str) -> str:
    """Return SQL that compares the number of the stored token with another, if it has the stem of ``s``.

    Takes tokens apart as ``PLAIN_TOKEN`` does. Since a token with the stem of a plain one is known up to its numbers,
    this needs no search, which takes PostgreSQL some 400 µs a token.
    """
    parts = ", ".join(f"split_part(t._relay_token, s.stem, {n}) AS {name}" for n, name in ((1, "head"), (2, "tail")))
    length = "octet_length(head) + octet_length(s.stem) + octet_length(tail)"
    # The most digits: 18 in a GTID's number, 100 in a DynamoDB sequence number.
    digits = "CASE WHEN right(s.stem, 1) = '-' THEN 18 ELSE 100 END"
    end = f"{number} || {postgres.literal(PLAIN_END)}"
    conditions = [
        f"{length} = octet_length(t._relay_token)",  # so the stem is there once
        f"head ~ {postgres.literal(_HEAD)}",
        f"tail ~ {postgres.literal(_TAIL)}",
        f"length(tail) <= {digits} + {len(PLAIN_END)}",
        f'(length(tail), tail) {operator} (length({end}), ({end}) COLLATE "C")',
    ]
    # OFFSET 0, or PostgreSQL would take the token apart for each use of a part.
    return f"(SELECT {' AND '.join(conditions)} FROM (SELECT {parts} OFFSET 0) AS parts)"


_HEAD, _TAIL = r'^\{"timestamp":[1-9][0-9]*,$', r'^[1-9][0-9]*","origin":null\}$'
"""What a plain token has before and after its stem."""
