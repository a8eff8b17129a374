"""When the tombstones of a copied table are deleted, and which."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

from spark_consumers.sinks.delta_copy import DeltaTable
from spark_consumers.sinks.tombstones import COLLECTED_AT, Tombstones
from tests.spark_consumers.lake_config import lake_config

DAY = 86_400.0
NOW = 100 * DAY


class Session:
    """A Spark session with a Delta table of no rows. ``statements``: what it was asked after its properties."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.properties = {COLLECTED_AT: str(NOW - 40 * DAY), "relay.format": "2", "relay.key": '["id"]'}

    def sql(self, statement: str) -> Session:
        self.statements.append(statement)
        if statement.startswith("ALTER"):
            self.properties |= dict(re.findall(r"'([^']*)' = '([^']*)'", statement))
        return self

    def collect(self) -> list[dict[str, Any]]:
        if self.statements[-1].startswith("DESCRIBE DETAIL"):
            return [{"properties": self.properties}]
        return [{"num_affected_rows": 3}]

    @property
    def deletions(self) -> list[str]:
        return [statement for statement in self.statements if statement.startswith("DELETE")]


def opened() -> tuple[Tombstones, Any]:
    batch: Any = SimpleNamespace(sparkSession=Session())
    table = DeltaTable("/copy", lake_config(DAY, 7 * DAY), "orders", "orders")
    return Tombstones(table, 30 * DAY, clock=lambda: NOW), batch


def test_only_deleted_rows_older_than_the_retention_are_collected() -> None:
    """I7: a row that only came as a stub is incomplete, and may exist."""
    tombstones, batch = opened()
    assert tombstones.collect(batch) == 3
    until = int((NOW - 30 * DAY) * 1_000_000)
    assert batch.sparkSession.deletions == [
        "DELETE FROM delta.`/copy/orders/orders/_relay_rows` WHERE _relay_deleted AND NOT _relay_incomplete "
        f"AND _relay_updated_at < timestamp_micros({until})"
    ]
    assert tombstones.collect(batch) == 0  # not again at once


def test_nothing_is_collected_while_a_snapshot_runs() -> None:
    """I7: one of its pages may be from before the deletion, and would bring the row back."""
    tombstones, batch = opened()
    tombstones.snapshots.begin("orders", 0, "snapshot", 1)
    tombstones.remember(batch)
    assert tombstones.collect(batch) == 0
    assert batch.sparkSession.deletions == []
    tombstones.snapshots.end(0, 1000)
    tombstones.remember(batch)
    assert tombstones.collect(batch) == 3


def test_a_snapshot_of_a_topic_that_was_replaced_does_not_keep_the_tombstones() -> None:
    tombstones, batch = opened()
    tombstones.snapshots.begin("orders", 0, "snapshot", 1)
    tombstones.remember(batch)
    tombstones.forget_snapshots(batch)
    assert tombstones.collect(batch) == 3
