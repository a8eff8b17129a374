"""The rows of a table in the copy or the log, read for comparison with the source. Changes nothing."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, Self

import orjson

from relay.config import Config
from spark_consumers.records import Layout

Key = tuple[Any, ...]  # the key columns as text; for the log, as in its JSON


@dataclass(frozen=True, slots=True)
class KeptRow:
    """A row of the copy, or a row that the log gives for the table.

    ``values``: the requested columns, as text or as in JSON; None if there is only a change without its image.
    ``incomplete``: a later change of the row came without its image. ``event_id``: the event id of the change that
    wrote the row.
    """

    key: Key
    values: tuple[Any, ...] | None
    incomplete: bool
    event_id: str

    @classmethod
    def read(cls, wanted: Sequence[str], key: Key, state: Sequence[Any]) -> Self:
        """Return a row of the copy.

        ``state``: the ``wanted`` columns, then the consumer's own, whose last holds the values that did not fit theirs.
        """
        *found, deleted, incomplete, event_id, unfit = state
        beside = {} if unfit is None else orjson.loads(unfit)
        values = tuple(beside.get(name, value) for name, value in zip(wanted, found, strict=True))
        return cls(key, None if deleted else values, incomplete, event_id)


class KeptRows(Protocol):
    """The rows of one table in the copy or the log, without tombstones. Methods raise ``Unavailable``.

    ``where``: the name of the place in messages. ``from_start``: whether it also has rows older than the relay.
    """

    where: str
    from_start: bool = True

    def all(self) -> Iterator[KeptRow]: ...

    def some(self, count: int) -> Iterator[KeptRow]:
        """Yield up to ``count`` random rows."""

    def of(self, keys: Sequence[Sequence[str]]) -> Iterator[KeptRow]:
        """Yield the rows of some keys. ``keys``: texts; binary is base64, numbers have no superfluous zeros."""

    def duplicates(self) -> tuple[int, list[tuple[str, str]]]:
        """Return how many changes, except READs, occur more than once, and examples of their event ids and keys."""
        return 0, []

    def counted(self, event_ids: Sequence[str], since: float) -> Mapping[str, int] | None:
        """Return how often each change is kept, READs once at most; None if only the newest is kept.

        ``since``: the commit of the oldest, in seconds since the epoch.
        """
        return None


OpenKeptRows = Callable[[Layout, Sequence[str | None]], KeptRows]
"""Opens the rows of a table by its layout, with the values of some source columns; None is the whole image."""


@contextmanager
def kept_rows(config: Config, kind: str) -> Iterator[OpenKeptRows]:
    """Open the ``copy`` or the ``log`` in the config, which must have it. Raises ``Unavailable``."""
    if kind == "copy":
        from spark_consumers.sinks.places import copy_target

        assert config.copy_ is not None
        with copy_target(config, config.copy_).kept_rows(config) as opened:
            yield opened
        return
    from spark_consumers.session import another_session, delta_session
    from spark_consumers.sinks.kept_in_spark import KeptInSpark, LoggedRows

    with delta_session(config.spark, functions=True) as session:
        # In a separate session, because of the views.
        yield partial(KeptInSpark, partial(LoggedRows, another_session(session, delta=True), config))
