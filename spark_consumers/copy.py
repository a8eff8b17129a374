"""The copy: one table per source table, with its current rows and the event token of each.

Where the tokens of an item's changes are numbers of one shard, the statement that writes its newest change compares it
with the stored one (``plain_items``). For all other items the stored tokens are read, the rows are decided on the
driver (``fold``), and one statement writes them, each only where the stored token has not changed since.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from operator import attrgetter
from typing import Any

import orjson
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from relay.avro.registry import open_schemas
from relay.change import MARK, REDRIVEN, Images, Operation, Snapshot
from relay.config import Config, CopyConfig
from relay.kafka.group_offsets import Offsets, topic_ids
from relay.kafka.topics import connect
from relay.token import EventToken
from spark_consumers.applied_notes import NOT_KNOWN, AppliedNotes
from spark_consumers.fold import ChangeHead, Place, StoredRow, VerdictCounts, group_by_item, split_at_truncations
from spark_consumers.gaps import LostChanges
from spark_consumers.plain_items import PlainItems, TableSummary
from spark_consumers.records import DecodeStatus, Layout
from spark_consumers.running import log_event
from spark_consumers.sinks import delta
from spark_consumers.sinks.copy_table import CopyTable
from spark_consumers.sinks.faults import TableFault
from spark_consumers.sinks.places import CopyTarget, copy_target
from spark_consumers.sinks.target import TargetTable
from spark_consumers.sinks.tombstones import SeenSnapshots
from spark_consumers.table_consumer import BatchPlan, TableBatch, TableConsumer

# Records per batch. Even a batch with a single record takes half of the CPU that Spark takes for 20,000.
_AT_MOST = 50_000
_EARLIER = -1  # stands for the segments of earlier batches

_Name = tuple[str, str]  # the source and the name of a table
_Tables = dict[_Name, dict[int, Layout]]  # the layouts of tables, by number


def copy_consumer(config: Config, copy: CopyConfig, target: CopyTarget | None = None) -> TableConsumer:
    """Return the consumer of ``target``, by default ``copy.url``. Raises ``Unavailable`` for a silent database."""
    topics = sorted({*map(config.topic, config.tables)})
    ids = cache(lambda: topic_ids(connect(config), config, topics))

    def published() -> Sequence[Layout]:
        with closing(open_schemas(config)) as schemas:
            schemas.learn(topics)
            return [Layout.of(schema) for schema in schemas.all().values()]

    def ids_of(table: str) -> dict[str, str]:
        return {topic: number for topic, number in ids().items() if topic == config.topic(table)}

    target = target or copy_target(config, copy)
    rooms: defaultdict[str, set[str]] = defaultdict(set)
    for table, source in config.tables.items():
        rooms[source.name].add(config.topic(table))
    open_table = target.open()

    def lost(session: SparkSession, source: str, tables: Collection[str]) -> Mapping[str, str]:
        found = [name for name in tables if name in config.tables and not is_there(open_table(source, name), session)]
        return {name: config.topic(name) for name in found}

    notes = AppliedNotes(rooms, ids, target.change_note, lost)
    rule = TableCopies(open_table, copy.tombstone_retention, ids_of, published, notes)
    return TableConsumer(
        "copy", config, rule, notes=notes, at_most=_AT_MOST, apply_every=copy.apply_every, delta_at=target.location
    )


def is_there(table: TargetTable, session: SparkSession) -> bool:
    """Whether the target has a table, even one that cannot be read."""
    try:
        return table.exists(session.range(0))
    except TableFault:  # I12: it will be set aside when it gets changes
        return True


@dataclass(eq=False, repr=False)
class TableCopies:
    """The copies of all tables. ``open_table``: opens one, by source and table. ``tombstone_retention``: seconds.

    ``topic_ids``: returns the ids of the topics of a table, by name. ``published``: the layouts of all changes on the
    topics, even of tables without any change so far. ``notes``: keep the gaps for later tables.
    """

    open_table: Callable[[str, str], TargetTable]
    tombstone_retention: float
    topic_ids: Callable[[str], Mapping[str, str]] = lambda table: {}
    published: Callable[[], Sequence[Layout]] = lambda: ()
    notes: AppliedNotes = NOT_KNOWN

    def __post_init__(self) -> None:
        self._tables: dict[_Name, CopyTable] = {}
        self._met: set[_Name] = set()  # the tables that had changes

    def note_gaps(self, session: SparkSession, gaps: Sequence[LostChanges]) -> None:
        """Note gaps, each of one table, for later tables and beside the existing tables."""
        self.notes.add_gaps(session, gaps)
        for name in dict.fromkeys((str(gap.source), str(gap.table)) for gap in gaps):
            of_table = [gap for gap in gaps if (gap.source, gap.table) == name]
            self._mark(session.range(0), name, {}, of_table)  # a target takes its session

    def plan(self, given: TableBatch) -> BatchPlan:
        nul = all(self._table(*name).target.keeps_nul for name in _names(given.layouts))
        found = PlainItems(given.records, given.layouts, nul=nul)
        return BatchPlan(found.statuses, partial(self._write, given, found), found.close)

    def _write(self, given: TableBatch, found: PlainItems, gaps: Sequence[LostChanges]) -> dict[str, int]:
        batch, counts, collected = given.records, VerdictCounts(), 0
        by_table: _Tables = defaultdict(dict)
        for number in found.layouts:
            layout = given.layouts[number]
            by_table[layout.source, layout.table][number] = layout
        # Gaps come first, so that a snapshot in this batch can repair them.
        self._mark_new(given, by_table)
        self.notes.add_gaps(batch.sparkSession, gaps)
        for name in self._names_of_all(given) if gaps else ():
            self._mark(batch, name, by_table, [gap for gap in gaps if gap.concerns(*name)])
        for name, used in by_table.items():
            with self._or_set_aside(batch, name):
                table = self._table(*name)
                table.refuse = given.refuse
                table.prepare(batch, used)
                self._take_back(batch, name, table)
                changes = batch.where(F.col("layout").isin(list(used)) & (F.col("status") == DecodeStatus.CHANGE))
                apply(batch, table, _undecided(changes, table, TableSummary.of(found, used), counts), counts, given.end)
                self._note_repaired(batch, name, table)
                collected += table.tombstones.collect(batch)
                table.target.maintain(batch)
        self.notes.add_tables(by_table)
        return {**asdict(counts), "collected": collected}

    @contextmanager
    def _or_set_aside(self, batch: DataFrame, name: _Name) -> Iterator[None]:
        """Set a table aside if it cannot take its changes in this batch, and let the others continue."""
        known = self.notes.set_aside().get(name)
        try:
            yield
        except TableFault as fault:
            lost = LostChanges.by_fault(f"aside/{name[1]}", *name, str(fault))
            lost = replace(lost, open_since=known.open_since if known else lost.found_at)
            self.notes.add_gaps(batch.sparkSession, [lost])  # I9: before the batch counts as applied
            if name not in self.notes.set_aside():
                raise  # no table has a note of it
            self._tables.pop(name, None)  # somebody may drop it, too
            if known is None:
                log_event("set aside", "copy", source=name[0], table=name[1], error=lost.reason)

    def _take_back(self, batch: DataFrame, name: _Name, table: CopyTable) -> None:
        """Note beside a table that was set aside, and can take changes again, that it has missed some."""
        if lost := self.notes.set_aside().get(name):
            missed = replace(lost, open_since=0.0)
            table.tombstones.forget_snapshots(batch)  # I7: its end would delete rows read meanwhile
            table.add_gaps(batch, [missed])
            self.notes.add_gaps(batch.sparkSession, [replace(lost, taken_back=True)])
            log_event("taken back", "copy", source=name[0], table=name[1], missing="read it again: `relay snapshot`")

    def _note_repaired(self, batch: DataFrame, name: _Name, table: CopyTable) -> None:
        """Note that a table that was taken back no longer lacks anything."""
        lost = self.notes.incomplete().get(name)
        if lost and lost.id not in {gap.id for gap in table.noted_gaps(batch) or ()}:
            self.notes.add_gaps(batch.sparkSession, [replace(lost, open_since=0.0)])

    def _mark_new(self, given: TableBatch, changed: _Tables) -> None:
        """Note past gaps at tables with their first changes, because they did not exist to note them."""
        new = changed.keys() - self._met
        for source in {source for source, _ in new}:
            past = self.notes.gaps(given.records.sparkSession, source)
            names = [name for name in new if name[0] == source] if past else []
            if unmarked := [name for name in names if self._gaps_beside(given.records, name) is None]:
                of_source = [name for name in self._names_of_all(given) if name[0] == source]
                noted = [gaps for name in of_source if (gaps := self._gaps_beside(given.records, name)) is not None]
                # A snapshot has repaired the gaps that no table of the source still notes.
                known = [gap for gaps in noted for gap in gaps] if noted else past
                for name in unmarked:
                    of_all = [gap for gap in known if gap.table is None]
                    missed = [gap for gap in past if gap.table == name[1]]
                    self._mark(given.records, name, changed, [*of_all, *missed])  # I9
        self._met |= new - self.notes.set_aside().keys()

    def _gaps_beside(self, batch: DataFrame, name: _Name) -> Sequence[LostChanges] | None:
        """Return the gaps that a table has noted, or None if it never noted one, or cannot be read."""
        found = []
        with self._or_set_aside(batch, name):  # I12
            found.append(self._table(*name).noted_gaps(batch))
        return found[0] if found else None

    def _names_of_all(self, given: TableBatch) -> list[_Name]:
        """Return the tables that a gap may concern. Raises ``Unavailable``."""
        return _names([*given.layouts, *self.published()])  # I9

    def _mark(self, batch: DataFrame, name: _Name, changed: _Tables, gaps: Sequence[LostChanges]) -> None:
        """Note gaps beside a table, if it exists or this batch creates it."""
        if not gaps:
            return
        with self._or_set_aside(batch, name):
            table = self._table(*name)
            if name in changed:
                # Not for other layouts, which may date from before the table had this key.
                table.prepare(batch, changed[name])
            if table.target.exists(batch):
                table.add_gaps(batch, gaps)

    def _table(self, source: str, table: str) -> CopyTable:
        if (source, table) not in self._tables:
            opened, ids = self.open_table(source, table), partial(self.topic_ids, table)
            self._tables[source, table] = CopyTable(opened, self.tombstone_retention, ids)
        return self._tables[source, table]


def _names(layouts: Sequence[Layout]) -> list[_Name]:
    return [*dict.fromkeys((layout.source, layout.table) for layout in layouts)]


def _undecided(
    changes: DataFrame, table: CopyTable, found: TableSummary, counts: VerdictCounts
) -> Sequence[ChangeHead]:
    """Let SQL decide as many of a table's changes as it can, and return the others."""
    if not found.is_by_item or not (found.items or found.reads):
        return _heads(changes)
    left = table.decide(changes, found, counts)
    if left is None:
        return _heads(changes)
    heads = []
    if found.others:
        others = found.found.others(found.layouts, found.others)
        heads += _heads(changes.join(F.broadcast(others), ["partition", "offset"], "left_semi"))
    if left:
        keys = delta.local_frame(changes.sparkSession, ([key] for key in left), {"other": "array<string>"})
        heads += _heads(changes.join(F.broadcast(keys), F.col("key_texts") == F.col("other"), "left_semi"))
    return heads


