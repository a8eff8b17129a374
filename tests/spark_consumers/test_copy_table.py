"""Writing to the copy while another writer changes the same rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField

from relay.change import Images, Operation, Snapshot
from relay.errors import RelayError
from relay.token import EventToken
from spark_consumers.fold import Place, StoredRow, VerdictCounts
from spark_consumers.records import Layout, RecordField
from spark_consumers.sinks.copy_table import CopyTable
from spark_consumers.sinks.delta_table import OURS, DeltaTable
from spark_consumers.sinks.target import Key, state
from spark_consumers.sinks.upkeep import Schedule

LAYOUT = Layout("orders", "orders", (RecordField("id", "id", "string"),), None)
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


class Session:
    """A Spark session whose table has many rows. The rows that were asked for come one by one."""

    def __init__(self, rows: int, counts: VerdictCounts) -> None:
        self.rows = rows
        self.counts = counts
        self.undecided = 0

    def sql(self, statement: str) -> Session:
        return self

    def table(self, name: str) -> Any:
        return SimpleNamespace(schema=[StructField(name, StringType()) for name in ("id", "item", *OURS)])

    def toLocalIterator(self) -> Iterator[tuple[Any, ...]]:
        for number in range(self.rows):
            self.undecided = max(self.undecided, number - self.counts.ignored)
            yield (str(number), *state(StoredRow(None, None, "e", read_as_of=1000)))


def test_a_sweep_decides_about_rows_in_parts() -> None:
    """I11: the table may be of any size."""
    counts = VerdictCounts()
    session = Session(50_000, counts)
    end: Any = SimpleNamespace(snapshot=Snapshot("s", 1000), token=None, event_id="end", place=CHANGE.place)
    batch: Any = SimpleNamespace(sparkSession=session)
    table = DeltaTable("/copy", Schedule(86400.0, 604800.0), "orders", "orders")
    table.prepare(batch, {0: LAYOUT})
    CopyTable(table, 60.0).sweep(batch, end, counts, last=True)
    assert counts == VerdictCounts(ignored=50_000)
    assert session.undecided <= 20_000
