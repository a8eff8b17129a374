"""The change log in Delta."""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from relay.config.sinks import TablesConfig
from relay.errors import Unavailable
from spark_consumers.log_contents import LogContents
from spark_consumers.sinks import delta
from spark_consumers.sinks.log_table import ALL_DIFFERENT, PARTITIONED_BY, WITH_BOUNDS, LogTable
from spark_consumers.sinks.upkeep import TableUpkeep

_APPLICATION = "relay.log"
_COMMITTED = "spark.databricks.delta.lastCommitVersionInSession"
_COMMITS = 50  # of the last ones, one is an append: optimise, vacuum or delete may come after it


class DeltaLog(LogTable):
    """The log at ``path``, in Spark's form."""

    def __init__(self, path: str, config: TablesConfig) -> None:
        name = delta.table(path)
        gaps = delta.table(f"{path.rstrip('/')}_gaps")
        super().__init__("DELTA", name, gaps, path, TableUpkeep(name, config))
        self._path = path

    def _properties(self) -> Mapping[str, str]:
        indexed = [name for name in WITH_BOUNDS if name not in PARTITIONED_BY]
        return {
            "delta.checkpointInterval": "50",
            "delta.dataSkippingNumIndexedCols": str(len(indexed)),
            **delta.without_dictionaries(ALL_DIFFERENT),
        }

    def last_append(self, session: SparkSession) -> LogContents | None:
        for commit in session.sql(f"DESCRIBE HISTORY {self.name} LIMIT {_COMMITS}").collect():
            if commit["operation"] == "RESTORE":
                return None
            if (contents := LogContents.from_json(commit["userMetadata"])) is not None:
                return contents
        return None

    def first_version(self, session: SparkSession) -> int:
        """Return the time of the last commit, in milliseconds: no earlier append has a greater version.

        Each added one to such a time. I7: another writer to the same table appends with the same version.
        """
        history = session.sql(f"DESCRIBE HISTORY {self.name} LIMIT 1")
        milliseconds: int = history.select(F.unix_millis("timestamp")).collect()[0][0]
        return milliseconds

    def append(self, changes: DataFrame, after: LogContents) -> None:
        """Delta skips a transaction with an earlier version, and fails one that runs beside another of its application.

        A skipped transaction leaves no table version in the session, and each query has its own session.
        """
        session = changes.sparkSession
        session.conf.unset(_COMMITTED)
        changes.write.format("delta").mode("append").options(
            txnAppId=_APPLICATION, txnVersion=str(after.version), userMetadata=after.to_json()
        ).save(self._path)
        if session.conf.get(_COMMITTED, None) is None:
            raise Unavailable(f"another consumer is appending to the change log at {self._path}: stop it")

    def merge(self, session: SparkSession, statement: str) -> int:
        return delta.merge(session, statement)[0]
