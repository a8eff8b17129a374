"""One table of the copy in Iceberg: how it is created, changed, written to and kept small; and what a catalog does."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import orjson
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, UnsupportedOperationException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from relay.config.sinks import TablesConfig
from relay.errors import ConfigError
from relay.types.columns import ColumnKind, column_type
from spark_consumers.plain_items import TableSummary
from spark_consumers.running import log_event
from spark_consumers.session import ICEBERG_EXTENSION
from spark_consumers.sinks import delta
from spark_consumers.sinks.columns import ColumnPlan
from spark_consumers.sinks.delta import quoted
from spark_consumers.sinks.delta_upsert import IS_OLDER, IS_OLDER_THAN_READ_ROW, unwritten
from spark_consumers.sinks.delta_values import HIDDEN, naming
from spark_consumers.sinks.faults import TableFault
from spark_consumers.sinks.iceberg_target import IcebergPlace
from spark_consumers.sinks.lake_table import LakeTable
from spark_consumers.sinks.target import IS_COLLECTED, Written
from spark_consumers.sinks.upkeep import IcebergUpkeep
from spark_consumers.spark_internals import iceberg_table, jvm_of

COMMIT = "relay.commit"
"""The entry in a snapshot's summary that identifies the statement that created the snapshot."""

_ABSENT = ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND")
LOOKED_AT = 20  # snapshots: others commit meanwhile, but not often


def refuse_unready(session: SparkSession, catalog: str, *, writes: bool = True) -> None:
    """Raise ``ConfigError`` unless the session has the catalog configured the way the copy and the log need it."""
    key = f"spark.sql.catalog.{catalog}"
    wanted = []
    if session.conf.get(key, None) is None:
        wanted.append(f"{key}=org.apache.iceberg.spark.SparkCatalog")
    if writes and ICEBERG_EXTENSION not in str(session.conf.get("spark.sql.extensions", "")):
        wanted.append(f"spark.sql.extensions={ICEBERG_EXTENSION}")
    if session.conf.get(f"{key}.cache-enabled", None) != "false":  # I7: another driver's commits would not be seen
        wanted.append(f"{key}.cache-enabled=false")
    if wanted:
        raise ConfigError(
            f"the Spark session of this process cannot use Iceberg as the consumers do: submit with --conf "
            f"{' --conf '.join(wanted)}"
        )


def schema_of(session: SparkSession, name: str) -> StructType | None:
    """Return the columns of the table or view that has this SQL name, or None if there is none."""
    return delta.schema_of(session, name, _ABSENT)


def properties_of(session: SparkSession, name: str) -> dict[str, str]:
    """Return the properties of a table: Spark itself hides values that look like secrets."""
    mapper = jvm_of(session.sparkContext).com.fasterxml.jackson.databind.ObjectMapper()
    found: dict[str, str] = orjson.loads(mapper.writeValueAsString(iceberg_table(session, name).properties()))
    return found


def replace_property(session: SparkSession, name: str, key: str, before: str | None, after: str) -> bool:
    """Store a property of a table in place of ``before``; return False if a different one is stored by now.

    In one step if the catalog compares what it replaces, as all but REST do.
    """
    jvm = jvm_of(session.sparkContext)

    def change(found: Any) -> Any:
        properties = jvm.java.util.HashMap(found.properties())
        if properties.get(key) != before:
            return None
        properties.put(key, after)
        return found.replaceProperties(properties)

    return commit(session, name, change)


def commit(session: SparkSession, name: str, change: Callable[[Any], Any]) -> bool:
    """Commit the metadata that ``change`` returns for a table's current metadata; return False if it returns None."""
    operations = iceberg_table(session, name).operations()
    while True:
        found = operations.refresh()
        if (changed := change(found)) is None:
            return False
        try:
            operations.commit(found, changed)
        except Py4JJavaError as error:
            if str(error.java_exception.getClass().getSimpleName()) != "CommitFailedException":
                raise
        else:
            return True


def newest_snapshots(found: Any) -> Iterator[Any]:
    """Yield the current snapshot of a table, or of its metadata, and some before it, from the last one back."""
    snapshot = found.currentSnapshot()
    for _ in range(LOOKED_AT):
        if snapshot is None:
            return
        yield snapshot
        parent = snapshot.parentId()
        snapshot = None if parent is None else found.snapshot(parent)


_OURS = "1"

SETTINGS = {
    # I7: else a statement would not see what another driver has written since it read the table.
    **{f"write.{kind}.isolation-level": "serializable" for kind in ("merge", "update", "delete")},
    # Otherwise each batch writes whole files again for the few rows that it changes.
    **{f"write.{kind}.mode": "merge-on-read" for kind in ("merge", "update", "delete")},
    "write.metadata.delete-after-commit.enabled": "true",
}
"""The properties of each table that is written to by MERGE."""

_WITHOUT_BOUNDS = {
    # Minima and maxima of what differs in all rows would take time, and no query has a use for them.
    f"write.metadata.metrics.column.{name}": "none"
    for name in ("_relay_token", "_relay_event_id")
}


def _widens(stored: str, wider: str) -> bool:
    """Whether Iceberg gives a column a wider kind: it widens numbers only where it can read the old ones as that kind.

    A decimal with more digits must have as many after the point.
    """
    if (stored, wider) in ((ColumnKind.INT, ColumnKind.LONG), (ColumnKind.FLOAT, ColumnKind.DOUBLE)):
        return True
    one, other = column_type(stored), column_type(wider)
    return one.kind == other.kind == ColumnKind.DECIMAL and one.scale == other.scale


