"""The copy: for every source table a Delta table that holds its rows as they are now, each with its event token.

The token beside each row decides what may replace it (``fold``). The stored tokens of a batch's keys are read, the
rows are decided on the driver, and written in one MERGE, each only where what was read still stands. Rows may be
large and never come to the driver: the MERGE takes them from the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import orjson
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from relay.change import MARK, REDRIVEN, Images, Operation, Snapshot
from relay.config import Config, CopyConfig
from relay.token import EventToken
from spark_consumers.change_log import others_of
from spark_consumers.dead_letters import UndecodableRecords, refuse_unknown_schemas
from spark_consumers.decode import Decoder, DecodeStatus, Layout
from spark_consumers.fold import StoredRow, VerdictCounts, by_item, stretches
from spark_consumers.locks import Lock
from spark_consumers.seen_snapshots import SeenSnapshots
from spark_consumers.sinks import delta
from spark_consumers.sinks.copy_table import CopyTable, Place

_PLAIN = (DecodeStatus.CHANGE, DecodeStatus.TOMBSTONE)


@dataclass(frozen=True, slots=True)
class Slim:
    """A change without its images. ``new``: where in the batch the new image is, None if there is none."""

    key: tuple[str, ...]
    place: Place
    event_id: str
    operation: Operation
    new: Place | None
    images: Images
    token: EventToken | None
    snapshot: Snapshot | None
    attributes: Mapping[str, str]  # those that decide
    mark: str | None = None  # begin or end of a snapshot


class CopyConsumer:
    """Keeps the tables under ``copy.url`` up to date."""

    name = "copy"
    at_most = 20_000
    interval = "2 seconds"
    delta = True

    def __init__(self, config: Config, copy: CopyConfig) -> None:
        self.topics = list(map(config.topic, config.tables))
        self._location = copy.url
        self._path = delta.spark_path(copy.url)
        self._retention = copy.tombstone_retention
        self._layouts: Sequence[Layout] = ()
        self._tables: dict[tuple[str, str], CopyTable] = {}

    def lock(self) -> Lock | None:
        return delta.lock(self._location)

    def close(self) -> None:
        """Nothing is kept open."""

    def stream(self, records: DataFrame, decoder: Decoder) -> DataFrame:
        self._layouts = decoder.layouts
        return decoder.changes(records)

    def apply(self, frame: DataFrame, letters: UndecodableRecords, expected: int) -> dict[str, int]:
        """Store what a batch changes; return counts. Raises ``UnknownSchemas``, and as the sinks do."""
        frame = frame.persist()
        try:
            return self._apply(frame, letters)
        finally:
            frame.unpersist()

    def _apply(self, frame: DataFrame, letters: UndecodableRecords) -> dict[str, int]:
        rows = [orjson.loads(row[0]) for row in frame.select(_slim().alias("slim")).collect()]
        strange = any(row["status"] not in _PLAIN for row in rows)
        others = others_of(frame) if strange else []
        refuse_unknown_schemas(others)
        counts, collected = VerdictCounts(), 0
        tables: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for row in rows:
            if row["status"] == DecodeStatus.CHANGE:
                layout = self._layouts[row["layout"]]
                tables.setdefault((layout.source, layout.table), []).append(row)
        for name, of_table in tables.items():
            table = self._table(name, self._layouts[of_table[0]["layout"]])
            slims = [_read(row) for row in of_table]
            keyed = [slim for slim in slims if slim.operation is not Operation.TRUNCATE and slim.mark is None]
            if any(slim.snapshot is not None for slim in slims):
                seen = table.tombstones(frame.sparkSession).snapshots
                keyed = [slim for slim in keyed if _is_wanted(slim, seen, counts)]
            so_far: list[tuple[int, Slim]] = []
            read_in: dict[str, int] = {}
            truncations = [slim for slim in slims if slim.operation is Operation.TRUNCATE]
            for number, (stretch, truncated) in enumerate(stretches(keyed, truncations)):
                table.apply(frame, by_item(stretch, attrgetter("key"), attrgetter("place")), counts)
                read_in |= {slim.event_id: number for slim in stretch if slim.token is None}
                so_far += [(number, change) for change, _ in truncated]
                for change, partitions in truncated:
                    table.truncate(frame, change, partitions, partial(_since, so_far, read_in), counts)
            # Last: every row that is younger is protected by its token, or by the snapshot that read it.
            for slim in sorted(slims, key=attrgetter("place")):
                if slim.mark is not None and slim.snapshot is not None:
                    self._meet(frame, table, slim, slim.snapshot, counts)
            collected += table.tombstones(frame.sparkSession).collect(frame.sparkSession)
        return {
            "rows": len(rows),
            "applied": counts.applied,
            "ignored": counts.ignored,
            "unknown": counts.unknown,
            "incomplete": counts.incomplete,
            "collected": collected,
            "dead_letters": letters.send(others),  # each a hole in the copy
        }

    def _meet(self, frame: DataFrame, table: CopyTable, slim: Slim, snapshot: Snapshot, counts: VerdictCounts) -> None:
        """Take in the begin or the end of a snapshot in one partition."""
        partition, tombstones = slim.place[0], table.tombstones(frame.sparkSession)
        if slim.mark == "begin":
            tombstones.snapshots.begin(partition, snapshot.id)
        elif tombstones.snapshots.has_begun(partition, snapshot.id):
            table.sweep(frame, slim, partition, counts)
            # After the sweep: one that was cut off is done again.
            tombstones.snapshots.end(partition, snapshot.as_of)
        tombstones.remember(frame.sparkSession)

    def _table(self, name: tuple[str, str], layout: Layout) -> CopyTable:
        if name not in self._tables:
            source, table = name
            self._tables[name] = CopyTable(f"{self._path}/{source}/{table}", layout, self._retention)
        return self._tables[name]


def _since(so_far: Sequence[tuple[int, Slim]], read_in: Mapping[str, int], row: StoredRow) -> list[Slim]:
    """Return the truncations of a batch that came after ``row``: of one that it read, only the later ones did."""
    return [change for number, change in so_far if number >= read_in.get(row.event_id, 0)]


def _is_wanted(slim: Slim, seen: SeenSnapshots, counts: VerdictCounts) -> bool:
    if slim.operation is not Operation.READ or slim.snapshot is None:
        return True
    wanted = seen.wants(slim.place[0], slim.snapshot.as_of)
    counts.ignored += not wanted
    return wanted


def _slim() -> Any:
    """Give what deciding needs of a change, as JSON."""
    is_change = F.col("status") == DecodeStatus.CHANGE
    columns = ("layout", "partition", "offset", "key_texts", "event_id", "operation", "images", "token")
    return F.to_json(
        F.struct(
            "status",
            *(F.when(is_change, F.col(name)).alias(name) for name in columns),
            F.when(F.col("new").isNotNull(), True).alias("new"),
            "snapshot_id",
            "snapshot_as_of",
            F.try_element_at("attributes", F.lit(MARK)).alias("mark"),
            F.try_element_at("attributes", F.lit(REDRIVEN)).alias("redriven"),
        )
    )


def _read(row: Mapping[str, Any]) -> Slim:
    place = (row["partition"], row["offset"])
    token, snapshot = row.get("token"), row.get("snapshot_id")
    return Slim(
        key=tuple(row.get("key_texts", ())),
        place=place,
        event_id=row["event_id"],
        operation=Operation(row["operation"]),
        new=place if row.get("new") else None,
        images=Images(row["images"]),
        token=None if token is None else EventToken.from_json(token),
        snapshot=None if snapshot is None else Snapshot(snapshot, row["snapshot_as_of"]),
        attributes={REDRIVEN: row["redriven"]} if "redriven" in row else {},
        mark=row.get("mark") if row.get("key_texts") is None else None,
    )
