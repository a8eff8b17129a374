"""Writing to the copy while another writer changes the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from relay.change import Images, Operation
from relay.errors import RelayError
from relay.token import EventToken
from spark_consumers.decode import Layout, RecordField
from spark_consumers.fold import VerdictCounts
from spark_consumers.sinks.copy_table import CopyTable, Key

LAYOUT = Layout("orders", "orders", (RecordField("id", "id", "string"),), None)
CHANGE = SimpleNamespace(
    event_id="e",
    operation=Operation.INSERT,
    new=(0, 1),
    images=Images.NEW,
    token=EventToken(1, "s", "DynamoDB/1"),
    snapshot=None,
    attributes={},
    partition_offset=(0, 1),
)


class ContendedTable(CopyTable):
    """A table without Spark, on which another writer is faster for the first ``conflicts`` writes."""

    def __init__(self, conflicts: int) -> None:
        super().__init__("/copy/orders/orders", LAYOUT, 60.0)
        self.conflicts = conflicts
        self.writes = 0

    def _read(self, session: Any, keys: Sequence[Key]) -> dict[Key, Any]:
        return {}

    def _write(self, batch: Any, writes: Sequence[Any]) -> set[Key]:
        self.writes += 1
        return {write.key for write in writes} if self.writes <= self.conflicts else set()


def apply(table: CopyTable, items: Mapping[Key, Sequence[Any]]) -> VerdictCounts:
    counts = VerdictCounts()
    table.apply(SimpleNamespace(sparkSession=None), items, counts)  # type: ignore[arg-type]
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