class IcebergTable(LakeTable):
    def __init__(self, place: IcebergPlace, config: TablesConfig, source: str, table: str) -> None:
        kinds = replace(naming(ColumnKind.STRING), widens=_widens)
        super().__init__(place.rows(source, table), (source, table), _OURS, kinds)
        self._place = place
        self._upkeep = IcebergUpkeep(place.catalog, self.name, config)

    # ------------------------------------------------------------------ columns

    def schema(self, session: SparkSession) -> StructType | None:
        return schema_of(session, self.name)

    def _create(self, session: SparkSession, plan: ColumnPlan) -> None:
        refuse_unready(session, self._place.catalog)
        session.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._place.namespace(self.source_table[0])}")
        properties = SETTINGS | _WITHOUT_BOUNDS | self._first_properties(plan)
        session.sql(
            f"CREATE TABLE IF NOT EXISTS {self.name} ({self._created_columns(plan)}) USING ICEBERG "
            f"TBLPROPERTIES ({delta.assigned(properties)})"
        )

    def _alter(self, session: SparkSession) -> None:
        self._change_columns(session)
        view, namespace = self._place.shown(*self.source_table), self._place.namespace(self.source_table[0])
        rows = self.name.removeprefix(f"{namespace}.")
        wanted = [field for field in session.table(self.name).schema if field.name not in HIDDEN]
        if self._shows(session, view, rows.strip("`"), wanted):
            return
        # In a separate session with this namespace, so that the names need no catalog: readers may name it differently.
        own = session.newSession()
        own.sql(f"USE {namespace}")
        listed = ", ".join(quoted(field.name) for field in wanted)
        try:
            own.sql(f"CREATE OR REPLACE VIEW {view} AS SELECT {listed} FROM {rows} WHERE NOT _relay_deleted")
        except UnsupportedOperationException:
            said = f"the catalog has no views: select from {self.name} WHERE NOT _relay_deleted"
            log_event("no view", "copy", table=self.source_table[1], error=said)

    def _shows(self, session: SparkSession, view: str, rows: str, wanted: Sequence[StructField]) -> bool:
        """Whether a view on ``rows`` shows these columns, and can be read. Raises ``TableFault`` if it is not ours."""
        try:
            made = str(session.sql(f"SHOW CREATE TABLE {view}").collect()[0][0])
        except AnalysisException as error:
            if error.getCondition() not in _ABSENT:
                raise
            return False
        if not made.startswith("CREATE VIEW") or rows not in made:
            raise TableFault(f"{view} does not belong to the copy: rename it, or keep the copy at another `copy.url`")
        try:
            found = session.table(view).schema
        except AnalysisException:
            return False
        return [(each.name, each.dataType) for each in found] == [(each.name, each.dataType) for each in wanted]

    # ------------------------------------------------------------------ writing

    def _run(self, session: SparkSession, statement: str) -> int:
        commit, key = uuid4().hex, f"spark.sql.iceberg.snapshot-property.{COMMIT}"
        session.conf.set(key, commit)
        try:
            with delta.faults(writes_rows=True):
                session.sql(statement).collect()
        finally:
            session.conf.unset(key)
        for snapshot in newest_snapshots(iceberg_table(session, self.name)):
            summary = snapshot.summary()
            if summary.get(COMMIT) == commit:
                # I7: a table whose owner has set it to copy-on-write also counts rows that are written again.
                return 0 if summary.get("deleted-data-files") else int(summary.get("added-records") or 0)
        return 0

    def write_newest(self, changes: DataFrame, found: TableSummary) -> Written:
        merge = self._merge_of(found)
        # I7: in one statement, so that the token that decides is the one that is replaced. One that only inserted would
        # be an append to Iceberg, which another driver's append of the same rows does not stop.
        written = self._run(
            changes.sparkSession, merge.statement(merge.update(IS_OLDER, {}), merge.insert({"_relay_read_as_of": "0"}))
        )
        left = () if written == found.items else unwritten(changes.sparkSession, merge)
        return Written.of(found.changes, left)

    def write_reads(self, changes: DataFrame, found: TableSummary) -> int:
        merge, read = self._merge_of(found, of_snapshots=True), {"_relay_read_as_of": "s.as_of"}
        written = self._run(
            changes.sparkSession, merge.statement(merge.update(IS_OLDER_THAN_READ_ROW, read), merge.insert(read))
        )
        return written or found.reads - len(unwritten(changes.sparkSession, merge))

    # ------------------------------------------------------------------ tombstones and properties

    @delta.faults()
    def delete_tombstones(self, batch: DataFrame, written_before: float) -> int:
        where = f"{IS_COLLECTED} timestamp_micros({int(written_before * 1_000_000)})"
        row = batch.sparkSession.sql(f"SELECT count(*) FROM {self.name} WHERE {where}").collect()[0]
        if row[0]:
            batch.sparkSession.sql(f"DELETE FROM {self.name} WHERE {where}").collect()
        return int(row[0])

    @delta.faults()
    def maintain(self, batch: DataFrame) -> None:
        self._upkeep.run(batch.sparkSession)

    @delta.faults()
    def properties(self, batch: DataFrame) -> Mapping[str, str]:
        return properties_of(batch.sparkSession, self.name)

    @delta.faults()
    def replace_property(self, batch: DataFrame, name: str, before: str | None, after: str) -> bool:
        return replace_property(batch.sparkSession, self.name, name, before, after)
