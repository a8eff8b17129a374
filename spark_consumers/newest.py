"""Which items of a batch a copy can decide in SQL, since their changes and the stored row have plain tokens.

Where the tokens of an item's changes ascend, the rule ends with its newest change wherever that is newer than the
stored row. So only that change is written, by a statement that compares the tokens. All else is left to ``fold``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_consumers.plain_items import ROW, PlainItems
from spark_consumers.records import DecodeStatus, Layout


@dataclass(frozen=True, slots=True)
class KeyBounds:
    """The least and the greatest value of a key column: of its texts, and of its numbers, None if it has others."""

    texts: tuple[str, str]
    numbers: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class TableSummary:
    """The changes of one table in a batch.

    ``is_by_item``: whether each changes one item only, and all are of one topic; so it is False with truncations, and
    where a snapshot begins or ends. ``changes`` and ``items``: the number of those that SQL can decide, and ``reads``:
    that of the items that only a snapshot has read; the keys of both are between ``bounds``, one for each key column,
    and their images have so many ``bytes``.
    ``others``: the number of other changes. ``snapshots``: partition and ``as_of`` of all rows of snapshots. ``found``:
    what has them; ``layouts``: of the changes.
    """

    is_by_item: bool
    changes: int
    items: int
    reads: int
    bytes: int
    others: int
    snapshots: frozenset[tuple[int, int]]
    bounds: tuple[KeyBounds, ...]
    layouts: Collection[int] = field(default=(), compare=False)
    found: PlainItems | None = field(default=None, compare=False)

    def size(self, rows: int) -> int:
        """Return the bytes that so many of the rows have at most, about."""
        return self.bytes + rows * ROW


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """``statuses``: the number of records by status. ``groups``: of the changes, by layout and topic, some in parts.

    ``found``: the items that SQL can decide, kept until `close`.
    """

    statuses: Mapping[str, int]
    groups: tuple[Mapping[str, Any], ...]
    found: PlainItems | None = None

    def close(self) -> None:
        if self.found is not None:
            self.found.close()

    @classmethod
    def of(cls, groups: Sequence[Mapping[str, Any]], found: PlainItems | None = None) -> BatchSummary:
        """Return the summary of groups of records by status, layout and topic."""
        statuses: Counter[str] = Counter()
        for group in groups:
            statuses[group["status"]] += group["records"]
        return cls(statuses, tuple(group for group in groups if group["status"] == DecodeStatus.CHANGE), found)

    @property
    def layouts(self) -> list[int]:
        """The numbers of the layouts that the changes have."""
        return sorted({group["layout"] for group in self.groups})

    def table(self, layouts: Collection[int]) -> TableSummary:
        """Return the summary of the table whose changes have these layouts."""
        groups = [group for group in self.groups if group["layout"] in layouts]
        changes, reads = (sum(group[name] for group in groups) for name in ("plain", "reads"))
        return TableSummary(
            is_by_item=len({group["topic"] for group in groups}) == 1
            and not any(group["of_table"] for group in groups),
            changes=changes,
            items=sum(group["items"] for group in groups),
            reads=reads,
            bytes=sum(group["bytes"] for group in groups),
            others=sum(group["records"] for group in groups) - changes - reads,
            snapshots=frozenset((partition, as_of) for group in groups for partition, as_of in group["snapshots"]),
            bounds=_bounds([group for group in groups if group["plain"] or group["reads"]]),
            layouts=layouts,
            found=self.found,
        )


def changes_with(layouts: Collection[int]) -> Column:
    """Return whether a record of a batch is a change with one of ``layouts``."""
    return F.col("layout").isin(list(layouts)) & (F.col("status") == DecodeStatus.CHANGE)


def _bounds(groups: Sequence[Mapping[str, Any]]) -> tuple[KeyBounds, ...]:
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


def summary(batch: DataFrame, layouts: Sequence[Layout], *, nul: bool = True) -> BatchSummary:
    """Summarise a batch in one Spark action, or two if an item is in several of its partitions.

    ``nul``: whether SQL can decide changes that have a NUL character in a text.
    """
    found = PlainItems(batch, layouts, nul=nul)
    return BatchSummary.of(found.groups, found)
