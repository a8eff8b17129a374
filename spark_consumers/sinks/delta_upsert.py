"""The SQL that writes newest changes, and rows that a snapshot has read, from ``relay_batch`` to a table in a lake."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Row, SparkSession

from spark_consumers.plain_tokens import PLAIN_END
from spark_consumers.sinks import delta
from spark_consumers.sinks.target import IS_BEHIND, IS_OLDER_THAN_READ

_MOST_IN_MEMORY = 64 << 20  # bytes of a batch that each task of a statement may have in memory
_MOST_BROADCAST = 10 << 20  # bytes of a batch that Spark itself may broadcast: it estimates a fourth more

IS_OLDER_THAN_READ_ROW = IS_OLDER_THAN_READ.format(
    timestamp="CAST(get_json_object(t._relay_token, '$.timestamp') AS BIGINT)"
)
# Their time distinguishes the rows of a statement from an earlier statement's.
IS_WRITTEN = "t._relay_updated_at <=> s.now AND t._relay_event_id <=> s._relay_event_id"


@dataclass(frozen=True, slots=True)
class BatchMerge:
    """A MERGE of ``relay_batch`` ``s`` into ``table`` ``t``. ``on``: its condition.

    ``keys``: the values of the key columns, by column. ``parts``: how many parts a key has. ``row``: what a change sets
    in the other columns. ``size``: the approximate bytes of the batch.
    """

    table: str
    on: str
    keys: Mapping[str, str]
    parts: int
    row: Mapping[str, str]
    size: int

    def statement(self, *clauses: str, inserts: bool = True) -> str:
        """Return the statement. If it ``inserts`` rows, Spark moves the table's keys to find which are missing.

        It need not sort them, but does so for a batch of more than 20 MB, unless it gets a hint. Smaller ones get none,
        since it would also move the keys to find the files that have rows of the batch. All joins of one that inserts
        none can have the batch in memory.
        """
        hint = "BROADCAST" if not inserts else "SHUFFLE_HASH" if self.size > _MOST_BROADCAST else ""
        hint = f"/*+ {hint}(b) */ " if hint and self.size <= _MOST_IN_MEMORY else ""
        source = f"SELECT {hint}* FROM relay_batch b"
        return f"MERGE INTO {self.table} t USING ({source}) s ON {self.on} {' '.join(clauses)}"

    def update(self, condition: str, more: Mapping[str, str]) -> str:
        """Return the clause for rows that are there. ``more``: values in addition to ``row``, or in place of some."""
        updates = ", ".join(f"t.{name} = {value}" for name, value in {**self.row, **more}.items())
        return f"WHEN MATCHED{condition and f' AND {condition}'} THEN UPDATE SET {updates}"

    def insert(self, more: Mapping[str, str], condition: str = "") -> str:
        """Return the clause for rows that are not there, as `update` does."""
        row = {**self.keys, **self.row, **more}
        inserted = f"INSERT ({', '.join(row)}) VALUES ({', '.join(row.values())})"
        return f"WHEN NOT MATCHED{condition and f' AND {condition}'} THEN {inserted}"


def unwritten(session: SparkSession, merge: BatchMerge) -> Sequence[Row]:
    """Return the items that a MERGE has not written: their keys, numbers of changes, and whether to ignore them."""
    keys = ", ".join(f"s.text_k{n}" for n in range(merge.parts))
    is_same = " AND ".join(f"t.{name} = s.{name}" for name in ("_relay_token", "_relay_event_id"))
    is_old = f"coalesce(({is_stored('>', 's.number')}) OR ({is_same} AND NOT t._relay_incomplete), false)"
    return session.sql(
        f"SELECT {keys}, s.changes, {is_old} FROM relay_batch s LEFT JOIN {merge.table} t ON {merge.on}"
        f" WHERE NOT ({IS_WRITTEN})"
    ).collect()


_BEGIN, _NUMBER = r'^\{"timestamp":[1-9][0-9]*,', r"^[1-9][0-9]*\z"
"""What is before the stem of a plain token, and its number, as Java regular expressions."""


def is_stored(operator: str, number: str) -> str:
    """Return SQL that compares the number of the stored token with another, if it has the stem of ``s``.

    Takes tokens apart as ``PLAIN_TOKEN`` does. Since a token with the stem of a plain one is known up to its numbers,
    this needs no search, which would take most of the time of a MERGE. It counts in bytes, since Spark goes through a
    text to find its n-th character; and what is before the stem has one byte for each.
    """
    token = "t._relay_token"
    before = f"instr({token}, ',')"
    size = f"(octet_length({token}) - {before} - octet_length(s.stem) - {len(PLAIN_END)})"
    stem = f"substr(CAST({token} AS BINARY), {before} + 1, octet_length(s.stem))"
    stored = f"CAST(substr(CAST({token} AS BINARY), {before} + octet_length(s.stem) + 1, {size}) AS STRING)"
    # The most digits: 18 in a GTID's number, 100 in a DynamoDB sequence number.
    digits = "CASE WHEN endswith(s.stem, '-') THEN 18 ELSE 100 END"
    length = f"octet_length({number})"
    return " AND ".join(
        [
            f"{size} BETWEEN 1 AND {digits}",
            f"endswith({token}, {delta.literal(PLAIN_END)})",
            f"{stem} = CAST(s.stem AS BINARY)",
            f"{token} RLIKE {delta.literal(_BEGIN)}",
            f"{stored} RLIKE {delta.literal(_NUMBER)}",
            f"({size} {operator} {length} OR ({size} = {length} AND {stored} {operator} {number}))",
        ]
    )


IS_OLDER = f"(({is_stored('<', 's.first')}) OR t._relay_token IS NULL AND NOT {IS_BEHIND})"
"""SQL that says whether a stored row ``t`` is older than all changes of the item ``s``.

The token decides, or, where a snapshot has read the row and it has none, that its partition has the changes behind it.
"""
