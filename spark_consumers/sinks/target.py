"""What the copy's rule needs of the table that it keeps up to date. Each target implements ``TargetTable`` once."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from enum import Enum
from typing import Any, Protocol, Self

from pyspark.sql import DataFrame

from relay.token import EventToken
from spark_consumers.fold import PartitionOffset, Place, StoredRow
from spark_consumers.plain_items import TableSummary
from spark_consumers.records import DecodeStatus, Layout
from spark_consumers.sinks.delta import literal

Key = tuple[str, ...]
"""The key columns as text; binary in base64."""


class Item(Enum):
    """Stands in for the item of a stored row, since items are never read back from the table."""

    AS_STORED = "as stored"


@dataclass(frozen=True, slots=True)
class Write:
    """A row to write, and the state ``read`` that it replaces, or None if there was no row.

    The row's item is the partition and offset of an image in the batch, ``Item.AS_STORED``, or None.
    """

    key: Key
    read: StoredRow | None
    row: StoredRow

    @property
    def image(self) -> PartitionOffset | None:
        return self.row.item if isinstance(self.row.item, tuple) else None

    @property
    def states(self) -> tuple[object, ...]:
        """Whether the item stays as stored, whether there was a row, the state to write, and the one that was read."""
        before = (None,) * len(STATE) if self.read is None else state(self.read)
        return (self.row.item is Item.AS_STORED, self.read is not None, *state(self.row), *before)


@dataclass(frozen=True, slots=True)
class Written:
    """How many changes were applied and ignored, and the keys of items where neither is known."""

    applied: int
    ignored: int
    left: Sequence[Key]

    @classmethod
    def of(cls, applied: int, unwritten: Iterable[Sequence[Any]]) -> Self:
        """Return it for ``applied`` changes but for the ``unwritten`` items: key, count of changes, whether ignored."""
        ignored, left = 0, []
        for *key, changes, is_old in unwritten:
            applied -= changes
            ignored += changes if is_old else 0
            if not is_old:
                left.append(tuple(key))
        return cls(applied, ignored, left)


@dataclass(frozen=True, slots=True)
class SelectedRows:
    """The rows that may exist at the source and come from some partitions of ``topic``, or other topics.

    A row without a place counts as one of another topic. ``partitions``: None for all. ``after``: the offset behind
    which rows of ``partitions`` are selected. ``read_before``: the time before which a snapshot has read the rows.
    """

    topic: str
    partitions: Collection[int] | None
    of_other_topics: bool
    read_before: int | None = None
    after: int = -1

    def where(self, topic: str) -> str:
        """Return the condition in SQL. ``topic``: the topic, as a literal of the target."""
        is_topic = where = f"_relay_topic IS NOT DISTINCT FROM {topic}"
        if self.partitions is not None:
            where += f" AND _relay_partition IN ({', '.join(map(str, self.partitions))})"
        if self.after >= 0:
            where += f" AND _relay_offset > {self.after}"
        where = f"({where} OR NOT {is_topic})" if self.of_other_topics else f"({where})"
        where += " AND (NOT _relay_deleted OR _relay_incomplete)"
        return where if self.read_before is None else f"{where} AND _relay_read_as_of < {self.read_before}"


class TargetTable(Protocol):
    """One table of the copy at its target.

    The methods take the ``batch`` that they are called for, whose images `write` stores, and whose session a target in
    Spark uses. Other writers may change the same rows at any time.
    """

    name: str
    """Names the table in messages."""

    source_table: tuple[str, str]
    """The source and the table at the source."""

    def prepare(self, batch: DataFrame, layouts: Mapping[int, Layout]) -> None:
        """Create the table, or change its columns, for changes of ``layouts``, by number. Comes first in each batch."""

    def exists(self, batch: DataFrame) -> bool:
        """Whether the table exists. It need not be prepared for this, or for its properties if it exists."""

    def read(self, batch: DataFrame, keys: Collection[Key]) -> dict[Key, StoredRow]:
        """Return the state of each of ``keys`` that is in the table, tombstones included."""

    def write(self, batch: DataFrame, writes: Sequence[Write]) -> set[Key]:
        """Write each row whose state is still the one that was read, all or none; return the keys of the others.

        Raises ``RowFault``, as `write_newest` and `write_reads` do. All methods raise ``TableFault``.
        """

    @property
    def decides_newest(self) -> bool:
        """Whether `write_newest` and `write_reads` can write the layouts that the table is prepared for."""
        return True

    @property
    def keeps_nul(self) -> bool:
        """Whether they can write a text that has a NUL character."""
        return True

    def write_newest(self, changes: DataFrame, found: TableSummary) -> Written:
        """Write the newest change of each item that SQL can decide, if the table has no or an older token of that stem.

        If the stored token is newer, or the change's own, all of the item's changes are ignored. Older means older than
        the first of them. A row that a snapshot has read has no token: it is older if the topic does not have it behind
        the first change, nor in another partition. Whatever else is stored, the item is left as it is. ``changes``:
        changes of this table, in one topic, each of one item. ``found``: the summary of ``changes``.
        """

    def write_reads(self, changes: DataFrame, found: TableSummary) -> int:
        """Write each row that a snapshot has read, unless what is stored is newer; return how many were written.

        A row is newer if a later snapshot has read it, or if the timestamp of its token is not before ``as_of``.
        Takes what `write_newest` takes.
        """

    def write_all(self, batch: DataFrame, parts: Iterable[Sequence[Write]]) -> set[Key]:
        """Write as `write` does, but any number of rows without images, with one of ``parts`` in memory at a time."""
        return {key for part in parts for key in self.write(batch, part)}

    def rows(self, batch: DataFrame, selected: SelectedRows) -> Iterator[tuple[Key, StoredRow]]: ...

    def forget_places(self, batch: DataFrame, topic: str) -> None:
        """Let the rows that come from ``topic`` lose their place."""

    def delete_tombstones(self, batch: DataFrame, written_before: float) -> int:
        """Delete tombstones written before a time, in seconds, but no stubs, which are incomplete; return how many."""

    def maintain(self, batch: DataFrame) -> None:
        """Keep the table small, if it is time to, unless its server does. Called after each batch that concerns it."""
        return

    def properties(self, batch: DataFrame) -> Mapping[str, str]:
        """Return what ``replace_property`` has stored."""

    def replace_property(self, batch: DataFrame, name: str, before: str | None, after: str) -> bool:
        """Store a text in place of ``before``, None if there was none; return False if it has changed since."""


def change_property(
    table: TargetTable, batch: DataFrame, name: str, rule: Callable[[str], str], nothing: str = ""
) -> str:
    """Replace a property with what ``rule`` returns for it; return that. ``nothing``: what it gets if there is none."""
    while True:
        before = table.properties(batch).get(name)
        known = before or nothing
        after = rule(known)
        # I7, I9: another driver may change it at any time.
        if after == known or table.replace_property(batch, name, before, after):
            return after


PLACE = ("_relay_topic", "_relay_partition", "_relay_offset")
"""The columns that hold the place of a row's change."""

