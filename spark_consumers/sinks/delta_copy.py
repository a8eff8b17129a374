"""One table of the copy in Delta: how it is created, changed, written to and kept small."""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from relay.config.sinks import TablesConfig
from spark_consumers.locations import below, table_folder
from spark_consumers.plain_items import TableSummary
from spark_consumers.sinks import delta
from spark_consumers.sinks.columns import ColumnPlan
from spark_consumers.sinks.delta_upsert import IS_OLDER, IS_OLDER_THAN_READ_ROW, IS_WRITTEN, BatchMerge, unwritten
from spark_consumers.sinks.delta_values import VARIANT, naming
from spark_consumers.sinks.delta_view import ROWS, DeltaView
from spark_consumers.sinks.lake_table import LakeTable, not_ours
from spark_consumers.sinks.target import IS_COLLECTED, Written
from spark_consumers.sinks.upkeep import TableUpkeep

_OURS = "2"

_WITH_BOUNDS = "delta.dataSkippingNumIndexedCols"
_MOST_WITH_BOUNDS = 32  # Delta's default
_ALL_DIFFERENT = ("_relay_token", "_relay_event_id")
_NOT_IN_PARQUET = frozenset(" ,;{}()\n\t=")

_NOT_OLDER = "relay: a stored row is not older than its change, which is decided again"
"""What ends a MERGE that would replace a row that it must not replace. Nothing is written then."""

_MOST_OTHERS = 64


class _Attempts:
    """Whether to try the cheaper of two ways: not for some batches after it has failed, more of them the more it fails.

    ``others``: how many suitable batches have to come before it is tried.
    """

    def __init__(self, others: int = 0) -> None:
        self._others = others
        self._after_failure = 1

    @property
    def are_due(self) -> bool:
        return self._others == 0

    def succeeded(self) -> None:
        self._after_failure = 1

    def failed(self) -> None:
        self._others = self._after_failure
        self._after_failure = min(2 * self._after_failure, _MOST_OTHERS)

    def missed(self) -> None:
        """It was not tried, and would have succeeded."""
        self._others = max(0, self._others - 1)


class DeltaTable(LakeTable):
    """The copy of one table in Delta, below ``path``. ``items``: how it keeps JSON."""

    def __init__(self, path: str, config: TablesConfig, source: str, table: str, *, items: str = "json") -> None:
        self._folder = table_folder(path, source, table)
        where = below(self._folder, ROWS)
        kinds = naming("string" if items == "json" else VARIANT)
        super().__init__(delta.table(where), (source, table), _OURS, kinds)
        self.where = where
        self._view = DeltaView(self._folder)
        self._upkeep = TableUpkeep(self.name, config)
        # For a statement without a condition, for changes that are all newer than their rows.
        self._unguarded = _Attempts()
        # For a statement that inserts nothing, for items that are all in the table.
        self._only_updates = _Attempts(1)

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
        session, merge, written = changes.sparkSession, self._merge_of(found), -1
        # I7: in one statement, so that the token that decides is the one that is replaced. With a condition Delta reads
        # all columns of all rows in the files; without one, only keys, tokens and what a change does not set.
        if self._unguarded.are_due:
            token = f"CASE WHEN {IS_OLDER} THEN s._relay_token ELSE raise_error({delta.literal(_NOT_OLDER)}) END"
            try:
                written = self._upsert(session, merge, merge.update("", {"_relay_token": token}), found.items)
                self._unguarded.succeeded()
            except Exception as error:
                if _NOT_OLDER not in str(error):
                    raise
                self._unguarded.failed()
        if written != found.items:
            written = self._upsert(session, merge, merge.update(IS_OLDER, {}), found.items)
            if written == found.items:
                self._unguarded.missed()
        return Written.of(found.changes, () if written == found.items else unwritten(session, merge))

    def _upsert(self, session: SparkSession, merge: BatchMerge, update: str, items: int) -> int:
        """Update the rows of the items, and insert missing ones. Return how many rows were written.

        A statement that inserts nothing takes a third of the time in a large table: Spark neither moves nor sorts rows.
        """
        insert = merge.insert({"_relay_read_as_of": "0"})
        if not self._only_updates.are_due:
            written, inserted = delta.merge(session, merge.statement(update, insert))
            if not inserted:
                self._only_updates.missed()
            return written
        updated, _ = delta.merge(session, merge.statement(update, inserts=False))
        if updated == items:
            self._only_updates.succeeded()
            return updated
        inserted, _ = delta.merge(session, merge.statement(insert))
        if inserted:
            self._only_updates.failed()
        return updated + inserted

    def write_reads(self, changes: DataFrame, found: TableSummary) -> int:
        session, merge = changes.sparkSession, self._merge_of(found, of_snapshots=True)
        # Mostly no row is there. Then this reads only the keys of the table, and writes no file again.
        read = {"_relay_read_as_of": "s.as_of"}
        written, _ = delta.merge(session, merge.statement(merge.insert(read)))
        if written < found.reads:
            # I7: decided in the statement that writes.
            update = merge.update(f"{IS_OLDER_THAN_READ_ROW} AND NOT ({IS_WRITTEN})", read)
            written += delta.merge(session, merge.statement(update, inserts=False))[0]
        return written

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
