"""Finds the items of a batch that SQL can decide, because their changes and the stored row have plain tokens.

Where the tokens of an item's changes ascend, only its newest change is written, by a statement that compares the
tokens. All else is left to ``fold``. A Java class finds them: that takes most of the time of a batch in SQL.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from relay.change import REDRIVEN, Operation
from spark_consumers.java_classes import new_instance
from spark_consumers.plain_tokens import PLAIN_TOKEN
from spark_consumers.records import DecodeStatus, Layout
from spark_consumers.spark_internals import frame_of, rows_of

_WRITES = (Operation.INSERT.value, Operation.UPDATE.value, Operation.DELETE.value)
# The columns that the class returns, in order.
_OTHERS = "_relay_partition int, _relay_offset long"
NEWEST = (
    f"{_OTHERS}, _relay_topic string, _relay_token string, _relay_deleted boolean, _relay_event_id string, "
    "_relay_incomplete boolean, key_texts array<string>, layout int, new string, stem string, first string, "
    "number string, changes int, first_offset long, now timestamp, as_of long"
)
ROW = 300  # approximate bytes of a row without its image


@dataclass(frozen=True, slots=True)
class KeyBounds:
    """The least and the greatest value of a key column, as text and as number; no number unless all are numbers."""

    texts: tuple[str, str]
    numbers: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class TableSummary:
    """The changes to one table in a batch.

    ``is_by_item``: whether each changes one item only, and all are of one topic; so it is False with truncations, and
    where a snapshot begins or ends. ``changes`` and ``items``: how many SQL can decide, and ``reads``: how many items
    only a snapshot has read; the keys of both are between ``bounds``, one for each key column, and ``bytes`` is the
    size of their images. ``others``: the number of other changes. ``snapshots``: partition and ``as_of`` of all rows of
    snapshots. ``found``: the source of the changes; ``layouts``: their layouts.
    """

    found: PlainItems
    layouts: Collection[int]
    is_by_item: bool
    changes: int
    items: int
    reads: int
    bytes: int
    others: int
    snapshots: frozenset[tuple[int, int]]
    bounds: tuple[KeyBounds, ...]

    @classmethod
    def of(cls, found: PlainItems, layouts: Collection[int]) -> TableSummary:
        """Return the summary of the table whose changes have these layouts, among those in ``found``."""
        groups = [each for each in found.groups if each["status"] == DecodeStatus.CHANGE and each["layout"] in layouts]
        changes, reads = (sum(group[name] for group in groups) for name in ("plain", "reads"))
        return cls(
            found,
            layouts,
            is_by_item=len({group["topic"] for group in groups}) == 1
            and not any(group["of_table"] for group in groups),
            changes=changes,
            items=sum(group["items"] for group in groups),
            reads=reads,
            bytes=sum(group["bytes"] for group in groups),
            others=sum(group["records"] for group in groups) - changes - reads,
            snapshots=frozenset((partition, as_of) for group in groups for partition, as_of in group["snapshots"]),
            bounds=_bounds([group for group in groups if group["plain"] or group["reads"]]),
        )

    def size(self, rows: int) -> int:
        """Return the approximate maximum of bytes in this many rows."""
        return self.bytes + rows * ROW


class PlainItems:
    """The items of ``batch`` whose changes SQL can decide.

    All changes of such an item are in one of Spark's partitions, in the order of the topic, as Spark reads them from
    Kafka. Their tokens are plain, have one stem, and ascend; and each change gives the whole row, or deletes it. Or the
    only one is a row that a snapshot has read. Takes one Spark action, or two if an item is in several of its
    partitions. Raises what Spark raises. Spark keeps what was found until `close`.
    """

    def __init__(self, batch: DataFrame, layouts: Sequence[Layout], *, nul: bool = True) -> None:
        """``nul``: whether SQL can decide changes with a NUL character in a text."""
        self._session = batch.sparkSession
        as_of, nothing, has_image = F.col("snapshot_as_of"), F.lit(False), F.col("new").isNotNull()
        is_deleted = F.col("operation") == Operation.DELETE
        is_redriven = F.try_element_at("attributes", F.lit(REDRIVEN)).isNotNull()
        of_snapshot = F.col("snapshot_id").isNotNull() & as_of.isNotNull()
        is_read = (F.col("operation") == Operation.READ) & F.col("key_texts").isNotNull() & of_snapshot
        is_write = F.col("operation").isin(*_WRITES) & F.col("snapshot_id").isNull()
        of_table = F.col("key_texts").isNull() | ~(is_write | is_read)  # it may change other items, too
        # What gives the whole row, or deletes it, so that only its token decides, or its `as_of`.
        is_whole = (is_deleted | has_image) & ~is_redriven
        may_be_plain = ~of_table & ~is_read & is_whole & F.col("token").isNotNull()
        may_be_read = is_read & has_image & ~is_redriven & F.col("token").isNull()

        def rows(of_table: Column, plain: Column, as_of: Column) -> DataFrame:
            columns = ("status", "layout", "topic", "partition", "offset", "key_texts")
            return batch.select(*columns, of_table, plain, is_deleted, "token", "event_id", "new", as_of)

        read = rows(of_table, may_be_plain, F.when(may_be_read, as_of))
        again = rows(nothing, nothing, as_of)
        names = [(layout.source, layout.table) for layout in layouts]
        tables = [names.index(name) for name in names]
        context = self._session.sparkContext
        self._items = new_instance(context, "PlainItems", rows_of(read), rows_of(again), using=["PlainToken"])
        keys = max((len(layout.key) for layout in layouts), default=0)
        try:
            found = self._items.find(PLAIN_TOKEN, tables, keys, nul)
        except BaseException:
            self.close()
            raise
        self.groups: list[Mapping[str, Any]] = [group for text in found for group in orjson.loads(text)]
        """The records by status, layout and topic, for each of Spark's partitions by itself.

        ``records``: how many. ``of_table``: changes that may change other items, too. ``plain``: the changes of the
        items, and ``items``: how many items there are. ``reads``: the items that a snapshot has read, and
        ``snapshots``: the partition and ``as_of`` of all rows of snapshots. ``bytes``: how large the images of
        ``reads`` are, and the newest changes of ``items``. ``bounds``: for each key column the ``least`` and the
        ``greatest`` text, and if all are numbers (``is_number``) the ``lowest`` and the ``highest``.
        """

    @property
    def statuses(self) -> Mapping[str, int]:
        statuses: Counter[str] = Counter()
        for group in self.groups:
            statuses[group["status"]] += group["records"]
        return statuses

    @property
    def layouts(self) -> list[int]:
        return sorted({group["layout"] for group in self.groups if group["status"] == DecodeStatus.CHANGE})

    def newest(self, layouts: Collection[int], size: int, now: int = 0, *, of_snapshots: bool = False) -> DataFrame:
        """Return the newest change of each item with one of ``layouts``. ``size``: the bytes that Spark should assume.

        ``now``: microseconds, in a column of each row; as a literal, Spark would compile the query for each batch. The
        columns are ``NEWEST``: ``stem`` and ``number`` are the parts of its token, ``first`` is the number of the
        item's first change, ``changes`` counts them, and ``first_offset`` is -1 if they are in several partitions of
        the topic. ``_relay_read_as_of`` is not among them, as no change of a stream sets it. ``of_snapshots``: return
        the rows of snapshots in the same way, with ``as_of`` in place of a token.
        """
        return self._frame(self._items.rows(sorted(layouts), of_snapshots, now), NEWEST, size)

    def others(self, layouts: Collection[int], changes: int) -> DataFrame:
        """Return ``partition`` and ``offset`` of the changes to other items; ``changes``: how many there are."""
        found = self._frame(self._items.others(sorted(layouts)), _OTHERS, changes * ROW)
        return found.toDF("partition", "offset")

    def rows(self, layouts: Collection[int], *, of_snapshots: bool = False) -> Any:
        """Return the rows of `newest`, in the order of ``NEWEST``, as a Java RDD."""
        return self._items.rows(sorted(layouts), of_snapshots, 0)

    def close(self) -> None:
        self._items.close()

    def _frame(self, rows: Any, columns: str, size: int) -> DataFrame:
        internals = new_instance(self._session.sparkContext, "SparkInternals")
        return frame_of(internals, self._session, rows, StructType.fromDDL(columns), size)


def _bounds(groups: Sequence[Mapping[str, Any]]) -> tuple[KeyBounds, ...]:
    """Return the bounds of the key columns that all groups have. Another table in the batch may have more."""
    found = []
    for parts in zip(*(group["bounds"] for group in groups), strict=True):
        if any(part["least"] is None for part in parts):
            break
        texts = min(part["least"] for part in parts), max(part["greatest"] for part in parts)
        numbers = None
        if all(part["is_number"] for part in parts):
            numbers = min(part["lowest"] for part in parts), max(part["highest"] for part in parts)
        found.append(KeyBounds(texts, numbers))
    return tuple(found)
