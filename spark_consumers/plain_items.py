"""Finds the items of a batch that SQL can decide, by the Java class beside this module.

In Spark's SQL that takes a sort of all changes and a join with them, most of the time of a batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from relay.change import REDRIVEN, Operation
from spark_consumers.java_classes import new_instance
from spark_consumers.plain_tokens import PLAIN_TOKEN
from spark_consumers.records import Layout

_WRITES = (Operation.INSERT.value, Operation.UPDATE.value, Operation.DELETE.value)
# What the class makes, in its order.
_OTHERS = "_relay_partition int, _relay_offset long"
NEWEST = (
    f"{_OTHERS}, _relay_topic string, _relay_token string, _relay_deleted boolean, _relay_event_id string, "
    "_relay_incomplete boolean, key_texts array<string>, layout int, new string, stem string, first string, "
    "number string, changes int, first_offset long, now timestamp, as_of long"
)
ROW = 300
"""Bytes of a row without its image, about."""


class PlainItems:
    """The items of ``batch`` whose changes SQL can decide.

    All changes of such an item are of one of Spark's partitions, in their order on the topic, which reading from Kafka
    brings about by itself. Their tokens are plain, have one stem, and ascend; and each change gives the whole row, or
    deletes it. Or the only one is a row that a snapshot has read. Raises what Spark raises. Spark keeps what was found
    until `close`.
    """

    def __init__(self, batch: DataFrame, layouts: Sequence[Layout], *, nul: bool = True) -> None:
        """``nul``: whether SQL can decide changes that have a NUL character in a text."""
        self._session = batch.sparkSession
        is_deleted = F.col("operation") == Operation.DELETE
        as_of, nothing = F.col("snapshot_as_of"), F.lit(False)

        def rows(of_table: Column, plain: Column, as_of: Column) -> DataFrame:
            columns = ("status", "layout", "topic", "partition", "offset", "key_texts")
            return batch.select(*columns, of_table, plain, is_deleted, "token", "event_id", "new", as_of)

        read = rows(_of_table(), _may_be_plain(is_deleted), F.when(_may_be_read(), as_of))
        again = rows(nothing, nothing, as_of)
        names = [(layout.source, layout.table) for layout in layouts]
        tables = [names.index(name) for name in names]
        context = self._session.sparkContext
        self._items = new_instance(context, "PlainItems", read._jdf, again._jdf, using=["PlainToken"])
        keys = max((len(layout.key) for layout in layouts), default=0)
        try:
            found = self._items.find(PLAIN_TOKEN, tables, keys, nul)
        except BaseException:
            self.close()
            raise
        self.groups: list[Mapping[str, Any]] = [group for text in found for group in orjson.loads(text)]
        """The records by status, layout and topic, those of each of Spark's partitions by themselves.

        ``records``: how many. ``of_table``: changes that may change other items, too. ``plain``: those of the items,
        and ``items``: how many these are. ``reads``: the items that a snapshot has read, and ``snapshots``: of the rows
        of snapshots, these items or not, the partition and ``as_of``. ``bytes``: of the images of ``reads``, and of the
        newest changes of ``items``. ``bounds``: of each key column the ``least`` and the ``greatest`` text, and if all
        are numbers (``is_number``) the ``lowest`` and the ``highest``.
        """

    def newest(self, layouts: Collection[int], size: int, now: int = 0) -> DataFrame:
        """Return the newest change of each item with one of ``layouts``; ``size``: the bytes that Spark takes them for.

        ``now``: microseconds, which each row has as a time. As a literal Spark would write it into the code of a query,
        and so compile that for each batch.

        The columns: ``key_texts``, ``layout``, the image ``new``, the parts ``stem`` and ``number`` of its token, the
        number ``first`` of the item's first change, how many ``changes`` it has, the ``first_offset`` of them, -1 if
        they are in several partitions of the topic, and those of the state of a stored row but for
        ``_relay_read_as_of``, which no change of a stream sets; and ``now``.
        """
        return self._frame(self._items.newest(sorted(layouts), self._type(NEWEST), size, now))

    def reads(self, layouts: Collection[int], size: int, now: int = 0) -> DataFrame:
        """Return the rows of snapshots with one of ``layouts``, as `newest` does: ``as_of`` in place of a token."""
        return self._frame(self._items.reads(sorted(layouts), self._type(NEWEST), size, now))

    def others(self, layouts: Collection[int], changes: int) -> DataFrame:
        """Return ``partition`` and ``offset`` of the changes of other items; ``changes``: how many there are."""
        found = self._frame(self._items.others(sorted(layouts), self._type(_OTHERS), changes * ROW))
        return found.toDF("partition", "offset")

    def rows(self, layouts: Collection[int], *, of_snapshots: bool = False) -> Any:
        """Return what `newest`, or `reads`, does, in the order of ``NEWEST``, as an RDD of Java's."""
        return self._items.rows(sorted(layouts), of_snapshots)

    def close(self) -> None:
        self._items.close()

    def _type(self, columns: str) -> Any:
        jvm: Any = self._session.sparkContext._jvm
        return jvm.org.apache.spark.sql.types.DataType.fromJson(StructType.fromDDL(columns).json())

    def _frame(self, found: Any) -> DataFrame:
        return DataFrame(found, self._session)


def _of_table() -> Column:
    """Whether a change may change other items than its own, too."""
    is_write = F.col("operation").isin(*_WRITES) & F.col("snapshot_id").isNull()
    return F.col("key_texts").isNull() | ~(is_write | _is_read())


def _is_read() -> Column:
    """Whether a record is a row of a snapshot."""
    of_snapshot = F.col("snapshot_id").isNotNull() & F.col("snapshot_as_of").isNotNull()
    return (F.col("operation") == Operation.READ) & F.col("key_texts").isNotNull() & of_snapshot


def _may_be_plain(is_deleted: Column) -> Column:
    """Whether a change gives the whole row, or deletes it, so that only its token decides."""
    is_whole = is_deleted | F.col("new").isNotNull()
    return ~_of_table() & ~_is_read() & is_whole & ~_is_redriven() & F.col("token").isNotNull()


def _may_be_read() -> Column:
    """Whether a record is a row of a snapshot, so that only its ``as_of`` decides."""
    return _is_read() & F.col("new").isNotNull() & ~_is_redriven() & F.col("token").isNull()


def _is_redriven() -> Column:
    return F.try_element_at("attributes", F.lit(REDRIVEN)).isNotNull()
