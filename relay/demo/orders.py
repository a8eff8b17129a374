"""What the demo asks of a database: a table of orders in it, and all that only that database can do with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any, ClassVar, NamedTuple

from relay.cache import Load
from relay.demo.truth import PublishedChange
from relay.demo.workload import Item, Workload

TABLE = "orders"


class Incident(NamedTuple):
    """Something that is done to the database while it is written to. ``do`` says what it did.

    ``at``: when, as a share of the time that is written.
    """

    at: float
    do: Callable[[], str]


class Orders(ABC):
    """The table in one kind of database. ``start`` comes first; what it starts ends with the stack."""

    title: ClassVar[str]
    jars: ClassVar[tuple[str, ...]]
    """The sets of jars that it needs."""
    environment: ClassVar[Mapping[str, str]]
    """What the processes of the demo need to reach it."""

    def prepare(self) -> None:
        """See that it can be had here. Raises ``Unavailable``."""
        return

    @abstractmethod
    def start(self, stack: ExitStack) -> None:
        """Start it, and make the table. Raises ``Unavailable``."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Where it answers."""

    @abstractmethod
    def source(self) -> dict[str, Any]:
        """Return its entry in the config: it begins before the first write."""

    @abstractmethod
    def workload(self, pause: float) -> Workload:
        """Return writers of the table."""

    @abstractmethod
    def load(self) -> Load:
        """Return what loads values of the cache; any thread may use it."""

    @abstractmethod
    def incidents(self) -> list[Incident]:
        """Return what happens while it is written to, in order."""

    def problems(self, events: Iterable[PublishedChange]) -> list[str]:
        """Say in what the changes on the topic do not show what the incidents did."""
        return []

    @abstractmethod
    def versions(self) -> dict[Item, int]:
        """Return the version of every item, from the table itself."""
