"""Writes the newest change of each item of a batch, and the rows that a snapshot has read, to a table in Delta.

The statements take them from the view ``relay_batch``, and decide which are newer than the stored row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession

from spark_consumers.newest import TableSummary
from spark_consumers.sinks import delta
from spark_consumers.sinks.delta_tokens import is_older, is_stored
from spark_consumers.sinks.target import IS_OLDER_THAN_READ, Written

NOT_OLDER = "relay: a stored row is not older than its change, which is decided again"
"""What ends a MERGE that would replace a row that it must not replace. Nothing is written then."""

_MOST_GUARDED = 64
_TIMESTAMP = "CAST(get_json_object(t._relay_token, '$.timestamp') AS BIGINT)"
# Their time tells the rows of a statement from those of an earlier one.
_IS_WRITTEN = "t._relay_updated_at <=> s.now AND t._relay_event_id <=> s._relay_event_id"


@dataclass(frozen=True, slots=True)
class BatchMerge:
    """A MERGE of ``relay_batch`` ``s`` into ``table`` ``t``. ``on``: its condition.

    ``keys``: the values of the key columns, and ``row``: those of the others that a change sets, by column.
    """

    table: str
    on: str
    keys: Mapping[str, str]
    row: Mapping[str, str]

    def statement(self, *clauses: str) -> str:
        return f"MERGE INTO {self.table} t USING relay_batch s ON {self.on} {' '.join(clauses)}"

    def update(self, condition: str, more: Mapping[str, str]) -> str:
        """Return the clause for rows that are there. ``more``: values in addition to ``row``, or in place of some."""
        updates = ", ".join(f"t.{name} = {value}" for name, value in {**self.row, **more}.items())
        return f"WHEN MATCHED{condition and f' AND {condition}'} THEN UPDATE SET {updates}"

    def insert(self, read_as_of: str) -> str:
        """Return the clause for rows that are not there."""
        row = {**self.keys, **self.row, "_relay_read_as_of": read_as_of}
        return f"WHEN NOT MATCHED THEN INSERT ({', '.join(row)}) VALUES ({', '.join(row.values())})"


class NewestInDelta:
    """Writes to one table, and remembers how that went."""

    def __init__(self) -> None:
        # How many more batches whose changes are all newer than their rows have to be written by the guarded MERGE,
        # before the other one is tried again; and how many after its next failure.
        self._guarded = 0
        self._after_failure = 1

    def write(self, session: SparkSession, merge: BatchMerge, found: TableSummary) -> Written:
        insert = merge.insert("0")
        # I7: in one statement, so that the token that decides is the one that is replaced. With a condition Delta reads
        # all columns of all rows in the files; without one, only keys, tokens and what a change does not set.
        if self._guarded == 0:
            token = f"CASE WHEN {is_older()} THEN s._relay_token ELSE raise_error({delta.literal(NOT_OLDER)}) END"
            try:
                delta.merge(session, merge.statement(merge.update("", {"_relay_token": token}), insert))
            except Exception as error:
                if NOT_OLDER not in str(error):
                    raise
                self._guarded = self._after_failure
                self._after_failure = min(2 * self._after_failure, _MOST_GUARDED)
            else:
                self._after_failure = 1
                return Written(found.changes, 0, ())
        written = delta.merge(session, merge.statement(merge.update(is_older(), {}), insert))
        if written == found.items:
            self._guarded -= 1
            return Written(found.changes, 0, ())
        keys = ", ".join(f"s.text_k{n}" for n in range(len(merge.keys)))
        is_same = " AND ".join(f"t.{name} = s.{name}" for name in ("_relay_token", "_relay_event_id"))
        is_old = f"coalesce(({is_stored('>', 's.number')}) OR ({is_same} AND NOT t._relay_incomplete), false)"
        unwritten = session.sql(
            f"SELECT {keys}, s.changes, {is_old} FROM relay_batch s LEFT JOIN {merge.table} t ON {merge.on}"
            f" WHERE NOT ({_IS_WRITTEN})"
        )
        return Written.of(found.changes, unwritten.collect())

    def write_reads(self, session: SparkSession, merge: BatchMerge, found: TableSummary) -> int:
        # Mostly no row is there. Then this reads only the keys of the table, and writes no file again.
        written = delta.merge(session, merge.statement(merge.insert("s.as_of")))
        if written < found.reads:
            is_older = f"{IS_OLDER_THAN_READ.format(timestamp=_TIMESTAMP)} AND NOT ({_IS_WRITTEN})"
            # I7: decided in the statement that writes.
            written += delta.merge(session, merge.statement(merge.update(is_older, {"_relay_read_as_of": "s.as_of"})))
        return written
