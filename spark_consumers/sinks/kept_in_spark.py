"""The rows of the copy and the log that Spark reads: what Spark raises meanwhile is that they cannot be read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from relay.errors import Unavailable
from spark_consumers.causes import cause
from spark_consumers.kept_rows import KeptRow, KeptRows, OpenKeptRows
from spark_consumers.records import Layout


class KeptInSpark(KeptRows):
    """The rows that ``open_rows`` opens."""

    def __init__(self, open_rows: OpenKeptRows, layout: Layout, wanted: Sequence[str | None]) -> None:
        with _unavailable():
            self._rows = open_rows(layout, wanted)
        self.where, self.from_start = self._rows.where, self._rows.from_start

    def all(self) -> Iterator[KeptRow]:
        return _read(self._rows.all)

    def some(self, count: int) -> Iterator[KeptRow]:
        return _read(partial(self._rows.some, count))

    def of(self, keys: Sequence[Sequence[str]]) -> Iterator[KeptRow]:
        return _read(partial(self._rows.of, keys))

    def duplicates(self) -> tuple[int, list[tuple[str, str]]]:
        with _unavailable():
            return self._rows.duplicates()

    def counted(self, event_ids: Sequence[str], since: float) -> Mapping[str, int] | None:
        with _unavailable():
            return self._rows.counted(event_ids, since)


def _read(open_rows: Callable[[], Iterator[KeptRow]]) -> Iterator[KeptRow]:
    with _unavailable():
        yield from open_rows()


@contextmanager
def _unavailable() -> Iterator[None]:
    try:
        yield
    except Py4JNetworkError:  # I10: the JVM has ended, and no later read of this process can succeed
        raise
    except (PySparkException, Py4JError) as error:  # I12
        raise Unavailable(cause(error)) from error
