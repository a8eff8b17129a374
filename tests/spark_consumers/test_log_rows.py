"""What `relay verify` asks the log, in DuckDB, which knows the SQL of these questions as Spark does."""

from __future__ import annotations

import datetime
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

from spark_consumers.log_rows import LoggedRows
from spark_consumers.sinks import delta

DAY = datetime.date(2026, 11, 21)


class Session:
    """Asks DuckDB in place of Spark."""

    def __init__(self) -> None:
        self.duck = duckdb.connect()

    def sql(self, statement: str) -> Any:
        found = self.duck.execute(statement.replace("`", '"'))
        names = [column[0] for column in found.description]
        return SimpleNamespace(collect=lambda: [dict(zip(names, row, strict=True)) for row in found.fetchall()])


class Events:
    """Stands in for the frame of the event ids."""

    def __init__(self, session: Any, rows: Any, columns: Any) -> None:
        self.duck, self.names = session.duck, [name for (name,) in rows]

    def createOrReplaceTempView(self, name: str) -> None:
        self.duck.execute(f"CREATE OR REPLACE TABLE {name} AS SELECT unnest($1) AS event_id", [self.names])


def test_a_row_that_a_snapshot_has_read_again_is_not_duplicated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that is read again after a restart gives its rows the event ids that they had."""
    session: Any = Session()
    session.duck.execute(
        'CREATE TABLE log (source TEXT, "table" TEXT, day DATE, event_id TEXT, operation TEXT, key TEXT)'
    )
    logged = [("once", "UPDATE"), ("read", "READ"), ("read", "READ"), ("twice", "UPDATE"), ("twice", "UPDATE")]
    session.duck.executemany(
        "INSERT INTO log VALUES ('shop', 'orders', $1, $2, $3, '{}')", [(DAY, *each) for each in logged]
    )
    rows = LoggedRows.__new__(LoggedRows)
    rows._session, rows._log, rows._of_table = session, "log", "source = 'shop' AND `table` = 'orders'"
    assert rows.duplicates() == (1, [("twice", "{}")])
    monkeypatch.setattr(delta, "local_frame", Events)
    assert rows.counted(["once", "read", "twice", "lost"], 0.0) == {"once": 1, "read": 1, "twice": 2}
