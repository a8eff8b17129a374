"""What Spark reads of the copy and the log for ``relay verify``, and what it raises meanwhile."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from relay.errors import Unavailable
from spark_consumers.kept_rows import KeptRow, KeptRows
from spark_consumers.sinks import delta
from spark_consumers.sinks.kept_in_spark import KeptInSpark, LoggedRows
from tests.spark_consumers.batches import layout

ROW = KeptRow(("1",), ("a",), False, "e1")


class Failing(KeptRows):
    """One row, and then the folder is gone."""

    where = "somewhere"

    def __init__(self, *_: Any) -> None: ...

    def all(self) -> Iterator[KeptRow]:
        yield ROW
        raise PySparkException("Caused by: java.io.IOException: the store does not answer")

    def some(self, count: int) -> Iterator[KeptRow]:
        return self.all()

    def of(self, keys: Sequence[Sequence[str]]) -> Iterator[KeptRow]:
        return self.all()

    def duplicates(self) -> tuple[int, list[tuple[str, str]]]:
        raise PySparkException("Caused by: java.io.IOException: the store does not answer")

    def counted(self, event_ids: Sequence[str], since: float) -> Mapping[str, int] | None:
        raise PySparkException("Caused by: java.io.IOException: the store does not answer")


CALLS: dict[str, Callable[[KeptRows], Any]] = {
    "all": lambda rows: [*rows.all()],
    "some": lambda rows: [*rows.some(2)],
    "of": lambda rows: [*rows.of([("1",)])],
    "duplicates": lambda rows: rows.duplicates(),
    "counted": lambda rows: rows.counted(["e1"], 0.0),
}


@pytest.mark.parametrize("name", CALLS)
def test_rows_that_spark_cannot_read_are_unavailable_and_no_traceback(name: str) -> None:
    """I12: `relay verify --forever` goes on, and `relay verify` ends with its exit code."""
    rows = KeptInSpark(Failing, layout({"id": "long"}, {"id": "long"}), ["id"])
    assert next(rows.all()) == ROW
    with pytest.raises(Unavailable, match="IOException: the store does not answer"):
        CALLS[name](rows)


def test_a_table_that_spark_cannot_open_is_unavailable() -> None:
    """I12"""

    def fail(*_: Any) -> KeptRows:
        raise PySparkException("[TABLE_OR_VIEW_NOT_FOUND] it is being swapped")

    with pytest.raises(Unavailable, match="it is being swapped"):
        KeptInSpark(fail, layout({"id": "long"}, {"id": "long"}), ["id"])


def test_the_end_of_the_jvm_is_not_taken_for_rows_that_cannot_be_read() -> None:
    """I10: a service that runs for ever could never read them again, and nobody would start it anew."""

    def fail(*_: Any) -> KeptRows:
        raise Py4JNetworkError("the JVM has ended")

    with pytest.raises(Py4JNetworkError):
        KeptInSpark(fail, layout({"id": "long"}, {"id": "long"}), ["id"])


DAY = datetime.date(2026, 11, 21)


class Session:
    """Asks DuckDB in place of Spark: it knows the SQL of these questions, too."""

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