def _heads(changes: DataFrame) -> list[ChangeHead]:
    """Return changes without their images, which Spark returns as JSON."""
    columns = ("topic", "partition", "offset", "key_texts", "event_id", "operation", "images", "token")
    head = F.struct(
        *columns,
        F.when(F.col("new").isNotNull(), True).alias("new"),
        "snapshot_id",
        "snapshot_as_of",
        F.try_element_at("attributes", F.lit(MARK)).alias("mark"),
        F.try_element_at("attributes", F.lit(REDRIVEN)).alias("redriven"),
    )
    rows = changes.select(F.to_json(head, {"ignoreNullFields": "true"})).collect()
    return [_read_head(orjson.loads(row[0])) for row in rows]


def apply(
    batch: DataFrame, table: CopyTable, changes: Sequence[ChangeHead], counts: VerdictCounts, end: Offsets
) -> None:
    """Apply a batch's changes to their table, which is prepared for them. ``end``: the batch's end offsets."""
    topics = {change.place.topic for change in changes}
    if len(topics) > 1:  # I7: an image is known by its partition and offset
        for topic in sorted(topics, key=lambda topic: (table.is_present(topic), topic)):
            of_topic = [change for change in changes if change.place.topic == topic]
            apply(batch.where(f"topic = {delta.literal(topic)}"), table, of_topic, counts, end)
        return
    keyed = [change for change in changes if change.operation is not Operation.TRUNCATE and change.mark is None]
    if any(change.snapshot is not None or change.mark is not None for change in changes):
        table.tombstones.load(batch)
        keyed = [change for change in keyed if _is_current(change, table.tombstones.snapshots, counts)]
    truncations = [change for change in changes if change.operation is Operation.TRUNCATE]
    # The tokens of the truncations up to here, each with the number of the segment before it.
    past_truncations: list[tuple[int, EventToken | None]] = []
    if truncations:
        past_truncations += [(_EARLIER, token) for token in table.truncations(batch)]
    # The segment in which a row without a token was read.
    read_in: dict[str, int] = {}
    for number, (segment, truncated) in enumerate(split_at_truncations(keyed, truncations)):
        table.apply(batch, group_by_item(segment), counts)
        read_in |= {change.event_id: number for change in segment if change.token is None}
        past_truncations += [(number, truncation.token) for truncation, _ in truncated]
        for truncation, partitions in truncated:
            table.truncate(batch, truncation, partitions, partial(_truncations_of, past_truncations, read_in), counts)
    if truncations:
        table.remember_truncations(batch, [token for _, token in past_truncations])
    # Marks come last: every younger row is protected by its token, or by the snapshot that read it.
    # I7: not those that are sent again, late: this copy may lack rows that their snapshot has read.
    marks = [change for change in changes if change.mark is not None and REDRIVEN not in change.attributes]
    while marks:
        for mark in sorted(marks, key=attrgetter("partition_offset")):
            if mark.snapshot is not None:
                # I9: a partition without records was added after the snapshot
                used = [partition for partition, offset in end[mark.place.topic].items() if offset]
                _apply_mark(batch, table, mark, mark.snapshot, counts, used)
            else:  # the topic got more partitions
                table.tombstones.snapshots.move(mark.place.topic, mark.place.partition, mark.place.offset)
        # After the sweeps, so that a sweep cut off by a crash is repeated.
        if table.tombstones.remember(batch):
            break
        table.tombstones.load(batch)  # another driver was faster