NO_PLACE = ", ".join(f"{name} = NULL" for name in PLACE)
"""What sets them if the place is no longer known."""

IS_COLLECTED = "_relay_deleted AND NOT _relay_incomplete AND _relay_updated_at <"
"""Begins the condition of the tombstones that are deleted: then comes the SQL of a time."""

STATE = ("_relay_token", "_relay_deleted", "_relay_event_id", "_relay_incomplete", "_relay_read_as_of", *PLACE)
"""The columns that hold the state of a row, in the order of `state`."""

IS_BEHIND = (
    "coalesce(t._relay_topic = s._relay_topic"
    " AND (t._relay_partition <> s._relay_partition OR t._relay_offset >= s.first_offset), false)"
)
"""SQL that says whether the topic has a stored row ``t`` behind the first change of the item ``s``, or may have.

That is in another partition, where only the rule compares them (`_is_replay`).
"""

IS_OLDER_THAN_READ = (
    "s.as_of >= t._relay_read_as_of AND (t._relay_token IS NULL OR coalesce({timestamp} < s.as_of, false))"
)
"""SQL that says whether a stored row ``t`` is older than the row ``s`` that a snapshot has read.

``timestamp``: the stored token's.
"""

OF_CHANGE = tuple(name for name in STATE if name != "_relay_read_as_of")
"""Those that a change of a stream sets."""


def state(row: StoredRow) -> tuple[object, ...]:
    """Return a row without its item as the values of its columns ``STATE``."""
    token = None if row.token is None else row.token.to_json()
    place = (None, None, None) if row.place is None else astuple(row.place)
    return token, row.deleted, row.event_id, row.incomplete, row.read_as_of, *place


def stored_row(values: Sequence[Any]) -> StoredRow:
    """Return the row whose columns ``STATE`` have these values."""
    token, deleted, event_id, incomplete, read_as_of, *place = values
    return StoredRow(
        Item.AS_STORED,
        None if token is None else EventToken.from_json(token),
        event_id,
        deleted=deleted,
        incomplete=incomplete,
        read_as_of=read_as_of,
        place=None if place[0] is None else Place(*place),
    )


def images(batch: DataFrame, source: str, table: str) -> DataFrame:
    """Return partition, offset, layout and new image of one table's changes; places are unique in one topic only."""
    named = f"source = {literal(source)} AND `table` = {literal(table)}"
    where = f"status = '{DecodeStatus.CHANGE}' AND {named} AND new IS NOT NULL"
    return batch.where(where).select("partition", "offset", "layout", "new")


LACKS_IMAGES = (
    "a batch that was read again lacks row images that it had the first time, probably because Kafka has compacted the "
    "topic"
)
"""The error if an image is gone. Nothing of the batch is written then."""


def is_same_change(row: StoredRow, other: StoredRow | None) -> bool:
    """Whether two states come from the same change, and so hold the same item."""
    return other is not None and replace(row, item=None) == replace(other, item=None)
