"""The interface between the demo and a database: a table of orders, its writers, its loader and its incidents."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any, ClassVar, NamedTuple

from relay.cache import Load
from relay.demo.workload import Item, Workload
from relay.kafka.changes import ReceivedChange

TABLE = "orders"
_PAUSE = 0.25  # seconds between two looks at whether an incident is due


class Incident(NamedTuple):
    """A change to the database itself, such as a failover, during the load.

    ``at``: the time of the change, as a fraction of the load's duration. ``do``: makes the change and returns a
    description of it.
    """

    at: float
    do: Callable[[], str]


class Orders(ABC):
    """The table in one kind of database. Call ``start`` first; everything that it starts ends with the stack."""

    title: ClassVar[str]
    jars: ClassVar[tuple[str, ...]]
    """The sets of jars it needs."""
    environment: ClassVar[Mapping[str, str]] = {}
    """The environment variables that the demo's processes need to reach it."""
    on_its_times: ClassVar[str] = ""
    """A note about the lag on the status page."""
    has_rows_before: ClassVar[bool] = False
    """Whether the table has rows from before the relay, which a snapshot reads during the load."""

    def prepare(self) -> None:
        """Check that the database is available here. Raises ``Unavailable``."""
        return

    @abstractmethod
    def start(self, stack: ExitStack) -> None:
        """Start the database and create the table. Raises ``Unavailable``."""

    @property
    @abstractmethod
    def address(self) -> str: ...

    @abstractmethod
    def source(self) -> dict[str, Any]:
        """Return its source in the config, which starts before the first write."""

    @abstractmethod
    def workload(self, *, pause: float) -> Workload: ...

    @abstractmethod
    def load(self) -> Load:
        """Return the loader of the cache. Any thread may use it."""

    def incidents(self) -> list[Incident]:
        """Return the incidents of the load, in order."""
        return []

    def problems(self, changes: Iterable[ReceivedChange]) -> list[str]:
        """Return the effects of the incidents that are missing from the changes on the topic."""
        return []

    def record_key(self, item: Item) -> object:
        """Return the key of an item's records: its hash key, unless the database has none."""
        return item[0]

    @abstractmethod
    def versions(self) -> dict[Item, int]: ...


def run_all(
    incidents: Iterable[Incident],
    seconds: float,
    say: Callable[[str], None],
    show: Callable[[float], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return after a load of ``seconds`` and after all ``incidents``, each started when it is due.

    An incident that starts late on a slow host makes the load longer: the writers go on after it for the planned time.
    ``show`` is called meanwhile with the remaining seconds.
    """
    start = clock()
    end = start + seconds
    waiting = list(incidents)
    while (left := end - clock()) > 0 or waiting:
        if waiting and left <= (after := seconds * (1 - waiting[0].at)):
            end += after - left
            say(f"after {clock() - start:.0f} s: {waiting.pop(0).do()}")
        else:
            show(left)
            sleep(min(_PAUSE, left))
