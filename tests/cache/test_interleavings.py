"""Random interleavings against every store: I6 holds after each step, and the search notices each missing guard."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from relay.cache import Invalidator, LoadedValue, MemoryStore, Outcome, TokenCache, entry_key
from relay.cache.entry import Tokens
from tests.cache.broken import GUARDS
from tests.cache.rows import SHARDS, token
from tests.cache.stores import NAMES, Backend, InMemory, OnServers, opened
from tests.cache.world import TOMBSTONE_TTL, Move, World
from tests.examples import draw, is_quick
from tests.waiting import wait_until

# How often each move is made. The weights were found by trial: with them the broken caches below are caught soonest.
# Some need complete calls that follow each other, others two calls finely interleaved.
_FAULTS = {"gap": 3, "tick": 3, "fault": 2, "rewind": 2, "evict": 2, "crash": 1, "bump": 1, "flush": 1, "room": 3}
_COARSE = {"change": 9, "step": 10, "steps": 6, "finish": 6, "write": 2, "replicate": 4, "forget_generation": 1}
_FINE = {"change": 1, "step": 40, "steps": 4, "finish": 1, "write": 8, "replicate": 3, "forget_generation": 1}


def _moves(weights: dict[str, int]) -> st.SearchStrategy[list[Move]]:
    """A move is drawn as one number, since drawing three takes as long as making the moves."""
    kinds = [kind for kind, weight in weights.items() for _ in range(weight)]
    moves = list(itertools.product(kinds, range(4), range(16)))
    return st.lists(st.sampled_from(moves), min_size=40, max_size=120)


SEARCHED_MOVES = st.one_of(_moves(_COARSE | _FAULTS), _moves(_FINE | _FAULTS))
MOVES = st.one_of(SEARCHED_MOVES, _moves(_COARSE | _FAULTS | {"drop": 8}))


def in_memory(clock: Callable[[], float]) -> Backend:
    return InMemory(MemoryStore(clock))


def play(world: World, moves: Sequence[Move]) -> None:
    for move in moves:
        world.do(move)
    world.settle()


MORE = [50, pytest.param(150, marks=pytest.mark.faults("more of what is drawn at random: the same test with 50"))]


@pytest.mark.parametrize("number", MORE)
def test_consistent_reads_are_never_served_stale(number: int) -> None:
    """I6, in every interleaving of read, write, invalidate, fill, eviction, crash and replay."""

    def played(moves: list[Move]) -> None:
        play(World(in_memory), moves)

    draw(number, MOVES, play=played)


@pytest.mark.parametrize("number", MORE)
def test_reads_of_a_lagging_replica_are_never_served_stale(number: int) -> None:
    """I6, where only tokens show how fresh a read is, also with lost memory and replicas that lag for any time."""

    def played(moves: list[Move], primary: bool, shorter: int) -> None:
        ttls = TOMBSTONE_TTL, TOMBSTONE_TTL / shorter
        play(World(in_memory, replicas=True, primary=primary, tombstone_ttls=ttls), moves)

    draw(number, MOVES, st.booleans(), st.sampled_from([1, 4]), play=played)


@pytest.mark.parametrize("number", MORE)
def test_dropped_components_let_no_stale_value_through(number: int) -> None:
    """I6, with entries that hold one component while there are two shards."""

    def played(moves: list[Move]) -> None:
        play(World(in_memory, replicas=True), moves)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("relay.cache.entry.MAX_COMPONENTS", 1)
        draw(number, MOVES, play=played)


# -- the same on servers -------------------------------------------------------------------------------------


@pytest.fixture
def on_servers(request: pytest.FixtureRequest) -> Iterator[OnServers]:
    """A store of the kind that a test names."""
    with opened(request.param, request) as store:
        yield OnServers(store)


OTHERS = pytest.mark.faults(
    "longer, and in clusters of servers: the same test with redis and memcached, test_stores.py for what a store does"
)


@pytest.mark.services
@pytest.mark.parametrize(
    ("on_servers", "number"),
    [("redis", 15), ("memcached", 15), *(pytest.param(kind, 60, marks=OTHERS) for kind in NAMES)],
    indirect=["on_servers"],
)
def test_values_on_servers_are_never_served_stale(on_servers: OnServers, unique: str, number: int) -> None:
    """I6, on real servers."""

    def played(moves: list[Move], replicas: bool) -> None:
        play(World(lambda _: on_servers, namespace=unique, replicas=replicas), moves)

    draw(number, MOVES, st.booleans(), play=played)


@pytest.mark.services
@pytest.mark.parametrize(
    ("on_servers", "seconds"),
    [("redis", 1.0), ("memcached", 1.0), *(pytest.param(kind, 4.0, marks=OTHERS) for kind in NAMES)],
    indirect=["on_servers"],
)
def test_threads_racing_on_servers_never_read_stale(on_servers: OnServers, unique: str, seconds: float) -> None:
    """I6, with real time, real connections and all threads at once."""
    race = _Race(on_servers, unique)
    race.run(seconds)
    assert race.failures == []


_MET = (Outcome.HIT, Outcome.FILLED, Outcome.DROPPED)


class _Race:
    """One writer, two invalidators that replay, four readers with slow loads, and an evictor."""

    def __init__(self, backend: OnServers, namespace: str) -> None:
        self.backend = backend
        self.namespace = namespace
        self.written = 0  # versions of one row; loads read this, as a consistent read does
        self.applied = 0
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.failures: list[str] = []
        self.lock = threading.Lock()
        self.stop = threading.Event()

    def run(self, seconds: float) -> None:
        """Race for ``seconds``, and until readers have met each of what they may meet."""
        bodies: list[Callable[[], None]] = [self._write, self._evict, *[self._invalidate] * 2, *[self._read] * 4]
        threads = [threading.Thread(target=self._guarded, args=(body,)) for body in bodies]
        for thread in threads:
            thread.start()
        try:
            time.sleep(seconds)
            wait_until(lambda: bool(self.failures) or all(self.outcomes[each] for each in _MET))
        finally:
            self.stop.set()
            for thread in threads:
                thread.join()

    def _guarded(self, body: Callable[[], None]) -> None:
        try:
            while not self.stop.is_set():
                body()
        except Exception as error:
            self.failures.append(repr(error))

    def _write(self) -> None:
        self.written += 1
        time.sleep(random.uniform(0, 0.004))

    def _evict(self) -> None:
        self.backend.lose(entry_key(self.namespace, "k"))
        time.sleep(random.uniform(0, 0.01))

    def _invalidate(self) -> None:
        at = self.written
        invalidator = Invalidator(self.backend.store, self.namespace)
        if at:
            replayed = range(max(1, at - random.randrange(4)), at + 1)
            invalidator.apply([("k", token(SHARDS[0], position)) for position in replayed])
            with self.lock:
                self.applied = max(self.applied, at)
        time.sleep(random.uniform(0, 0.004))

    def _read(self) -> None:
        cache = TokenCache(self.backend.store, self.namespace, lease_ttl=0.01, lease_wait=0.005)
        floor = self.applied
        cached = cache.get_or_load("k", self._load)
        assert cached.value is not None
        self.outcomes[cached.outcome] += 1
        if int(cached.value) < floor:
            self.failures.append(f"{cached.outcome}: {cached.value!r} is older than {floor}")

    def _load(self, key: str, compare: Tokens | None) -> LoadedValue:
        value = str(self.written).encode()
        time.sleep(random.choice([0, 0, 0.002, 0.015]))
        return LoadedValue(value, {}, fresher=True)


# -- without one of the guards -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Broken:
    """A guard of ``broken.GUARDS`` that is missing, and how that shows."""

    name: str
    replicas: bool
    moves: tuple[Move, ...] = ()
    primary: bool = False

    def play(self, moves: Sequence[Move]) -> None:
        guard = GUARDS[self.name]
        with guard.missing():
            play(
                World(
                    in_memory, replicas=self.replicas, primary=self.primary, around=guard.store or (lambda store: store)
                ),
                moves,
            )


_FULL: Move = ("room", 1, 0)
_LOADED: tuple[Move, ...] = (("step", 0, 0),) * 7  # a reader missed and has loaded, but not stored yet
_CHANGED: tuple[Move, ...] = (("write", 0, 0), ("finish", 2, 0))  # a row has changed and is invalidated
_READ: Move = ("finish", 0, 0)

SCRIPTED = [
    Broken("any generation is served", False, moves=(_READ, ("write", 0, 0), ("gap", 0, 0), _READ)),
    Broken("fills without a guard", False, moves=(*_LOADED, *_CHANGED, _READ)),
    Broken("an invalidation that leaves leases alone", False, moves=(*_LOADED, *_CHANGED, _READ)),
    Broken(
        "the generation read when a value is stored", False, moves=(*_LOADED, ("write", 0, 0), ("gap", 0, 0), _READ)
    ),
    Broken("no leases, and a tombstone evicted early", False, moves=(*_LOADED, *_CHANGED, ("evict", 0, 0), _READ)),
    Broken(
        "a full store that keeps a value whose tombstone it refuses",
        False,
        moves=(_READ, ("write", 0, 0), _FULL, ("finish", 2, 0), _READ),
    ),
    Broken(
        "a full store that keeps its floors",
        True,
        moves=(("write", 0, 0), _FULL, ("finish", 2, 0), ("room", 0, 0), _READ),
    ),
    Broken(
        "a lease that ends before the tombstone it replaced",
        True,
        moves=(*_CHANGED, *_LOADED[:3], ("crash", 0, 0), ("tick", 0, 1), _READ),
    ),
    Broken(
        "one component only", True, moves=(*_CHANGED, ("write", 1, 0), ("finish", 2, 1), ("replicate", 1, 0), _READ)
    ),
    Broken("a fill over nothing that asks for no floor", True, moves=(*_CHANGED, ("evict", 0, 0), _READ)),
    Broken("floors that ignore evictions", True, moves=(*_CHANGED, ("evict", 0, 0), _READ)),
    Broken("floors that ignore expired tombstones", True, moves=(*_CHANGED, ("tick", 0, 3), _READ)),
    Broken(
        "floors that begin with a change published long before",
        True,
        moves=(
            *(("write", 0, 0), ("write", 1, 0)) * 3,
            ("finish", 2, 10),
            ("flush", 0, 0),
            ("rewind", 0, 2),
            ("finish", 2, 2),
            ("finish", 2, 2),
            ("replicate", 0, 1),
            ("replicate", 1, 1),
            _READ,
        ),
    ),
    Broken(
        "floors that begin with an old change published late",
        True,
        moves=(
            *(("write", 0, 0), ("write", 1, 0)) * 3,
            ("finish", 2, 10),
            ("flush", 0, 0),
            ("tick", 0, 0),
            ("write", 0, 0),
            ("finish", 2, 0),
            ("finish", 2, 1),
            ("republish", 0, 3),
            ("finish", 2, 2),
            ("replicate", 0, 3),
            _READ,
        ),
    ),
    Broken(
        "floors that last when their shard has ended", True, moves=(("rename", 0, 0), *_CHANGED, ("evict", 0, 0), _READ)
    ),
    Broken(
        "tokens announced after their tombstones are written",
        True,
        moves=(("write", 0, 0), *(("step", 2, 0),) * 5, ("evict", 0, 0), _READ, ("finish", 2, 0)),
    ),
    Broken(
        "an expired value that discards an invalidation and then goes",
        True,
        moves=(
            ("write", 0, 0),
            ("replicate", 0, 0),
            ("finish", 0, 4),
            ("tick", 0, 2),
            *(("tick", 3, 3),) * 3,
            ("finish", 2, 0),
            ("tick", 3, 3),
            ("finish", 1, 0),
        ),
    ),
    Broken(
        "a value that goes before the tombstone it replaced",
        True,
        moves=(*_CHANGED, ("finish", 0, 4), ("tick", 0, 2), ("finish", 1, 0)),
        primary=True,
    ),
    Broken(
        "a value of the primary that forgets what it replaced",
        True,
        moves=(*_CHANGED, ("finish", 0, 4), ("tick", 0, 2), ("finish", 1, 0)),
        primary=True,
    ),
    Broken(
        "a change of the application that drops no load",
        False,
        moves=(*_LOADED, ("write", 0, 0), *(("drop", 0, 0),) * 4, _READ),
    ),
    Broken(
        "a dropped value that forgets what it replaced",
        True,
        moves=(*_CHANGED, ("finish", 0, 4), *(("drop", 0, 0),) * 6, _READ),
        primary=True,
    ),
]

SEARCHED = [
    Broken("unknown is older", False),
    Broken("every loaded value is stored", True),
    Broken("a lease without tokens", True),
]


@pytest.mark.parametrize("without", SCRIPTED, ids=lambda without: without.name)
def test_a_scripted_interleaving_is_only_safe_with_the_guard(without: Broken) -> None:
    """I6"""
    play(World(in_memory, replicas=without.replicas), without.moves)
    with pytest.raises(AssertionError, match="older than"):
        without.play(without.moves)


# The first takes longer than all other tests of this file together.
@pytest.mark.parametrize("without", SEARCHED[is_quick() :], ids=lambda without: without.name)
def test_the_search_notices_a_missing_guard(without: Broken) -> None:
    """It shows that the searches above can fail."""

    @settings(max_examples=2000, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    @given(SEARCHED_MOVES)
    def searched(moves: list[Move]) -> None:
        without.play(moves)

    with pytest.raises(AssertionError, match="older than"):
        searched()
