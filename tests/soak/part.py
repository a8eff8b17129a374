"""What a soak is made of: sources, each with its writers, its truth, its faults and the application's reads of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, Self

from relay.cache import LoadedValue, Tokens

Item = Hashable
"""The primary key of an item."""


@dataclass(frozen=True)
class Fault:
    """``weight``: how often it is done, in relation to the others."""

    name: str
    weight: float
    do: Callable[[], object]


class Part(Protocol):
    """A source. Its changes have numbers, by which they are known on the topic: those of an item are its history."""

    table: str
    # The template of its cache keys, and all its items.
    cache_key: str
    items: Sequence[Item]
    # Held by the application while it reads, so that nobody moves what it reads from.
    gate: AbstractContextManager[Any]

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def source(self) -> dict[str, Any]:
        """Return its entry in the config."""

    def faults(self) -> list[Fault]: ...

    def start(self) -> None:
        """Begin to write."""

    def stop(self) -> None:
        """End writing. Raises what made a writer fail."""

    def relent(self) -> None:
        """End all faults that last."""

    def written(self) -> int:
        """Return about how many changes were written."""

    def history(self) -> Mapping[Item, Sequence[int]]:
        """Return the numbers of each item's changes in their order, after the end of all writing."""

    def times(self) -> Mapping[tuple[Item, int], float]:
        """Return by item and number of a change a time before it was committed, as late as is known."""

    def told(self, change: Mapping[str, Any]) -> tuple[Item, int]:
        """Return the item and the number of a change on the topic."""

    def row(self, number: int) -> int | None:
        """Return the version of the row after a change, None if it was deleted."""

    def key_of(self, item: Item) -> str:
        """Return the item's cache key."""

    def load(self, key: str, compare: Tokens | None) -> LoadedValue:
        """Load a cache key for the application. Raises ``Unavailable``."""

    def version_in(self, value: bytes) -> int:
        """Return the version in what ``load`` loaded."""

    def item_in(self, row: Mapping[str, Any]) -> tuple[Item, int]:
        """Return item and version of a row of the copy, by its columns."""
