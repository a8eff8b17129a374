"""The state of the model as plain data: a database, its stream, the relay's records and memory, and what a copy holds.

Only the order of times matters, so each state has those of a clock of its own: equal states are recognized.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from relay.records import SegmentCheckpoint, ShardCheckpoint, ShardState, SnapshotControl, SnapshotPart, SnapshotRequest
from relay.snapshots.control import Facts, Measure, Measurement, proves_read
from relay.source import Measured
from relay.token import EventToken

MARGIN = 65
TICK = 1000  # seconds between two things whose order matters: more than every margin
TABLES = ("a", "b", "c")  # only the first two are there at first


class Times(dict[str, float]):
    """A mapping that never changes."""

    def __init__(self, times: Mapping[str, float] = MappingProxyType({})) -> None:
        super().__init__(times)
        self._hash = hash(tuple(sorted(times.items())))

    def __hash__(self) -> int:  # type: ignore[override]
        return self._hash


class Event(NamedTuple):
    """What the database has written to its log at a time. ``other``: the new name, or a row and its value."""

    kind: str
    table: str
    other: Any
    at: int


class Stored(NamedTuple):
    """A row of the copy: see `spark_consumers.fold.StoredRow`. ``at``: the time of its token, 0 for none."""

    item: int | None
    at: int
    deleted: bool
    incomplete: bool
    read_as_of: int


class PageRead(NamedTuple):
    """Rows that were read of a segment, and are not published. ``as_of``: at most, with the time they were read."""

    segment: int
    rows: tuple[tuple[int, int], ...]
    as_of: int
    read_at: int


class Asked(NamedTuple):
    """The measurement under way. ``tables``: what it has found, None while it is under way."""

    as_of: int
    emptied: Times
    tables: tuple[str, ...] | None


class World(NamedTuple):
    """``rows``: of each table that there is. ``pending``: what is not published of the log. ``emptied``, ``reached``,
    ``token``: of the shard's checkpoint. ``copy``: by table and key. ``segments``: when each one was finished.

    ``pages``, ``asked``, ``awaited``, ``known``: in the memory of the worker. ``relayed``: the tables of the plan.
    ``named``: in the config; None for all. ``gaps``: those that the stream knows. ``doubtful``: tables of which
    nothing is promised until a snapshot of them begins. ``left``: how often each fault may still come. ``wrong``: what
    a copy has done that it never must.
    """

    now: int
    rows: tuple[tuple[str, tuple[tuple[int, int], ...]], ...]
    pending: tuple[Event, ...]
    emptied: Times
    reached: float
    token: int
    copy: tuple[tuple[tuple[str, int], Stored], ...]
    control: SnapshotControl | None
    segments: tuple[tuple[int, float], ...]
    pages: tuple[PageRead, ...]
    asked: Asked | None
    awaited: float
    known: frozenset[str]
    relayed: frozenset[str]
    named: frozenset[str] | None
    requests: tuple[SnapshotRequest, ...]
    gaps: frozenset[str]
    doubtful: frozenset[str]
    left: tuple[tuple[str, int], ...]
    wrong: str = ""

    def wants(self, table: str) -> bool:
        return self.named is None or table in self.named

    @property
    def there(self) -> frozenset[str]:
        """The tables that there are, and that the config wants."""
        return frozenset(name for name, _ in self.rows if self.wants(name))

    @property
    def dropped(self) -> frozenset[str]:
        return frozenset(name for name in self.relayed - self.known if self.wants(name))


@dataclass(frozen=True)
class Scenario:
    """``initial``: the config asks for the first snapshot. ``named``: it names its tables. ``repairs``: it has
    ``on_gap: resnapshot``. ``requests``: each the tables of one that is there at first. ``skew``: how far the clock of
    the worker that reads rows is ahead, in seconds. ``faults``: how often each may come. ``most``: of all.
    """

    faults: Mapping[str, int]
    most: int = 99
    initial: bool = False
    named: frozenset[str] | None = None
    repairs: bool = True
    requests: tuple[tuple[str, ...], ...] = ()
    skew: int = 0


def first(scenario: Scenario) -> World:
    """Return the world when the relay has just begun, with a stream that it has read from now on."""
    rows = tuple((name, ((1, 0),)) for name in ("a", "b"))
    if scenario.named is not None:
        rows = (*rows, ("c", ((1, 0),)))
    known = frozenset(name for name, _ in rows if scenario.named is None or name in scenario.named)
    return World(
        now=TICK,
        rows=rows,
        pending=(),
        emptied=Times(),
        reached=0.0,
        token=0,
        copy=(),
        control=None,
        segments=(),
        pages=(),
        asked=None,
        awaited=0.0,
        known=known,
        relayed=known,
        named=scenario.named,
        requests=tuple(SnapshotRequest("shop", f"r{n}", each, 0.0) for n, each in enumerate(scenario.requests)),
        gaps=frozenset(),
        doubtful=frozenset(TABLES) if not scenario.initial else frozenset(),
        left=tuple(sorted(scenario.faults.items())),
    )


def facts_of(world: World, scenario: Scenario) -> Facts:
    """Return what ``Snapshots`` would gather."""
    control = world.control
    measurement = None
    if world.asked is not None and control is not None and control.state is ShardState.PLANNED:
        as_of, before, tables = world.asked
        found = None
        if tables is not None and all(event.at >= as_of for event in world.pending):
            found = Measured(len(tables), len(tables), [SnapshotPart(table=table) for table in tables])
        measurement = Measurement(control.id, Measure(as_of, before), found)
    return Facts(
        now=world.now,
        margin=MARGIN,
        is_selective=world.named is not None,
        is_initial=scenario.initial,
        is_unread=scenario.initial and not (control is not None and proves_read(control)),
        tables=world.known,
        dropped=world.dropped,
        gaps=world.gaps,
        to_repair=world.gaps if scenario.repairs else frozenset(),
        last_timestamp=world.token,
        requests=world.requests,
        published={"-": _checkpoint(world.emptied, world.reached, world.token)},
        segments={
            f"{control.id}/{number}": SegmentCheckpoint(ShardState.FINISHED, updated_at=at)
            for number, at in (world.segments if control is not None else ())
        }
        if control is not None
        else {},
        measurement=measurement,
        awaited=world.awaited,
    )


@lru_cache(1 << 12)
def token(at: int) -> EventToken | None:
    return EventToken(at, "shop/shop/-", f"MariaDB/0-1-{at}") if at else None


@lru_cache(1 << 12)
def _checkpoint(emptied: Times, reached: float, at: int) -> ShardCheckpoint:
    return ShardCheckpoint(ShardState.READING, emptied=emptied, reached=reached or None, token=token(at))


def put(pairs: Iterable[tuple[Any, Any]], key: Any, value: Any) -> tuple[tuple[Any, Any], ...]:
    """Return ``pairs`` with another value of ``key``, without it for None."""
    found = dict(pairs)
    found.pop(key, None)
    return tuple(sorted([*found.items(), *([(key, value)] if value is not None else [])]))


# ---------------------------------------------------------------------- times


def normal(world: World) -> World:
    """Return the same world, with the first possible times in the same order."""
    found: set[int] = set()

    def noted(time: float) -> float:
        found.add(_tick(time))
        return time

    _with_times(world, noted)
    ranks = {tick: rank for rank, tick in enumerate(sorted(found | {0}))}
    if all(tick == rank for tick, rank in ranks.items()):
        return world
    return _with_times(world, lambda time: time + (ranks[_tick(time)] - _tick(time)) * TICK)


def _tick(time: float) -> int:
    return int((time + TICK / 2) // TICK)


def _with_times(world: World, of: Callable[[Any], Any]) -> World:
    control, asked = world.control, world.asked
    if control is not None:
        emptied = Times({name: of(time) for name, time in control.begun.emptied.items()})
        control = replace(
            control,
            id="newest",
            after=of(control.after),
            begun=replace(control.begun, as_of=of(control.begun.as_of), emptied=emptied),
            updated_at=of(control.updated_at),
        )
    if asked is not None:
        asked = Asked(of(asked.as_of), Times({n: of(time) for n, time in asked.emptied.items()}), asked.tables)
    return world._replace(
        now=of(world.now),
        rows=tuple((name, tuple((key, of(item)) for key, item in rows)) for name, rows in world.rows),
        pending=tuple(_event(event, of) for event in world.pending),
        emptied=Times({name: of(time) for name, time in world.emptied.items()}),
        reached=of(world.reached),
        token=of(world.token),
        copy=tuple((place, _stored(row, of)) for place, row in world.copy),
        control=control,
        segments=tuple((number, of(at)) for number, at in world.segments),
        pages=tuple(
            PageRead(n, tuple((key, of(item)) for key, item in rows), of(as_of), of(at))
            for n, rows, as_of, at in world.pages
        ),
        asked=asked,
        awaited=of(world.awaited),
    )


def _event(event: Event, of: Callable[[Any], Any]) -> Event:
    other = event.other
    if event.kind == "insert":
        other = other[0], of(other[1])
    return Event(event.kind, event.table, other, of(event.at))


def _stored(row: Stored, of: Callable[[Any], Any]) -> Stored:
    item = row.item if row.item is None else of(row.item)
    return Stored(item, of(row.at), row.deleted, row.incomplete, of(row.read_as_of))


def marked(tables: Set[str], world: World) -> list[str]:
    return sorted(tables | world.dropped)
