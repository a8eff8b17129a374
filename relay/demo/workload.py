"""A workload that records every write: the ground truth for the demo and the fault tests.

Each item belongs to one writer, so the order of its versions is certain; all writers share the hash keys. A version is
written once, so each write is one change.
"""

import random
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import orjson

from relay.cache import Load, Outcome, TokenCache

HASH_KEY, RANGE_KEY = "customer", "order_id"

Item = tuple[str, str]
"""Hash and range key."""

Planned = Sequence[tuple[Item, int | None]]
"""Items and their next versions; None deletes the item."""

_PAUSE = 0.002  # seconds between two reads


@dataclass(frozen=True, slots=True)
class RecordedWrite:
    """One acknowledged write. ``version`` is None for a delete. ``started``, ``acknowledged``: epoch seconds.

    ``streamed``: whether it came after the position where the relay starts. Only a snapshot shows earlier writes.
    """

    item: Item
    version: int | None
    started: float
    acknowledged: float
    warm_up: bool = False
    streamed: bool = True


class Repeating(threading.Thread, ABC):
    """A thread that calls ``turn`` over and over until it is stopped or ``turn`` raises.

    Other threads read its records after ``stop``.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.failure: BaseException | None = None
        self.stopping = threading.Event()

    @abstractmethod
    def turn(self) -> None: ...

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.turn()
        except BaseException as error:  # raised by stop()
            self.failure = error

    def stop(self) -> None:
        """Stop, and wait for the end. Raises the error that ended it early."""
        self.stopping.set()
        self.join()
        if self.failure is not None:
            raise self.failure


class Writer(Repeating):
    """Writes to its own items. ``pause``: mean seconds between two writes."""

    def __init__(self, number: int, *, customers: int, orders: int, pause: float, seed: int) -> None:
        super().__init__(f"writer-{number}")
        self.pause = pause
        self.random = random.Random(f"{seed}-{number}")
        # The order ids of different writers never overlap.
        self.items: list[Item] = [
            (f"customer-{c:03}", str(number * 1_000_000 + o)) for c in range(customers) for o in range(orders)
        ]
        self.writes: list[RecordedWrite] = []  # others may ask for its length meanwhile
        self._next: dict[Item, int] = defaultdict(int)
        self._alive: set[Item] = set()

    @abstractmethod
    def store(self, planned: Planned, *, in_transaction: bool = False) -> None:
        """Write and record the next versions of some items, in few requests or in one transaction."""

    def save(self, item: Item) -> None:
        self.store([(item, self.version(item))])

    def write_once(self) -> None:
        kind = self.random.choices(("one", "delete", "several", "transaction"), (70, 12, 10, 8))[0]
        item = self.random.choice(self.items)
        if kind == "delete" and self.exists(item):
            self.store([(item, None)])
        elif kind in ("several", "transaction"):
            several = self.random.sample(self.items, min(len(self.items), self.random.randint(2, 10)))
            self.store(self.plan(several), in_transaction=kind == "transaction")
        else:
            self.save(item)

    def close(self) -> None:
        """Close its connection, after the thread has ended."""
        return

    def turn(self) -> None:
        self.write_once()
        if self.pause:
            self.stopping.wait(self.random.expovariate(1 / self.pause))

    def warm_up(self) -> None:
        """Write once to every item, in the caller's thread."""
        for item in self.items:
            self.save(item)
        self.writes = [replace(write, warm_up=True) for write in self.writes]

    def begin_stream(self) -> None:
        """Mark all writes so far as made before the position where the relay starts."""
        self.writes = [replace(write, streamed=False) for write in self.writes]

    # ------------------------------------------------------------------ for subclasses

    def plan(self, items: Iterable[Item]) -> Planned:
        """Choose the next versions of the items. One in five existing items is deleted."""
        return [
            (item, None if item in self._alive and self.random.random() < 0.2 else self.version(item)) for item in items
        ]

    def exists(self, item: Item) -> bool:
        return item in self._alive

    def version(self, item: Item) -> int:
        self._next[item] += 1
        return self._next[item]

    def record(self, started: float, *written: tuple[Item, int | None]) -> None:
        for item, version in written:
            self.writes.append(RecordedWrite(item, version, started, time.time()))
            if version is None:
                self._alive.discard(item)
            else:
                self._alive.add(item)

    def columns(self) -> dict[str, Any]:
        """Return random values for an item's other columns: a number as text, a list of texts, and text."""
        return {
            "amount": f"{self.random.randint(1, 10**12)}.{self.random.randint(1, 9)}",
            "tags": [f"t{n}" for n in sorted(self.random.sample(range(100), 3))],
            "payload": "".join(self.random.choices("abcdefghijklmnopqrstuvwxyz ", k=80)),
        }


