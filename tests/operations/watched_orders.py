"""A table of orders with its topic, its cache and its copy in simulated time, and a verifier that runs beside it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from relay.cache import ConditionalWrite, Entry, Invalidator, LoadedValue, State, TokenCache, entry_key, generation_key
from relay.cache.entry import Tokens, encode
from relay.cache.keys import CacheRules
from relay.cache.memory_store import MemoryStore
from relay.cache.store import StoredEntry
from relay.change import Images, Operation
from relay.config import CacheConfig
from relay.errors import Unavailable
from relay.kafka.changes import ReceivedChange, Reception
from relay.observe.verifier import Accusation, VerifierObserver
from relay.operations.expected_values import Comparison, ServedValue
from relay.operations.verify_forever import ForeverVerifier, WatchedCache, WatchedTables
from relay.operations.verify_tables import AppliedTime
from relay.source import SourceRows
from relay.table import Column, KeyColumn, TableSchema
from relay.token import EventToken
from spark_consumers.kept_rows import KeptRow, KeptRows
from tests.clock import Clock

SCHEMA = TableSchema("shop", "orders", (KeyColumn("id", "int"),), 1, (Column("id", "int"), Column("note", "string")))
CACHE = CacheConfig(url="redis://127.0.0.1:1/0", namespace="shop", keys={"orders": ["order:{id}"]})
TOPIC = "shop.orders"
IDS = 60

KeptNotes = dict[int, tuple[int, str | None, str]]
"""By id: the number of the change, the note, the event id."""


def change(number: int, id: int, operation: str, old: str | None, new: str | None, at: float, shard: str = "-") -> Any:
    """The ``number``-th change of a shard. ``old``, ``new``: the notes before and after."""
    images = [None if note is None else {"id": id, "note": note} for note in (old, new)]
    token = EventToken(int(at), f"shop/shop/{shard}", f"MySQL56/00000000-0000-0000-0000-000000000001:1-{number + 1}")
    time = int(at * 1_000_000)
    return ReceivedChange(
        f"{shard}:{number}",
        Operation(operation),
        "shop",
        "orders",
        {"id": id},
        images[0],
        images[1],
        Images.NEW_AND_OLD,
        token,
        time,
        relayed_at=time,
        topic=TOPIC,
        partition=0,
        offset=number,
    )


@dataclass
class Progress(AppliedTime):
    """What a consumer has applied, as the test says."""

    time: float = 0.0
    is_running: bool = True
    apply_every: float = 0.0
    waiting: int = 0
    committed: dict[str, dict[str, int]] = field(default_factory=dict)

    def close(self) -> None: ...

    def through(self) -> float:
        return self.time


class UnsteadyStore(MemoryStore):
    """A store that does not answer the verifier while ``is_down``."""

    is_down = False

    def sample(self, prefix: str, count: int) -> list[str]:
        if self.is_down:
            raise Unavailable("the store does not answer")
        return super().sample(prefix, count)

    def read_for_verifier(self, keys: Sequence[str], generation_key: str) -> tuple[list[StoredEntry | None], str]:
        if self.is_down:
            raise Unavailable("the store does not answer")
        return self.read(keys, generation_key)


@dataclass
class Orders(SourceRows):
    """The rows of the source. ``reads``: how many were asked for by their keys."""

    world: World
    schema: TableSchema = SCHEMA

    def close(self) -> None: ...

    def all(self) -> Iterator[tuple[Mapping[str, Any], Any]]:
        return self.of([(str(id),) for id in self.world.truth])

    def some(self, count: int) -> Iterator[tuple[Mapping[str, Any], Any]]:
        return self.all()

    def of(self, keys: Sequence[Sequence[str]]) -> Iterator[tuple[Mapping[str, Any], Any]]:
        self.world.reads += len(keys)
        for [text] in [*keys] * (2 if self.world.has_two_shards else 1):
            id = int(text)
            if (note := self.world.truth.get(id)) is not None:
                yield {"id": id}, {"id": id, "note": note}


@dataclass
class Copied(KeptRows):
    """The rows of the copy; of the log, if ``is_log``."""

    world: World
    is_log: bool = False
    where: str = "somewhere"

    @property
    def rows(self) -> KeptNotes:
        return self.world.log if self.is_log else self.world.copy

    def all(self) -> Iterator[KeptRow]:
        return self.of([(str(id),) for id in self.rows])

    def some(self, count: int) -> Iterator[KeptRow]:
        ids = random.sample(sorted(self.rows), min(count, len(self.rows)))
        return self.of([(str(id),) for id in ids])

    def of(self, keys: Sequence[Sequence[str]]) -> Iterator[KeptRow]:
        for [text] in keys:
            if (kept := self.rows.get(int(text))) is not None and kept[1] is not None:
                yield KeptRow((text,), (kept[1],), False, kept[2])

    def counted(self, event_ids: Sequence[str], since: float) -> Mapping[str, int] | None:
        return {each: self.world.logged[each] for each in event_ids} if self.is_log else None


@dataclass
class World:
    """``truth``: notes by id. ``copy``, ``log``: what they have. ``logged``: how many times the log has each change.

    The verifier polls it for changes, which is when time passes: see ``step``.
    """

    clock: Clock
    rate: float = 2.0
    truth: dict[int, str] = field(default_factory=dict)
    copy: KeptNotes = field(default_factory=dict)
    log: KeptNotes = field(default_factory=dict)
    logged: Counter[str] = field(default_factory=Counter)
    progress: Progress = field(default_factory=Progress)
    passing: list[ReceivedChange] = field(default_factory=list)
    told: list[Accusation] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    reads: int = 0
    is_down: bool = False
    has_two_shards: bool = False

    def __post_init__(self) -> None:
        self.store = UnsteadyStore(self.clock)
        self.cache = TokenCache(self.store, "shop", clock=self.clock, sleep=self.sleep, tombstone_ttl=36_000)
        self.invalidator = Invalidator(self.store, "shop", clock=self.clock, tombstone_ttl=36_000)
        self.observer = VerifierObserver("shop", ["cache", "copy", "log"], clock=self.clock)
        sinks = [self._tables("copy"), self._tables("log")]
        self.sinks = {
            "cache": WatchedCache(
                "cache", self.progress, self.observer, self.told.append, self.clock,
                store=_Seen(self.store),  # type: ignore[arg-type]
                namespace="shop", compare=self.compare, rules=CacheRules(CACHE, []),
            ),
            "copy": sinks[0],
            "log": sinks[1],
        }  # fmt: skip
        self.verifier = ForeverVerifier(
            [*self.sinks.values()], lambda: cast(Reception, self), self.observer, rate=self.rate, say=self.said.append,
            clock=self.clock, sleep=self.sleep,
        )  # fmt: skip

    def _tables(self, name: str) -> WatchedTables:
        return WatchedTables(
            name, self.progress, self.observer, self.told.append, self.clock,
            sources={"shop": self.open_tables}, tables={"orders": "shop"},
            kept=lambda layout, wanted: Copied(self, is_log=name == "log"),
        )  # fmt: skip

    # ------------------------------------------------------------------ what the verifier reads

    def open_tables(self, tables: Collection[str]) -> Iterator[Orders]:
        if self.is_down:
            raise Unavailable("source shop does not answer")
        for _ in tables:
            yield Orders(self)

    def compare(self, served: Mapping[str, ServedValue]) -> dict[str, Comparison]:
        self.reads += len(served)
        if self.is_down:
            raise Unavailable("source shop does not answer")
        found = {}
        for key, each in served.items():
            loaded = self.load(key, None)
            found[key] = Comparison(loaded.value == each.value, loaded.value, misplaced=not loaded.canonical)
        return found

    def load(self, key: str, tokens: Tokens | None) -> LoadedValue:
        text = key.removeprefix("order:")
        note = self.truth.get(int(text))
        return LoadedValue(None if note is None else note.encode(), {}, True, text == str(int(text)))

    # ------------------------------------------------------------------ time

    def close(self) -> None: ...

    def sleep(self, seconds: float) -> None:
        self.clock.now += seconds
        self.step()

    def poll(self, seconds: float) -> ReceivedChange | None:
        if not self.passing:
            self.sleep(seconds)
        return self.passing.pop(0) if self.passing else None

    def step(self) -> None:
        """What happens meanwhile: by default everything is applied at once."""
        self.progress.time = self.clock()

    def rounds(self, minutes: float) -> None:
        end = self.clock() + minutes * 60
        while self.clock() < end:
            self.verifier.round()

    # ------------------------------------------------------------------ consumers

    def apply(self, each: ReceivedChange) -> None:
        """Invalidate the cache, write the copy if this is news, append to the log if it is not there."""
        assert each.key is not None
        id = each.key["id"]
        self.invalidator.apply([(f"order:{id}", each.token)])
        for rows in (self.copy, self.log):
            if rows.get(id, (-1,))[0] < each.offset:
                rows[id] = each.offset, None if each.new is None else each.new["note"], each.event_id
        self.logged[each.event_id] = 1

    @property
    def accused(self) -> set[tuple[str, str, str]]:
        """What is accused now: sink, kind and key."""
        found = [each for each in self.observer.report()["accused"] if each["ended_at"] is None]
        return {(each["sink"], each["kind"], next(iter(each["key"].values()), "")) for each in found}


class _Seen:
    """The store as the verifier sees it."""

    def __init__(self, store: UnsteadyStore) -> None:
        self.sample, self.read = store.sample, store.read_for_verifier


def settled_world() -> World:
    """Return a world whose rows are the same everywhere."""
    found = World(Clock(), rate=20.0)
    for id in range(IDS):
        found.truth[id] = f"note {id}"
        found.apply(change(id, id, "INSERT", None, found.truth[id], found.clock()))
        found.cache.get_or_load(f"order:{id}", found.load)
    found.rounds(1)  # it knows the table
    return found


def plant(world: World, key: str, value: bytes) -> None:
    """Serve ``value`` as if a reader had loaded it."""
    name = entry_key("shop", key)
    (stored,), generation = world.store.read([name], generation_key("shop"))
    meta = encode(Entry(State.VALUE, generation, {}), f"planted {random.random()}")
    world.store.compare_and_set([ConditionalWrite(name, stored.meta if stored else None, meta, value, 36_000.0)])


def write(world: World, number: int, id: int, new: str | None) -> ReceivedChange:
    """Change a row, and let the change pass, applied nowhere."""
    old = world.truth.pop(id, None)
    if new is not None:
        world.truth[id] = new
    operation = "DELETE" if new is None else "INSERT" if old is None else "UPDATE"
    found: ReceivedChange = change(number, id, operation, old, new, world.clock())
    world.passing.append(found)
    return found


def lose_a_table(world: World) -> WatchedTables:
    """Give the copy a second table, ``lost``, which its source lacks."""
    sink = world.sinks["copy"]
    assert isinstance(sink, WatchedTables)

    def open_tables(tables: Collection[str]) -> Iterator[Orders]:
        for table in tables:
            if table == "lost":
                raise Unavailable("there is no table lost")
            yield Orders(world)

    sink._source_of = {"orders": "shop", "lost": "shop"}
    sink._sources = {"shop": open_tables}
    return sink
