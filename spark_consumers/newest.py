"""Which items of a batch a copy can decide in SQL, since their changes and the stored row have plain tokens.

Where the tokens of an item's changes ascend, the rule ends with its newest change wherever that is newer than the
stored row. So only that change is written, by a statement that compares the tokens. All else is left to ``fold``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F

from relay.change import REDRIVEN, Operation
from spark_consumers.plain_tokens import PLAIN_END, PLAIN_TOKEN
from spark_consumers.records import DecodeStatus

_WRITES = (Operation.INSERT.value, Operation.UPDATE.value, Operation.DELETE.value)


@dataclass(frozen=True, slots=True)
class KeyBounds:
    """The least and the greatest value of a key column: of its texts, and of its numbers, None if it has others."""

    texts: tuple[str, str]
    numbers: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class TableSummary:
    """The changes of one table in a batch.

    ``is_by_item``: whether each changes one item only, and all are of one topic; so it is False with truncations and
    snapshots. ``changes`` and ``items``: the number of those that SQL can decide, whose keys are between ``bounds``,
    one for each key column. ``others``: the number of other changes. ``ordered``: all of them, ``in_order``, but for a
    quick summary.
    """

    is_by_item: bool
    changes: int
    items: int
    others: int
    bounds: tuple[KeyBounds, ...]
    ordered: DataFrame | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """``statuses``: the number of records by status. ``groups``: of the changes, by layout and topic.

    ``ordered``: the records ``in_order``, which Spark keeps until `close`.
    """

    statuses: Mapping[str, int]
    groups: tuple[Row, ...]
    ordered: DataFrame | None = None

    def close(self) -> None:
        if self.ordered is not None:
            self.ordered.unpersist()

    @classmethod
    def of(cls, found: Sequence[Row], ordered: DataFrame | None = None) -> BatchSummary:
        """Return the summary of groups of records by status, layout and topic."""
        statuses: Counter[str] = Counter()
        for group in found:
            statuses[group["status"]] += group["records"]
        return cls(statuses, tuple(group for group in found if group["status"] == DecodeStatus.CHANGE), ordered)

    @property
    def layouts(self) -> list[int]:
        """The numbers of the layouts that the changes have."""
        return sorted({group["layout"] for group in self.groups})

    def table(self, layouts: Collection[int]) -> TableSummary:
        """Return the summary of the table whose changes have these layouts."""
        groups = [group for group in self.groups if group["layout"] in layouts]
        changes = sum(group["plain"] for group in groups)
        return TableSummary(
            is_by_item=len({group["topic"] for group in groups}) == 1
            and not any(group["of_table"] for group in groups),
            changes=changes,
            items=sum(group["items"] for group in groups),
            others=sum(group["records"] for group in groups) - changes,
            bounds=_bounds([group for group in groups if group["plain"]]),
            ordered=None if self.ordered is None else self.ordered.where(changes_with(layouts)),
        )


def changes_with(layouts: Collection[int]) -> Column:
    """Return whether a record of a batch is a change with one of ``layouts``."""
    return F.col("layout").isin(list(layouts)) & (F.col("status") == DecodeStatus.CHANGE)


def _bounds(groups: Sequence[Row]) -> tuple[KeyBounds, ...]:
    """Return the bounds of the key columns that all groups have. Another table of the batch may have more."""
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


def summary(batch: DataFrame, key_columns: int) -> BatchSummary:
    """Summarise a batch in one Spark action. ``key_columns``: how many the longest key has."""
    is_change = F.col("status") == DecodeStatus.CHANGE
    # Kept, since a target writes from it, too.
    ordered = in_order(batch).persist()
    groups = ordered.groupBy("status", "layout", F.when(is_change, F.col("topic")).alias("topic")).agg(
        F.count(F.lit(1)).alias("records"),
        F.count_if("of_table").alias("of_table"),
        F.count_if("is_plain").alias("plain"),
        F.count_if(F.col("is_plain") & F.col("is_last")).alias("items"),
        F.array(*map(_bounds_of, range(key_columns))).alias("bounds"),
    )
    try:
        return BatchSummary.of(groups.collect(), ordered)
    except BaseException:
        ordered.unpersist()
        raise


def quick_summary(batch: DataFrame) -> BatchSummary:
    """Summarise a batch for a target that puts an item's changes in order by itself.

    Then ``items`` and ``changes`` are those that it may be able to decide, and there are no ``bounds``.
    """
    is_change = F.col("status") == DecodeStatus.CHANGE
    may_be_plain = ~_of_table() & F.endswith("token", F.lit(PLAIN_END))
    found = (
        batch.groupBy("status", "layout", F.when(is_change, F.col("topic")).alias("topic"))
        .agg(
            F.count(F.lit(1)).alias("records"),
            # A key with a NUL character is refused by the rule: PostgreSQL has no such text.
            F.count_if(_of_table() | F.contains(F.array_join("key_texts", ""), F.lit("\0"))).alias("of_table"),
            F.count_if(may_be_plain).alias("plain"),
            F.count_if(may_be_plain).alias("items"),
            F.array().alias("bounds"),
        )
        .collect()
    )
    return BatchSummary.of(found)


def _of_table() -> Column:
    """Whether a change may change other items than its own, too."""
    return ~F.col("operation").isin(*_WRITES) | F.col("key_texts").isNull() | F.col("snapshot_id").isNotNull()


def _bounds_of(column: int) -> Column:
    text = F.get("key_texts", F.lit(column))
    # Spark makes an exception, with its message, of each text that is no number, and so it is not asked to.
    number = F.when(text.rlike("^-?[0-9]{1,19}$"), text.try_cast("bigint"))
    return F.struct(
        F.min(text).alias("least"),
        F.max(text).alias("greatest"),
        F.min(number).alias("lowest"),
        F.max(number).alias("highest"),
        F.bool_and(number.isNotNull()).alias("is_number"),
    )


def in_order(batch: DataFrame) -> DataFrame:
    """Return the changes of a batch without their images, with what those of an item have in common.

    The columns: ``status``, ``layout``, ``topic``, ``partition``, ``offset`` and ``key_texts`` of a change.
    ``of_table``: whether it may change other items, too. ``stem`` and ``number``: the parts of its token
    (``plain_tokens``). ``first``: the number of the item's first change. ``changes``: how many it has. ``is_last``:
    whether it is the newest. ``is_plain``: whether SQL can decide the item's changes.
    """
    part = [F.regexp_extract("token", PLAIN_TOKEN, group) for group in (1, 2)]
    # Spark keeps thousands of an item's rows in memory to order them, whatever their size.
    heads = batch.select(
        *("status", "layout", "topic", "partition", "offset", "source", "table", "key_texts"),
        _of_table().alias("of_table"),
        part[0].alias("stem"),
        part[1].alias("number"),
        _is_plain().alias("plain"),
    )
    item = Window.partitionBy("source", "table", "key_texts")
    ordered = item.orderBy("partition", "offset")
    previous = [F.lag(name).over(ordered) for name in ("stem", "number")]
    # Two changes of one transaction have one token, and so has a change that is on the topic twice.
    ascends = previous[0].isNull() | ((previous[0] == F.col("stem")) & is_less(previous[1], F.col("number")))
    return (
        heads.withColumns(
            {
                "is_plain": F.coalesce(F.col("plain") & (F.col("stem") != "") & ascends, F.lit(False)),
                "first": F.first("number").over(ordered),
                "position": F.row_number().over(ordered),
            }
        )
        .withColumns({"is_plain": F.bool_and("is_plain").over(item), "changes": F.count(F.lit(1)).over(item)})
        .withColumn("is_last", F.col("position") == F.col("changes"))
        .drop("source", "table", "plain", "position")
    )


def newest_rows(changes: DataFrame, ordered: DataFrame) -> DataFrame:
    """Return the newest change of each item that SQL can decide.

    ``changes``: of one table and one topic. ``ordered``: they, ``in_order``. The columns: ``key_texts``, ``layout``,
    the image ``new``, ``stem``, ``first``, ``number``, ``changes``, and those of the state of a stored row but for
    ``_relay_read_as_of``, which no change of a stream sets.
    """
    is_deleted = F.col("operation") == Operation.DELETE
    of_item = ("stem", "first", "number", "changes")
    newest = ordered.where("is_plain AND is_last").select("partition", "offset", *of_item)
    return changes.join(F.broadcast(newest), ["partition", "offset"]).select(
        "key_texts",
        "layout",
        F.when(~is_deleted, F.col("new")).alias("new"),  # the image of a deletion, if it has one, is not the row
        *of_item,
        F.col("token").alias("_relay_token"),
        is_deleted.alias("_relay_deleted"),
        F.col("event_id").alias("_relay_event_id"),
        F.lit(False).alias("_relay_incomplete"),
        F.col("topic").alias("_relay_topic"),
        F.col("partition").alias("_relay_partition"),
        F.col("offset").alias("_relay_offset"),
    )


def is_less(number: Column, other: Column) -> Column:
    """Whether a number is less than another; both are texts without leading zeros, of any length."""
    return F.struct(F.length(number), number) < F.struct(F.length(other), other)


def _is_plain() -> Column:
    """Whether a change gives the whole row, or deletes it, so that only its token decides.

    PostgreSQL cannot store a NUL character, which JSON has as an escape.
    """
    is_whole = (F.col("operation") == Operation.DELETE) | F.col("new").isNotNull()
    has_nul = F.coalesce(F.contains("new", F.lit("\\u0000")), F.lit(False)) | F.contains(
        F.array_join("key_texts", ""), F.lit("\0")
    )
    return (
        (F.col("status") == DecodeStatus.CHANGE)
        & F.col("operation").isin(*_WRITES)
        & is_whole
        & F.col("key_texts").isNotNull()
        & F.col("snapshot_id").isNull()
        & F.try_element_at("attributes", F.lit(REDRIVEN)).isNull()
        & ~has_nul
    )
