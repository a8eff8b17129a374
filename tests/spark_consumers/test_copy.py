"""What snapshots and topics do to the copy of a table, by the rule alone: neither Spark nor a database."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from relay.change import REDRIVEN, UNDECODED
from spark_consumers.fold import StoredRow
from spark_consumers.plain_items import TableSummary
from spark_consumers.sinks.target import Item, Key, SelectedRows, TargetTable, Write, Written, images
from tests.spark_consumers.batches import Published, change, layout, mark, play

ORDERS = layout({"id": "string"}, {"id": "string", "n": "int"})


class InMemoryTable(TargetTable):
    """A table of the copy that keeps its rows and properties in memory."""

    name, source_table = "orders", ("shop", "orders")

    def __init__(self) -> None:
        self.stored: dict[Key, StoredRow] = {}
        self.kept: dict[str, str] = {}

    def living(self) -> dict[str, int]:
        """Return the number of each row."""
        found = {key[0]: json.loads(row.item)["n"] for key, row in self.stored.items() if not row.deleted}
        return dict(sorted(found.items()))

    def play(self, *changes: Published) -> None:
        """Apply a batch, by a consumer that has just started."""
        play(self, ORDERS, *changes)

    def prepare(self, batch: Any, layouts: Any) -> None: ...

    def exists(self, batch: Any) -> bool:
        return True

    def read(self, batch: Any, keys: Collection[Key]) -> dict[Key, StoredRow]:
        return {key: self.stored[key] for key in keys if key in self.stored}

    def write(self, batch: Any, writes: Sequence[Write]) -> set[Key]:
        news = {(row[0], row[1]): row[3] for row in images(batch, *self.source_table).toLocalIterator()}
        for each in writes:
            item = self.stored[each.key].item if each.row.item is Item.AS_STORED else news.get(each.image)  # type: ignore[arg-type]
            self.stored[each.key] = replace(each.row, item=item)
        return set()

    def write_newest(self, changes: Any, found: TableSummary) -> Written:
        raise NotImplementedError

    def write_reads(self, changes: Any, found: TableSummary) -> int:
        raise NotImplementedError

    def rows(self, batch: Any, selected: SelectedRows) -> Iterator[tuple[Key, StoredRow]]:
        for key, row in [*self.stored.items()]:
            is_topic = row.place is not None and row.place.topic == selected.topic
            is_there = row.place is not None and row.place.partition in selected.partitions
            is_before = selected.read_before is None or row.read_as_of < selected.read_before
            if (is_there if is_topic else selected.of_other_topics) and is_before and not row.is_known_deleted:
                yield key, row

    def forget_places(self, batch: Any, topic: str) -> None:
        raise NotImplementedError

    def delete_tombstones(self, batch: Any, written_before: float) -> int:
        return 0

    def properties(self, batch: Any) -> Mapping[str, str]:
        return dict(self.kept)

    def set_property(self, batch: Any, name: str, value: str) -> None:
        self.kept[name] = value

    def replace_property(self, batch: Any, name: str, before: str | None, after: str) -> bool:
        assert self.kept.get(name) == before
        self.kept[name] = after
        return True


def row(number: int, key: str, **more: Any) -> Published:
    return change(number, [key], {"id": key, "n": number}, **more)


def sent_again(one: Published) -> Published:
    """Return a change that a consumer could not decode in its place."""
    return replace(one, head=replace(one.head, attributes={REDRIVEN: UNDECODED}))


def test_the_begin_and_the_end_of_a_snapshot_that_are_sent_again_delete_nothing() -> None:
    """I7: the rows that the snapshot has read came before it seems to begin, or are not there yet."""
    table = InMemoryTable()
    table.play(row(1, "a"), row(2, "b"))
    late = sent_again(mark(3, "begin", 5000)), sent_again(mark(4, "end", 5000))
    table.play(*late)
    assert table.living() == {"a": 1, "b": 2}
    for one in late:
        table.play(one)
    assert table.living() == {"a": 1, "b": 2}
    table.play(mark(5, "begin", 5000), mark(6, "end", 5000))
    assert table.living() == {}


def test_a_begin_that_is_sent_again_does_not_keep_the_snapshot_that_runs_from_its_end() -> None:
    """I7: rows whose deletion was lost would stay."""
    table = InMemoryTable()
    table.play(row(1, "a"), mark(2, "begin", 5000, "later"))
    table.play(sent_again(mark(3, "begin", 4000, "earlier")))
    table.play(mark(4, "end", 5000, "later"))
    assert table.living() == {}
