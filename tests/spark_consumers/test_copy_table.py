"""Writing to the copy while another writer changes the same rows."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relay.change import Images, Operation, Snapshot
from relay.errors import RelayError
from relay.token import EventToken
from spark_consumers.fold import Place, StoredRow, VerdictCounts
from spark_consumers.sinks.copy_table import CopyTable
from spark_consumers.sinks.delta import literal
from spark_consumers.sinks.target import Key
from spark_consumers.sinks.tombstones import SNAPSHOTS, SeenSnapshots
from tests.spark_consumers.spark_process import SparkProcess

CHANGE = SimpleNamespace(
    event_id="e",
    operation=Operation.INSERT,
    new=(0, 1),
    images=Images.NEW,
    token=EventToken(1, "s", "DynamoDB/1"),
    snapshot=None,
    attributes={},
    place=Place("shop.orders", 0, 1),
)


class ContendedTable:
    """A table on which another writer is faster for the first ``conflicts`` writes."""

    name = "copy/orders/orders"

    def __init__(self, conflicts: int) -> None:
        self.conflicts = conflicts
        self.writes = 0

    def read(self, batch: Any, keys: Collection[Key]) -> dict[Key, Any]:
        return {}

    def write(self, batch: Any, writes: Sequence[Any]) -> set[Key]:
        self.writes += 1
        return {write.key for write in writes} if self.writes <= self.conflicts else set()


def apply(table: ContendedTable, items: Mapping[Key, Sequence[Any]]) -> VerdictCounts:
    counts = VerdictCounts()
    batch: Any = None
    CopyTable(table, 60.0).apply(batch, items, counts)  # type: ignore[arg-type]
    return counts


@pytest.mark.parametrize("conflicts", [0, 1, 19])
def test_a_conflict_is_retried_and_counted_once(conflicts: int) -> None:
    table = ContendedTable(conflicts)
    assert apply(table, {("a",): [CHANGE]}) == VerdictCounts(applied=1)
    assert table.writes == conflicts + 1


def test_an_error_names_a_row_that_keeps_changing() -> None:
    with pytest.raises(RelayError, match=r"orders.*row \('a',\) was changed by another writer during 20 attempts"):
        apply(ContendedTable(20), {("a",): [CHANGE]})


def test_nothing_is_written_without_changes() -> None:
    table = ContendedTable(0)
    assert apply(table, {}) == VerdictCounts()
    assert table.writes == 0


class LargeTable:
    """A table of many rows, which come one by one. Another writer is faster for those in ``conflicts``."""

    name = "copy/orders/orders"

    def __init__(self, rows: int, counts: VerdictCounts, conflicts: Collection[Key] = ()) -> None:
        self._rows = rows
        self._counts = counts
        self._conflicts = set(conflicts)
        self.undecided = 0
        self.written: list[int] = []

    def rows(self, *arguments: Any, **options: Any) -> Iterator[tuple[Key, StoredRow]]:
        for number in range(self._rows):
            self.undecided = max(self.undecided, number - self._counts.ignored - self._counts.applied)
            yield (str(number),), stored(read_as_of=1000 if number % 2 else 10)

    def read(self, batch: Any, keys: Collection[Key]) -> dict[Key, StoredRow]:
        return {key: stored(read_as_of=11) for key in keys}

    def write(self, batch: Any, writes: Sequence[Any]) -> set[Key]:
        self.written.append(len(writes))
        return set()

    def write_all(self, batch: Any, parts: Iterable[Sequence[Any]]) -> set[Key]:
        self.written += [len(part) for part in parts]
        return self._conflicts


def stored(read_as_of: int) -> StoredRow:
    return StoredRow(None, None, "e", read_as_of=read_as_of)


def test_a_sweep_decides_about_rows_in_parts_and_again_about_those_that_another_writer_changed() -> None:
    """I11: the table may be of any size."""
    counts = VerdictCounts()
    end: Any = SimpleNamespace(snapshot=Snapshot("s", 1000), token=None, event_id="end", place=CHANGE.place)
    table: Any = LargeTable(50_000, counts, [("0",), ("2",)])
    CopyTable(table, 60.0).sweep(None, end, counts, last=True)  # type: ignore[arg-type]
    assert counts == VerdictCounts(applied=25_000, ignored=25_000)
    assert table.undecided <= 20_000
    assert table.written == [10_000, 10_000, 5_000, 2]


class PlacedTable:
    """A table that keeps its properties. ``forgotten``: the topics on which its rows have no place any more."""

    def __init__(self) -> None:
        self.stored: dict[str, str] = {}
        self.forgotten: list[str] = []

    def prepare(self, batch: Any, layouts: Any) -> None: ...

    def properties(self, batch: Any) -> Mapping[str, str]:
        return self.stored

    def replace_property(self, batch: Any, name: str, before: str | None, after: str) -> bool:
        self.stored[name] = after
        return True

    def forget_places(self, batch: Any, topic: str) -> None:
        self.forgotten.append(topic)


def test_rows_lose_their_place_once_their_topic_was_created_again() -> None:
    """I7: else changes whose order is unknown would be taken for replays. The table may have had another meanwhile."""
    table: Any = PlacedTable()
    found = []
    for ids in ({"one": "a"}, {"one": "a"}, {"two": "b"}, {"two": "c"}, {"two": "c"}, {"one": "d"}):
        CopyTable(table, 60.0, lambda ids=ids: ids).prepare(None, {})  # type: ignore[arg-type, misc]
        found.append(list(table.forgotten))
    assert found == [[], [], [], ["two"], ["two"], ["two", "one"]]


def test_no_snapshot_of_a_topic_goes_on_once_it_was_created_again() -> None:
    """I7: begins in the new topic have lower offsets, so they and their ends would count for nothing."""
    table: Any = PlacedTable()
    seen = SeenSnapshots()
    seen.begin("orders", 0, "before", 900)
    table.stored[SNAPSHOTS] = seen.to_json()
    running = []
    for number in "a", "a", "b":
        CopyTable(table, 60.0, lambda number=number: {"orders": number}).prepare(None, {})  # type: ignore[arg-type, misc]
        seen = SeenSnapshots.from_json(table.stored[SNAPSHOTS])
        running.append(seen.has_begun(0, "before"))
    assert running == [True, True, False]
    seen.begin("orders", 0, "after", 1)
    assert seen.has_begun(0, "after")


def test_no_literal_of_a_key_is_taken_for_a_setting_of_spark() -> None:
    """Spark replaces ``${name}`` anywhere in a statement."""
    assert literal("${spark.master}'\\") == r"'\u0024{spark.master}\'\\'"


@pytest.mark.services
def test_a_copy_in_delta_goes_on_where_spark_takes_what_its_table_knows_for_a_secret(
    tmp_path: Path, spark_process: SparkProcess
) -> None:
    """I7: the topic's name has a word that Spark hides where it shows properties."""
    assert json.loads(spark_process.run(RESTARTED, str(tmp_path))) == {"applied": [1, 1], "rows": [["a", "2"]]}


RESTARTED = """
import json, sys
from tests.spark_consumers.local_spark import spark
from spark_consumers.copy import TableCopies
from spark_consumers.table_consumer import TableBatch
from tests.spark_consumers.batches import FOREVER, change, in_spark, layout
from tests.spark_consumers.targets import InDelta

LAYOUT = layout({"id": "string"}, {"id": "string", "note": "string"})

with spark() as session:
    applied = []
    for number in (1, 2):
        ours = InDelta(session, sys.argv[1])
        copies = TableCopies(lambda source, name: ours.table, FOREVER, lambda table: {"shop.password_resets": "url"})
        changes = in_spark(session, [change(number, ["a"], {"id": "a", "note": str(number)})])
        plan = copies.plan(TableBatch(changes, [LAYOUT], {}, {}))
        applied.append(plan.write([])["applied"])
        plan.close()
    json.dump({"applied": applied, "rows": ours.rows("id", "note")}, sys.stdout)
"""