@dataclass(frozen=True, slots=True)
class Read:
    """One read by the application. ``version`` is None if the item does not exist. ``started``: epoch seconds."""

    item: Item
    version: int | None
    started: float
    hit: bool


class Reader(Repeating):
    """Reads random items through ``cache``, as an application does while the writers write."""

    def __init__(self, cache: TokenCache, load: Load, items: Sequence[Item], seed: int) -> None:
        super().__init__(f"reader-{seed}")
        self.reads: list[Read] = []
        self._cache = cache
        self._load = load
        self._items = items
        self._random = random.Random(seed)

    def turn(self) -> None:
        # A few items are popular, as in practice.
        self.read(self._items[min(int(self._random.expovariate(8) * len(self._items)), len(self._items) - 1)])
        self.stopping.wait(_PAUSE)

    def read(self, item: Item) -> None:
        started = time.time()
        cached = self._cache.get_or_load(cache_key(item), self._load)
        self.reads.append(Read(item, version_of(cached.value), started, cached.outcome is Outcome.HIT))


class Workload:
    """Several concurrent writers. ``make``: creates a writer from its number and the common settings.

    ``customers``, ``orders``: the number of hash keys, and of each writer's items per hash key.
    """

    def __init__(
        self,
        make: Callable[..., Writer],
        *,
        writers: int = 4,
        customers: int = 25,
        orders: int = 4,
        pause: float = 0.03,
        seed: int = 1,
    ) -> None:
        self.writers = [make(n, customers=customers, orders=orders, pause=pause, seed=seed) for n in range(writers)]

    @property
    def items(self) -> list[Item]:
        return [item for writer in self.writers for item in writer.items]

    def start(self) -> None:
        for writer in self.writers:
            writer.start()

    def warm_up(self) -> None:
        for writer in self.writers:
            writer.warm_up()

    def count(self) -> int:
        """Return the number of acknowledged writes since the relay started."""
        return sum(write.streamed for writer in self.writers for write in writer.writes)

    def stop(self) -> dict[Item, list[RecordedWrite]]:
        """Stop; return each item's acknowledged writes, in order. Raises the failure of a writer."""
        for writer in self.writers:
            writer.stopping.set()
        history: dict[Item, list[RecordedWrite]] = {}
        for writer in self.writers:
            with closing(writer):
                writer.stop()
            for write in writer.writes:
                history.setdefault(write.item, []).append(write)
        return history


CACHE_KEY = f"order:{{{HASH_KEY}}}:{{{RANGE_KEY}}}"
"""The template of the cache keys."""


def cache_key(item: Item) -> str:
    return CACHE_KEY.format(**{HASH_KEY: item[0], RANGE_KEY: item[1]})


def item_of(key: str) -> Item:
    _, customer, order = key.split(":")
    return customer, order


def version_of(image: str | bytes | Mapping[str, Any] | None) -> int | None:
    """Return the version of an item, given as DynamoDB-typed JSON, as a row's JSON, or as a row; None for no item."""
    if image is None:
        return None
    version = (image if isinstance(image, Mapping) else orjson.loads(image))["version"]
    return int(version["N"] if isinstance(version, Mapping) else version)
