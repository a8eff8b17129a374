"""The rows that the copy or the log has of a table, read to be compared with the source; nothing is changed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from spark_consumers.records import Layout

Key = tuple[Any, ...]
"""The key columns, as text; for the log as in its JSON."""


@dataclass(frozen=True, slots=True)
class KeptRow:
    """A row of the copy, or of what the log makes of the table.

    ``values``: the columns that were asked for, as text or as in JSON; None if there is only a change without its
    image. ``incomplete``: a later change of the row came without its image. ``event_id``: which change the row comes
    from.
    """

    key: Key
    values: tuple[Any, ...] | None
    incomplete: bool
    event_id: str


class KeptRows(Protocol):
    """The rows of one table at one place, without tombstones. Methods raise ``Unavailable``.

    ``where``: names the place in messages. ``from_start``: whether it has the rows that are older than the relay, too.
    """

    where: str
    from_start: bool = True

    def all(self) -> Iterator[KeptRow]: ...

    def some(self, count: int) -> Iterator[KeptRow]:
        """Yield up to ``count`` rows picked at random."""

    def of(self, keys: Sequence[Sequence[str]]) -> Iterator[KeptRow]:
        """Yield the rows of some keys. ``keys``: as texts, binary in base64; numbers without superfluous zeros."""

    def duplicates(self) -> tuple[int, list[tuple[str, str]]]:
        """Return how many changes are there more than once, and the event ids and keys of some of them."""
        return 0, []


OpenKeptRows = Callable[[Layout, Sequence[str | None]], KeptRows]
"""Opens the rows of a table by its layout, with the values of some columns of the source; None is the whole image."""
