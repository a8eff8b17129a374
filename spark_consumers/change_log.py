"""The change log: every change appended once to one Delta table, to be read with plain SQL.

The columns are a contract with those who query it, shown in the README of the consumers. Add some at the end.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from relay.change import REDRIVEN, Images
from relay.config import Config, LogConfig
from spark_consumers.dead_letters import RejectedRecord, UndecodableRecords, refuse_unknown_schemas
from spark_consumers.decode import Decoder, DecodeStatus
from spark_consumers.locks import Lock
from spark_consumers.sinks import delta

_COLUMNS = {
    # What is searched by comes first: Delta keeps minima and maxima of the first columns.
    "day": "DATE",
    "source": "STRING",
    "table": "STRING",
    "committed_at": "TIMESTAMP",
    "event_id": "STRING",
    "operation": "STRING",
    "key": "STRING",
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "token_timestamp": "BIGINT",
    "token_shard": "STRING",
    "token_position": "STRING",
    "token": "STRING",
    "transaction_id": "STRING",
    "transaction_order": "INT",
    "transaction_last": "BOOLEAN",
    "snapshot_id": "STRING",
    "snapshot_as_of": "BIGINT",
    "images": "STRING",
    "relayed_at": "TIMESTAMP",
    "resume_timestamp": "BIGINT",
    "keyspace_id": "BINARY",
    "attributes": "MAP<STRING, STRING>",
    "old": "STRING",
    "new": "STRING",
}
_PARTITIONED_BY = ("table", "day")

_PLAIN = (DecodeStatus.CHANGE, DecodeStatus.TOMBSTONE)

# Copies of a change carry the same event id and normally the same time of commit. After a reshard they may differ
# by as much as the replication of the reshard was behind.
_SLACK = 3600 * 1_000_000  # microseconds


class LogConsumer:
    """Appends changes to the log at ``log.path``."""

    name = "log"
    at_most = 50_000
    interval = "2 seconds"
    delta = True

    def __init__(self, config: Config, log: LogConfig) -> None:
        self.topics = list(map(config.topic, config.tables))
        self._location = log.path
        self._path = delta.spark_path(log.path)
        self._made = False

    def lock(self) -> Lock | None:
        return delta.lock(self._location)

    def close(self) -> None:
        """Nothing is kept open."""

    def stream(self, records: DataFrame, decoder: Decoder) -> DataFrame:
        return decoder.changes(records)

    def apply(self, frame: DataFrame, letters: UndecodableRecords, expected: int) -> dict[str, int]:
        """Append the changes of a batch that are not in the log; return counts. Raises as the sinks do."""
        frame = frame.withColumn("day", F.to_date("committed_at")).persist()
        try:
            return self._apply(frame, letters)
        finally:
            frame.unpersist()

    def _apply(self, frame: DataFrame, letters: UndecodableRecords) -> dict[str, int]:
        committed = F.unix_micros("committed_at")
        groups = (
            frame.groupBy("status", "table")
            .agg(
                F.count("*").alias("rows"),
                F.count(F.try_element_at("attributes", F.lit(REDRIVEN))).alias("redriven"),
                F.min(committed).alias("first"),
                F.max(committed).alias("last"),
            )
            .collect()
        )
        changes = [group for group in groups if group["status"] == DecodeStatus.CHANGE]
        others = others_of(frame) if any(group["status"] not in _PLAIN for group in groups) else []
        refuse_unknown_schemas(others)
        applied = 0
        if changes:
            times = min(group["first"] for group in changes), max(group["last"] for group in changes)
            tables = {group["table"] for group in changes}
            rows = frame.where(F.col("status") == DecodeStatus.CHANGE).selectExpr(*map(delta.quoted, _COLUMNS))
            applied = self._append(rows, tables, *times)
            if any(group["redriven"] for group in changes):
                applied += self._complete(rows, tables, *times)
        return {
            "rows": sum(group["rows"] for group in groups),
            "applied": applied,
            "ignored": sum(group["rows"] for group in changes) - applied,
            "dead_letters": letters.send(others),  # each a hole in the log
        }

    def _append(self, changes: DataFrame, tables: set[str], first: int, last: int) -> int:
        """Append what is not there yet. ``first``, ``last``: times of commit, in microseconds."""
        session = changes.sparkSession
        if not self._made:
            _make(session, self._path)
            self._made = True
        names = ", ".join(map(delta.quoted, _COLUMNS))
        values = ", ".join(f"s.{delta.quoted(name)}" for name in _COLUMNS)
        return self._merged(changes, tables, first, last, f"NOT MATCHED THEN INSERT ({names}) VALUES ({values})")

    def _complete(self, changes: DataFrame, tables: set[str], first: int, last: int) -> int:
        """Complete stubs by what was sent again whole. Apart from appending, which is much cheaper without it."""
        whole = changes.where(F.col("images") != Images.OMITTED)
        updates = ", ".join(f"t.{name} = s.{name}" for name in map(delta.quoted, _COLUMNS))
        stub = delta.literal(Images.OMITTED)
        return self._merged(whole, tables, first, last, f"MATCHED AND t.images = {stub} THEN UPDATE SET {updates}")

    def _merged(self, changes: DataFrame, tables: set[str], first: int, last: int, action: str) -> int:
        changes.dropDuplicates(["event_id"]).createOrReplaceTempView("relay_batch")
        since, until = f"timestamp_micros({first - _SLACK})", f"timestamp_micros({last + _SLACK})"
        return delta.merged(
            changes.sparkSession,
            # What names partitions and times only keeps the rest of the log from being read.
            f"""MERGE INTO {delta.table(self._path)} t USING relay_batch s
            ON t.event_id = s.event_id AND t.`table` IN ({", ".join(map(delta.literal, sorted(tables)))})
            AND t.day BETWEEN to_date({since}) AND to_date({until}) AND t.committed_at BETWEEN {since} AND {until}
            WHEN {action}""",
        )


def others_of(frame: DataFrame) -> list[RejectedRecord]:
    """Bring the records that are no changes to the driver."""
    rows = frame.where(~F.col("status").isin(*_PLAIN)).select("status", "topic", "partition", "offset", "value")
    return [RejectedRecord(DecodeStatus(r[0]), r[1], r[2], r[3], bytes(r[4])) for r in rows.collect()]


def _make(session: SparkSession, path: str) -> None:
    columns = ", ".join(f"{delta.quoted(name)} {kind}" for name, kind in _COLUMNS.items())
    session.sql(
        f"CREATE TABLE IF NOT EXISTS {delta.table(path)} ({columns}) USING DELTA "
        f"PARTITIONED BY ({', '.join(map(delta.quoted, _PARTITIONED_BY))}) "
        f"TBLPROPERTIES ('delta.checkpointInterval' = '50')"
    )