def _apply_mark(
    batch: DataFrame,
    table: CopyTable,
    mark: ChangeHead,
    snapshot: Snapshot,
    counts: VerdictCounts,
    partitions: Collection[str],
) -> None:
    partition, tombstones = mark.place.partition, table.tombstones
    if mark.mark == "begin":
        tombstones.snapshots.begin(mark.place.topic, partition, snapshot.id, mark.place.offset)
    elif tombstones.snapshots.has_begun(partition, snapshot.id):
        last = tombstones.snapshots.is_last(partition, snapshot.as_of, partitions)
        table.sweep(batch, mark, counts, last=last)
        if last:
            table.remove_gaps(batch, snapshot)
        tombstones.snapshots.end(partition, snapshot.as_of)


def _truncations_of(
    past_truncations: Sequence[tuple[int, EventToken | None]], read_in: Mapping[str, int], row: StoredRow
) -> list[EventToken]:
    """Return the truncations after ``row``; for a row that this batch read, only the later ones."""
    first = read_in.get(row.event_id, _EARLIER)
    return [token for number, token in past_truncations if token is not None and number >= first]


def _is_current(change: ChangeHead, seen: SeenSnapshots, counts: VerdictCounts) -> bool:
    """Whether a change may be applied: not if it is a row of a snapshot that a later one has replaced."""
    if change.operation is not Operation.READ or change.snapshot is None:
        return True
    accepted = seen.accepts(change.place.partition, change.snapshot.as_of)
    counts.ignored += not accepted
    return accepted


def _read_head(head: Mapping[str, Any]) -> ChangeHead:
    place = Place(head["topic"], head["partition"], head["offset"])
    token, snapshot = head.get("token"), head.get("snapshot_id")
    return ChangeHead(
        key=tuple(head.get("key_texts", ())),
        place=place,
        event_id=head["event_id"],
        operation=Operation(head["operation"]),
        # The place of the image in the batch.
        new=(place.partition, place.offset) if head.get("new") else None,
        images=Images(head["images"]),
        token=None if token is None else EventToken.from_json(token),
        snapshot=None if snapshot is None else Snapshot(snapshot, head["snapshot_as_of"]),
        attributes={REDRIVEN: head["redriven"]} if "redriven" in head else {},
        mark=head.get("mark") if head.get("key_texts") is None else None,
    )
