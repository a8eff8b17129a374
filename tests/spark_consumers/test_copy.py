"""What snapshots and topics do to the copy of a table, by the rule alone: neither Spark nor a database."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from relay.change import REDRIVEN, UNDECODED
from relay.token import EventToken
from spark_consumers.copy import apply
from spark_consumers.fold import StoredRow, VerdictCounts
from spark_consumers.gaps import LostChanges, from_json
from spark_consumers.plain_items import TableSummary
from spark_consumers.sinks.copy_table import GAPS, CopyTable
from spark_consumers.sinks.target import Item, Key, SelectedRows, TargetTable, Write, Written, images
from spark_consumers.sinks.tombstones import SNAPSHOTS
from tests.spark_consumers.batches import FOREVER, Batch, Published, change, end_of, layout, mark, play, read

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
        """Apply a batch, by a consumer that has just started. The topics have two partitions."""
        play(self, ORDERS, *changes, partitions=2)

    def gaps(self) -> list[str]:
        return [gap.id for gap in from_json(self.kept.get(GAPS, ""))]

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
        raise AssertionError("the rule decides about these rows, one by one")

    def write_reads(self, changes: Any, found: TableSummary) -> int:
        raise AssertionError("the rule decides about these rows, one by one")

    def rows(self, batch: Any, selected: SelectedRows) -> Iterator[tuple[Key, StoredRow]]:
        for key, row in [*self.stored.items()]:
            is_topic = row.place is not None and row.place.topic == selected.topic
            is_there = row.place is not None and (
                (selected.partitions is None or row.place.partition in selected.partitions)
                and row.place.offset > selected.after
            )
            is_before = selected.read_before is None or row.read_as_of < selected.read_before
            if (is_there if is_topic else selected.of_other_topics) and is_before and not row.is_known_deleted:
                yield key, row

    def forget_places(self, batch: Any, topic: str) -> None:
        raise AssertionError("no topic is created again here")

    def delete_tombstones(self, batch: Any, written_before: float) -> int:
        return 0

    def properties(self, batch: Any) -> Mapping[str, str]:
        return dict(self.kept)

    def replace_property(self, batch: Any, name: str, before: str | None, after: str) -> bool:
        assert self.kept.get(name) == before
        self.kept[name] = after
        return True


def row(number: int, key: str, **more: Any) -> Published:
    return change(number, [key], {"id": key, "n": number}, **more)


def marks(kind: str, number: int, as_of: int, partitions: Collection[int] = (0, 1)) -> list[Published]:
    """Return the marks of a snapshot, which are in all partitions."""
    return [of_partition(partition, mark(number, kind, as_of, f"s{as_of}")) for partition in partitions]


def of_partition(partition: int, one: Published) -> Published:
    place = replace(one.head.place, partition=partition)
    return replace(one, head=replace(one.head, place=place, new=one.head.new and (partition, place.offset)))


def sent_again(one: Published) -> Published:
    """Return a change that a consumer could not decode in its place."""
    return replace(one, head=replace(one.head, attributes={REDRIVEN: UNDECODED}))


def test_the_begin_and_the_end_of_a_snapshot_that_are_sent_again_delete_nothing() -> None:
    """I7: the rows that the snapshot has read came before it seems to begin, or are not there yet."""
    table = InMemoryTable()
    table.play(row(1, "a"), row(2, "b"))
    late = [*map(sent_again, (*marks("begin", 3, 5000), *marks("end", 4, 5000)))]
    table.play(*late)
    assert table.living() == {"a": 1, "b": 2}
    for one in late:
        table.play(one)
    assert table.living() == {"a": 1, "b": 2}
    table.play(*marks("begin", 5, 5000), *marks("end", 6, 5000))
    assert table.living() == {}


def test_a_begin_that_is_sent_again_does_not_keep_the_snapshot_that_runs_from_its_end() -> None:
    """I7: rows whose deletion was lost would stay."""
    table = InMemoryTable()
    table.play(row(1, "a"), *marks("begin", 2, 5000))
    table.play(*map(sent_again, marks("begin", 3, 4000)))
    table.play(*marks("end", 4, 5000))
    assert table.living() == {}


class SharedTable(InMemoryTable):
    """Another driver applies ``faster`` while this one has not yet written which snapshots it has seen."""

    faster: Sequence[Published] = ()

    def replace_property(self, batch: Any, name: str, before: str | None, after: str) -> bool:
        faster, self.faster = self.faster if name == SNAPSHOTS else (), ()
        if faster:
            self.play(*faster)
        return not faster and super().replace_property(batch, name, before, after)


def test_the_marks_of_two_drivers_at_once_all_count() -> None:
    """I7: a begin that is forgotten would let its end delete nothing."""
    table = SharedTable()
    table.play(row(1, "a"), of_partition(1, row(1, "b")))
    table.faster = marks("begin", 2, 5000, [1])
    table.play(*marks("begin", 2, 5000, [0]))
    assert not table.faster
    table.play(*marks("end", 3, 5000))
    assert table.living() == {}


def of_a_topic_before() -> InMemoryTable:
    """Return a table with two rows of a topic that was replaced, which lists a gap."""
    table = InMemoryTable()
    table.play(row(1, "a", topic="shop.before"), row(2, "b", topic="shop.before"), row(3, "gone", topic="shop.before"))
    batch: Any = None
    CopyTable(table, FOREVER).add_gaps(batch, [LostChanges("gap", "shop", "trimmed", 5000.0, "")])
    return table


FOUND_A = read(4, ["a"], {"id": "a", "n": 4}, 5001, "s5000")
FOUND_B = of_partition(1, read(4, ["b"], {"id": "b", "n": 5}, 5001, "s5000"))


def test_a_snapshot_has_not_ended_while_a_partition_lags_behind_its_begin() -> None:
    """I9: what the snapshot has read there is still to come."""
    table = of_a_topic_before()
    table.play(*marks("begin", 3, 5000, [0]), FOUND_A, *marks("end", 5, 5000, [0]))
    assert (table.living(), table.gaps()) == ({"a": 4, "b": 2, "gone": 3}, ["gap"])
    table.play(*marks("begin", 3, 5000, [1]), FOUND_B)
    assert (table.living(), table.gaps()) == ({"a": 4, "b": 5, "gone": 3}, ["gap"])
    table.play(*marks("end", 5, 5000, [1]))
    assert (table.living(), table.gaps()) == ({"a": 4, "b": 5}, [])


def test_a_snapshot_that_a_partition_has_only_begun_in_the_batch_has_not_ended() -> None:
    """I9"""
    table = of_a_topic_before()
    table.play(*marks("begin", 3, 5000), FOUND_A, *marks("end", 5, 5000, [0]))
    assert (table.living(), table.gaps()) == ({"a": 4, "b": 2, "gone": 3}, ["gap"])
    table.play(FOUND_B, *marks("end", 5, 5000, [1]))
    assert (table.living(), table.gaps()) == ({"a": 4, "b": 5}, [])


def test_a_snapshot_that_was_met_in_the_middle_repairs_nothing_and_the_next_one_does() -> None:
    """I9: whichever partition it was met in."""
    for met, whole in (0, 1), (1, 0):
        table = of_a_topic_before()
        table.play(*marks("begin", 3, 5000, [whole]), *marks("end", 5, 5000))
        table.play(*marks("end", 5, 5000, [met]))
        assert (len(table.living()), table.gaps()) == (3, ["gap"])
        table.play(*marks("begin", 6, 6000), *marks("end", 7, 6000))
        assert (table.living(), table.gaps()) == ({}, [])


def repartitioned(offset: int, partitions: Sequence[int]) -> list[Published]:
    """Return the marks after which keys go to more partitions."""
    return [
        replace(each, head=replace(each.head, snapshot=None, mark="repartition"))
        for each in marks("begin", offset, 0, list(partitions))
    ]


def test_a_row_that_moves_to_a_new_partition_waits_for_the_end_of_the_snapshot_there() -> None:
    """I7: the partition that it was in does not have its READ."""
    table = InMemoryTable()
    table.play(row(1, "moves"), row(2, "gone"), *repartitioned(3, [0]))
    table.play(row(4, "stays"), *marks("begin", 5, 5000, [0]), *marks("end", 6, 5000, [0]))
    assert table.living() == {"moves": 1, "gone": 2}, "nothing of before is deleted, and what came after is"
    table.play(
        *marks("begin", 1, 5000, [1]), of_partition(1, read(2, ["moves"], {"id": "moves", "n": 1}, 5001, "s5000"))
    )
    table.play(*marks("end", 3, 5000, [1]))
    assert table.living() == {"moves": 1}


def test_rows_of_two_topics_of_a_table_have_their_own_values() -> None:
    """I7: the topic of the table was changed before the one before was read to its end."""
    table = InMemoryTable()
    table.play(change(7, ["a"], {"n": 1}, topic="shop.before"), change(7, ["b"], {"n": 2}))
    assert table.living() == {"a": 1, "b": 2}


def test_the_topic_that_has_left_the_config_is_applied_before_the_present_one() -> None:
    """I7: where the order of two tokens is unknown, the later change counts."""
    token = EventToken(1007, "shop/shop/-80", "MariaDB/0-1-7")
    changes = change(7, ["a"], {"n": 1}, topic="shop.z"), change(7, ["a"], {"n": 2}, topic="shop.a", token=token)
    for present, expected in ("shop.a", 2), ("shop.z", 1):
        table, batch, counts = InMemoryTable(), Batch(changes), VerdictCounts()
        copied = CopyTable(table, FOREVER, lambda present=present: {present: "id"})  # type: ignore[misc]
        apply(batch, copied, [each.head for each in changes], counts, end_of(changes))  # type: ignore[arg-type]
        assert (table.living(), counts.unknown) == ({"a": expected}, 1)
