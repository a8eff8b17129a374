"""One table of the copy in Delta: how it is created, changed, written to and kept small."""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_consumers.locations import below, table_folder
from spark_consumers.plain_items import TableSummary
from spark_consumers.sinks import delta
from spark_consumers.sinks.columns import ColumnPlan
from spark_consumers.sinks.delta_upsert import NewestInDelta
from spark_consumers.sinks.delta_values import VARIANT, naming
from spark_consumers.sinks.delta_view import ROWS, DeltaView
from spark_consumers.sinks.lake_table import LakeTable, not_ours
from spark_consumers.sinks.target import IS_COLLECTED, Written
from spark_consumers.sinks.upkeep import Schedule, TableUpkeep

_OURS = "2"

_WITH_BOUNDS = "delta.dataSkippingNumIndexedCols"
_MOST_WITH_BOUNDS = 32  # Delta's default
_ALL_DIFFERENT = ("_relay_token", "_relay_event_id")
_NOT_IN_PARQUET = frozenset(" ,;{}()\n\t=")


class DeltaTable(LakeTable):
    """The copy of one table in Delta, below ``path``. ``items``: how it keeps JSON."""

    def __init__(self, path: str, schedule: Schedule, source: str, table: str, *, items: str = "json") -> None:
        self._folder = table_folder(path, source, table)
        where = below(self._folder, ROWS)
        kinds = naming("string" if items == "json" else VARIANT)
        super().__init__(delta.table(where), (source, table), _OURS, kinds)
        self.where = where
        self._view = DeltaView(self._folder)
        self._upkeep = TableUpkeep(self.name, schedule)
        self._newest = NewestInDelta()

    # ------------------------------------------------------------------ columns

    def schema(self, session: SparkSession) -> StructType | None:
        return delta.schema_of(session, self.name)

    def _create(self, session: SparkSession, plan: ColumnPlan) -> None:
        if delta.schema_of(session, there := delta.table(self._folder)) is not None:
            raise not_ours(there, f"it has no table {ROWS} inside")
        properties = {
            "delta.checkpointInterval": "50",
            # Without them each batch writes whole files again for the few rows that it changes.
            "delta.enableDeletionVectors": "true",
            # Only the source's columns have statistics: statistics of our columns take time, and no query uses them.
            _WITH_BOUNDS: str(min(len(plan.added), _MOST_WITH_BOUNDS)),
            **delta.without_dictionaries(_ALL_DIFFERENT),
            **self._first_properties(plan),
        }
        if _NOT_IN_PARQUET & set("".join(plan.added)):
            properties["delta.columnMapping.mode"] = "name"
        session.sql(
            f"CREATE TABLE IF NOT EXISTS {self.name} ({self._created_columns(plan)}) USING DELTA "
            f"PARTITIONED BY (_relay_deleted) TBLPROPERTIES ({delta.assigned(properties)})"
        )

    def _alter(self, session: SparkSession) -> None:
        properties = {}
        if _NOT_IN_PARQUET & set("".join(self._plan.added)):
            properties["delta.columnMapping.mode"] = "name"
        if self._plan.added:
            properties[_WITH_BOUNDS] = str(_MOST_WITH_BOUNDS)  # the columns that are added are behind ours
        if self._plan.widened:
            properties["delta.enableTypeWidening"] = "true"
        if properties:
            session.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ({delta.assigned(properties)})")
        self._change_columns(session)

    # ------------------------------------------------------------------ writing

    def _run(self, session: SparkSession, statement: str) -> int:
        return delta.merge(session, statement)[0]

    def write_newest(self, changes: DataFrame, found: TableSummary) -> Written:
        return self._newest.write(changes.sparkSession, self._merge_of(found), found)

    def write_reads(self, changes: DataFrame, found: TableSummary) -> int:
        return self._newest.write_reads(changes.sparkSession, self._merge_of(found, of_snapshots=True), found)

    # ------------------------------------------------------------------ tombstones and properties

    @delta.faults()
    def delete_tombstones(self, batch: DataFrame, written_before: float) -> int:
        until = f"timestamp_micros({int(written_before * 1_000_000)})"
        row = batch.sparkSession.sql(f"DELETE FROM {self.name} WHERE {IS_COLLECTED} {until}").collect()[0]
        return int(row["num_affected_rows"])

    @delta.faults()
    def maintain(self, batch: DataFrame) -> None:
        self._view.follow(batch.sparkSession)
        self._upkeep.run(batch.sparkSession, self._view.follow)

    @delta.faults()
    def properties(self, batch: DataFrame) -> Mapping[str, str]:
        return delta.properties_of(batch.sparkSession, self.name)

    @delta.faults()
    def replace_property(self, batch: DataFrame, name: str, before: str | None, after: str) -> bool:
        # Not in one step: our lock keeps a second driver out, but only of a local folder.
        if self.properties(batch).get(name) != before:
            return False
        batch.sparkSession.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ({delta.assigned({name: after})})")
        return True
