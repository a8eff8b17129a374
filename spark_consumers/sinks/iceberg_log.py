"""The change log in Iceberg.

Iceberg does not check an append for conflicts. So a batch is staged first, as a snapshot that no reader sees. If nobody
has committed in between, a second commit makes this snapshot current and records the new contents.
"""

import json
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from relay.config.sinks import TablesConfig
from relay.errors import Unavailable
from spark_consumers.log_contents import LogContents
from spark_consumers.sinks import delta, iceberg_copy
from spark_consumers.sinks.iceberg_target import plain
from spark_consumers.sinks.log_table import WITH_BOUNDS, LogTable
from spark_consumers.sinks.upkeep import IcebergUpkeep
from spark_consumers.spark_internals import iceberg_table, jvm_of

_CONTENTS = "relay.log"
"""The property that has the contents, and the number of the snapshot that is known to have them."""

_STAGES = "write.wap.enabled"
_STAGED_AS, _STAGE = "wap.id", "spark.wap.id"


class IcebergLog(LogTable):
    """The log ``table`` in a namespace of ``catalog``, a name of SQL. ``where``: its place as messages show it."""

    properties_of_gaps = iceberg_copy.SETTINGS

    def __init__(self, catalog: str, namespace: str, table: str, where: str, config: TablesConfig) -> None:
        name, gaps = (f"{namespace}.`{plain(each)}`" for each in (table, f"{table}_gaps"))
        super().__init__("ICEBERG", name, gaps, where, IcebergUpkeep(catalog, name, config))
        self._catalog, self._namespace = catalog, namespace

    def create(self, session: SparkSession) -> None:
        iceberg_copy.refuse_unready(session, self._catalog)
        if iceberg_copy.schema_of(session, self.name) is None:
            session.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._namespace}")
            super().create(session)

    def refuse_unreadable(self, session: SparkSession) -> None:
        iceberg_copy.refuse_unready(session, self._catalog, writes=False)

    def _properties(self) -> Mapping[str, str]:
        return {
            **iceberg_copy.SETTINGS,
            _STAGES: "true",
            # Otherwise Spark moves or sorts the rows of each batch, which are from a few days only.
            "write.distribution-mode": "none",
            "write.spark.fanout.enabled": "true",
            # Minima and maxima of images and tokens would take time, and no query has a use for them.
            "write.metadata.metrics.default": "none",
            **{f"write.metadata.metrics.column.{name}": "truncate(16)" for name in WITH_BOUNDS},
        }

    def last_append(self, session: SparkSession) -> LogContents | None:
        return _contents(iceberg_table(session, self.name).operations().refresh())

    def first_version(self, session: SparkSession) -> int:
        return 0

    def append(self, changes: DataFrame, after: LogContents) -> None:
        session, number = changes.sparkSession, uuid4().hex
        if iceberg_copy.properties_of(session, self.name).get(_STAGES) != "true":  # I7: it would be seen at once
            session.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ('{_STAGES}' = 'true')")
        session.conf.set(_STAGE, number)
        try:
            changes.writeTo(self.name).append()
        finally:
            session.conf.unset(_STAGE)
        jvm = jvm_of(session.sparkContext)

        def publish(found: Any) -> Any:
            snapshots = found.snapshots()[-iceberg_copy.LOOKED_AT :]
            staged = next((each for each in snapshots if each.summary().get(_STAGED_AS) == number), None)
            current = found.currentSnapshot()
            # I7: what was staged on another snapshot would undo that one.
            if staged is None or staged.parentId() != (None if current is None else current.snapshotId()):
                return None
            contents = _contents(found)
            if (0 if contents is None else contents.version) != after.version - 1:  # I7: another consumer has appended
                return None
            recorded = json.dumps([staged.snapshotId(), after.to_json()])
            changed = jvm.org.apache.iceberg.TableMetadata.buildFrom(found)
            changed.setBranchSnapshot(staged.snapshotId(), "main")
            return changed.setProperties(jvm.java.util.Map.of(_CONTENTS, recorded)).build()

        if not iceberg_copy.commit(session, self.name, publish):
            raise Unavailable(
                f"another consumer or a job changed the log at {self.where} during an append: if it was another "
                "consumer of the log, stop it"
            )

    def merge(self, session: SparkSession, statement: str) -> int:
        before = self._current(session)
        with delta.faults(writes_rows=True):
            session.sql(statement).collect()
        after = self._current(session)
        known = after is not None and before is not None and after.parentId() == before.snapshotId()
        return int(after.summary().get("added-records") or 0) if known else 0

    def _current(self, session: SparkSession) -> Any:
        return iceberg_table(session, self.name).currentSnapshot()


def _contents(found: Any) -> LogContents | None:
    """Return the contents that a table's metadata has, or None if the snapshot that had them is not part of it.

    As after a rollback.
    """
    number, text = json.loads(found.properties().get(_CONTENTS) or "[null, null]")
    for snapshot in iceberg_copy.newest_snapshots(found):
        # One that expired is known as a parent.
        if number in (snapshot.snapshotId(), snapshot.parentId()):  # I7
            return LogContents.from_json(text)
    return None
