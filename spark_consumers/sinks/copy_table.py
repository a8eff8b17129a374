"""Applies changes to one table of the copy: reads the state of its rows, decides by ``fold``, writes conditionally."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from operator import attrgetter

from pyspark.sql import DataFrame

from relay.change import Snapshot
from relay.errors import RelayError
from relay.kafka.created_again import created_again
from relay.token import EventToken
from spark_consumers.fold import (
    ChangeHead,
    Place,
    StoredRow,
    Verdict,
    VerdictCounts,
    fold,
    needed_later,
    sweep,
    truncate,
)
from spark_consumers.gaps import LostChanges, fewest, from_json, to_json
from spark_consumers.plain_items import TableSummary
from spark_consumers.records import Layout
from spark_consumers.sinks.faults import RowFault, TableFault
from spark_consumers.sinks.target import Item, Key, SelectedRows, TargetTable, Write, change_property, is_same_change
from spark_consumers.sinks.tombstones import Tombstones

GAPS = "relay.gaps"
"""The property with the gaps that no snapshot has repaired, a JSON list."""

TOPIC_IDS = "relay.topic_ids"
"""The property with the ids of the topics that the places of rows are on, by name, a JSON object."""

TRUNCATIONS = "relay.truncations"
"""The property with the tokens of the truncations that later ones of other shards need, a JSON list."""

_ATTEMPTS = 20  # more conflicts in a row are a fault, not contention
_ROWS_PER_SWEEP = 20_000  # rows decided and written at once (I11)
_MOST_REFUSED = 20  # more rows that a target refuses at once are the fault of their table


_Rule = Callable[[StoredRow], tuple[StoredRow, Verdict]]


class CopyTable:
    """The copy of a table in ``target``. ``tombstone_retention``: seconds. ``topic_ids``: returns the ids by topic."""

    def __init__(
        self, target: TargetTable, tombstone_retention: float, topic_ids: Callable[[], Mapping[str, str]] = dict
    ) -> None:
        self.target = target
        self._topic_ids = topic_ids
        # Keeps a change whose row the target refuses, and why, among the dead letters. Set before each batch.
        self.refuse: Callable[[Place, str], None] = lambda place, why: None
        self._knows_topics = False
        self.tombstones = Tombstones(target, tombstone_retention)

    def prepare(self, batch: DataFrame, layouts: Mapping[int, Layout]) -> None:
        self.target.prepare(batch, layouts)
        if not self._knows_topics:
            self._note_topics(batch)
            self._knows_topics = True

    def _note_topics(self, batch: DataFrame) -> None:
        """Forget everything about a topic that has since been created again: its offsets mean other records."""
        known = json.loads(self.target.properties(batch).get(TOPIC_IDS, "{}"))
        present = self._topic_ids()
        replaced = created_again(known, present)
        for topic in replaced:
            self.target.forget_places(batch, topic)  # I7: or a change of unknown order would be taken for a replay
        if replaced:
            self.tombstones.forget_snapshots(batch)
        change_property(self.target, batch, TOPIC_IDS, lambda text: json.dumps({**json.loads(text), **present}), "{}")

    def is_present(self, topic: str) -> bool:
        """Whether a topic is the one that the config names for the table. Older brokers do not tell."""
        return topic in self._topic_ids()

    def noted_gaps(self, batch: DataFrame) -> Sequence[LostChanges] | None:
        """Return the gaps that no snapshot has repaired, or None if there never were any."""
        noted = self.target.properties(batch).get(GAPS) if self.target.exists(batch) else None
        return None if noted is None else from_json(noted)

    def add_gaps(self, batch: DataFrame, gaps: Sequence[LostChanges]) -> None:
        """Note that rows may be wrong, because changes were lost."""
        # I9: if several shards have a statement, a snapshot has to begin after the last of them.
        by_time = attrgetter("found_at")
        self._change_gaps(batch, lambda noted: fewest({g.id: g for g in sorted((*noted, *gaps), key=by_time)}.values()))

    def remove_gaps(self, batch: DataFrame, snapshot: Snapshot) -> None:
        """Forget the gaps that were repaired by a snapshot that has ended in every partition."""
        self._change_gaps(batch, lambda noted: [gap for gap in noted if not gap.is_repaired_by(snapshot)])

    def _change_gaps(self, batch: DataFrame, rule: Callable[[list[LostChanges]], list[LostChanges]]) -> None:
        change_property(self.target, batch, GAPS, lambda text: to_json(rule(from_json(text))), "[]")

    def truncations(self, batch: DataFrame) -> list[EventToken]:
        """Return the truncations of earlier batches that are needed for truncations of other shards."""
        return _tokens(self.target.properties(batch).get(TRUNCATIONS, "[]"))

    def remember_truncations(self, batch: DataFrame, tokens: Sequence[EventToken | None]) -> None:
        """Store what later batches need of the truncations up to now, in order: one of each shard may take days."""

        def with_ours(text: str) -> str:
            return json.dumps([token.to_json() for token in needed_later([*_tokens(text), *tokens])])

        change_property(self.target, batch, TRUNCATIONS, with_ours, "[]")

    def decide(self, changes: DataFrame, found: TableSummary, counts: VerdictCounts) -> Sequence[Key] | None:
        """Apply the changes of the items that SQL can decide, and return the keys of the rest.

        None if it cannot decide any, or if one of them has a row that the target refuses: the rule finds out which.
        """
        decided = VerdictCounts()
        try:
            left = self._decide(changes, found, decided) if self.target.decides_newest else None
        except RowFault:
            return None
        counts.add(decided)
        return left

    def _decide(self, changes: DataFrame, found: TableSummary, counts: VerdictCounts) -> Sequence[Key] | None:
        if found.reads:
            self.tombstones.load(changes)
            # The rows of a snapshot that was replaced by a later one are not applied.
            if not all(self.tombstones.snapshots.accepts(*snapshot) for snapshot in found.snapshots):
                return None
            written = self.target.write_reads(changes, found)
            counts.applied += written
            counts.ignored += found.reads - written
        if not found.items:
            return ()
        newest = self.target.write_newest(changes, found)
        counts.applied += newest.applied
        counts.ignored += newest.ignored
        return newest.left

    def apply(self, batch: DataFrame, items: Mapping[Key, Sequence[ChangeHead]], counts: VerdictCounts) -> None:
        """Apply the changes of some items, each item's in order."""
        pending = items
        for _ in range(_ATTEMPTS):
            if not pending:
                return
            stored = self.target.read(batch, pending.keys())
            counts_by_key = {key: VerdictCounts() for key in pending}
            writes = []
            for key, changes in pending.items():
                read = stored.get(key)
                row = fold(read, changes, counts_by_key[key])
                if row is not None and not is_same_change(row, read):
                    writes.append(Write(key, read, row))
            refused: list[tuple[Write, RowFault]] = []
            conflicts = self._write(batch, writes, refused)
            for write, fault in refused:
                conflicts |= self._refuse(batch, write, pending[write.key], fault)
            for key, of_key in counts_by_key.items():
                if key not in conflicts:
                    counts.add(of_key)
            pending = {key: pending[key] for key in conflicts}
        if pending:
            raise self._too_many_conflicts(next(iter(pending)))

    def _write(self, batch: DataFrame, writes: Sequence[Write], refused: list[tuple[Write, RowFault]]) -> set[Key]:
        """Write as the target does, which writes all or none, but for those that are ``refused``."""
        try:
            return self.target.write(batch, writes)
        except RowFault as fault:
            if len(writes) > 1:
                parts = writes[: len(writes) // 2], writes[len(writes) // 2 :]
                return {key for part in parts for key in self._write(_near(batch, part), part, refused)}
            refused.append((writes[0], fault))
            if len(refused) > _MOST_REFUSED:
                raise TableFault(f"{self.target.name} refuses more than {_MOST_REFUSED} rows: {fault}") from fault
            return set()

    def _refuse(self, batch: DataFrame, write: Write, changes: Sequence[ChangeHead], fault: RowFault) -> set[Key]:
        """Keep a change among the dead letters, and mark its row as incomplete; return its key if that conflicts."""
        row, stored = write.row, write.read
        place = next(c.place for c in changes if (c.new == row.item if write.image else c.event_id == row.event_id))
        self.refuse(place, str(fault))  # I1: first, since the change is a replay once its row is marked
        # As a change without its image: nothing older replaces the row, and what is newer completes it.
        kept = None if stored is None else Item.AS_STORED
        marked = replace(row, item=kept, deleted=stored is None or stored.deleted, incomplete=True)
        try:
            return self.target.write(batch, [Write(write.key, stored, marked)])
        except RowFault:  # I9: it refuses the key
            self.add_gaps(batch, [LostChanges.by_fault("refused", *self.target.source_table, str(fault))])
            return set()

    def truncate(
        self,
        batch: DataFrame,
        change: ChangeHead,
        partitions: Collection[int],
        truncations_of: Callable[[StoredRow], Sequence[EventToken]],
        counts: VerdictCounts,
    ) -> None:
        """Delete older rows of some partitions, and of other topics. ``truncations_of``: all tokens after a row."""
        rows = self.target.rows(batch, SelectedRows(change.place.topic, partitions, of_other_topics=True))
        self._apply_to_rows(batch, rows, lambda row: truncate(row, change, truncations_of(row)), counts)

    def sweep(self, batch: DataFrame, end: ChangeHead, counts: VerdictCounts, *, last: bool) -> None:
        """Delete a partition's rows that a snapshot did not find; with ``last``, all such rows, wherever they are from.

        Rows from before the topic got more partitions may be found in another partition.
        """
        begin = end.snapshot.as_of if end.snapshot is not None else 0
        place, moved = end.place, self.tombstones.snapshots.moved
        selected = SelectedRows(place.topic, [place.partition], False, begin, moved.get(str(place.partition), -1))  # I7
        if last:
            selected = SelectedRows(place.topic, None, True, begin)
        rows = self.target.rows(batch, selected)
        self._apply_to_rows(batch, rows, lambda row: sweep(row, end), counts)

    def _apply_to_rows(
        self, batch: DataFrame, rows: Iterator[tuple[Key, StoredRow]], rule: _Rule, counts: VerdictCounts
    ) -> None:
        """Apply ``rule`` to each of ``rows``, and count each once, as it was read."""
        parts = iter(lambda: list(islice(rows, _ROWS_PER_SWEEP)), [])
        conflicts = self.target.write_all(batch, (_decide(part, rule, counts) for part in parts))
        for _ in range(_ATTEMPTS):
            if not conflicts:
                return
            read = self.target.read(batch, conflicts)
            conflicts = self.target.write(batch, _decide(read.items(), rule, VerdictCounts()))
        if conflicts:
            raise self._too_many_conflicts(next(iter(conflicts)))

    def _too_many_conflicts(self, key: Key) -> RelayError:
        return RelayError(
            f"{self.target.name}: row {key} was changed by another writer during {_ATTEMPTS} attempts in a row to "
            "write it: stop whatever else writes to this table"
        )


def _near(batch: DataFrame, writes: Sequence[Write]) -> DataFrame:
    """Return a part of a batch that has the images of these rows: it is read for each attempt to write some."""
    offsets = [write.image[1] for write in writes if write.image]
    return batch.where(f"`offset` BETWEEN {min(offsets)} AND {max(offsets)}") if offsets else batch


def _tokens(text: str) -> list[EventToken]:
    return [EventToken.from_json(token) for token in json.loads(text)]


def _decide(rows: Iterable[tuple[Key, StoredRow]], rule: _Rule, counts: VerdictCounts) -> list[Write]:
    writes = []
    for key, stored in rows:
        row, verdict = rule(stored)
        counts.count(verdict, row)
        if not is_same_change(row, stored):
            writes.append(Write(key, stored, row))
    return writes
