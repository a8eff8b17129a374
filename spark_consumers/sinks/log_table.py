"""The table of the change log in a lake: its columns, and what appends to it in one commit.

Users query the columns, which ``deploy/docs/reference/tables.md`` lists: add new ones at the end.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from spark_consumers.log_contents import LogContents
from spark_consumers.sinks import delta
from spark_consumers.sinks.upkeep import TableUpkeep

COLUMNS = {
    # Columns for filters come first: the tables keep their minima and maxima, which takes time.
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
ALL_DIFFERENT = ("event_id", "token_position", "token", "old", "new")
PARTITIONED_BY = ("table", "day")
WITH_BOUNDS = list(COLUMNS)[: list(COLUMNS).index("token_timestamp") + 1]

GAP_COLUMNS = "id STRING, source STRING, reason STRING, found_at TIMESTAMP, record STRING"


class LogTable(ABC):
    """The log in one table. In SQL, ``name``: of the table, ``gaps``: of the one of gaps, ``kind``: of both."""

    properties_of_gaps: Mapping[str, str] = {}

    def __init__(self, kind: str, name: str, gaps: str, where: str, upkeep: TableUpkeep) -> None:
        self.name, self.gaps, self.where, self.upkeep = name, gaps, where, upkeep
        self._kind = kind

    def create(self, session: SparkSession) -> None:
        """Create the table unless it exists."""
        listed = ", ".join(f"{delta.quoted(name)} {kind}" for name, kind in COLUMNS.items())
        by = f"PARTITIONED BY ({', '.join(map(delta.quoted, PARTITIONED_BY))})"
        self._create(session, self.name, listed, {**self._properties(), **self.upkeep.properties(time.time())}, by)

    def create_gaps(self, session: SparkSession) -> None:
        """Create both tables unless they exist."""
        self.create(session)
        self._create(session, self.gaps, GAP_COLUMNS, self.properties_of_gaps)

    def _create(
        self, session: SparkSession, name: str, columns: str, properties: Mapping[str, str], by: str = ""
    ) -> None:
        listed = f"TBLPROPERTIES ({delta.assigned(properties)})" if properties else ""
        session.sql(f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING {self._kind} {by} {listed}")

    # ------------------------------------------------------------------ what the formats have of their own

    @abstractmethod
    def _properties(self) -> Mapping[str, str]:
        """Return the properties of a new table, without the properties for its upkeep."""

    def refuse_unreadable(self, session: SparkSession) -> None:
        """Raise ``ConfigError`` if the session cannot read the table."""
        delta.refuse_replaced(session, [self.name])

    @abstractmethod
    def last_append(self, session: SparkSession) -> LogContents | None:
        """Return the contents that the last append recorded, or None if that is no longer known."""

    @abstractmethod
    def first_version(self, session: SparkSession) -> int:
        """Return the version of contents for which there is no record."""

    @abstractmethod
    def append(self, changes: DataFrame, after: LogContents) -> None:
        """Append in one commit, which records the new contents. Raises ``Unavailable`` if another writer was faster."""

    @abstractmethod
    def merge(self, session: SparkSession, statement: str) -> int:
        """Run a MERGE; return how many rows of the log it wrote, 0 if unknown. Raises ``RowFault``, ``TableFault``."""
