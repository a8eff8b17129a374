"""What Spark raises while it reads the copy or the log for ``relay verify``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from relay.errors import Unavailable
from spark_consumers.kept_rows import KeptRow, KeptRows
from spark_consumers.sinks.kept_in_spark import KeptInSpark
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
