"""A model of everything around a cache: rows that are written, a lagging replica, invalidators, readers and faults.

``World.do`` makes one move, given as a name and two numbers, so a list of moves is one interleaving. After each move
the world checks I6: no value is served that is older than an invalidation applied before.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from relay.cache import Cached, Invalidator, LoadedValue, Outcome, Store, TokenCache, is_fresher, token_cache
from relay.cache.entry import Tokens, decode
from relay.cache.store import entry_key, floors_key, generation_key
from relay.errors import Unavailable
from relay.token import EventToken
from tests.cache.rows import KEYS, SHARDS, ChangedRows, Row, Versions, gtid_token, token
from tests.cache.steps import SteppedStore, Steps
from tests.cache.stores import Backend, LosingStore

_APPLICATION = 4  # an actor, beside two readers and two invalidators
TOMBSTONE_TTL, VALUE_TTL, LEASE_TTL = 3600.0, 60.0, 5.0

Move = tuple[str, int, int]


@dataclass
class Actor:
    """Somebody in the middle of a call. ``body``: the call. ``done``: handles its result."""

    steps: Steps
    body: Callable[[], Any]
    done: Callable[[Any], None]


class World:
    """``replicas``: loaders read a lagging replica and return tokens, instead of reading consistently.

    ``primary``: where a replica does not do, they read consistently, without a token. ``tombstone_ttls``: seconds, the
    settings of the two invalidators.
    """

    def __init__(
        self,
        backend: Callable[[Callable[[], float]], Backend],
        *,
        namespace: str = "shop",
        replicas: bool = False,
        primary: bool = True,
        tombstone_ttls: tuple[float, float] = (TOMBSTONE_TTL, TOMBSTONE_TTL),
        around: Callable[[Store], Store] = lambda store: store,
    ) -> None:
        self.now = 1_000_000.0
        self.backend = LosingStore(backend(lambda: self.now))
        self.store = around(self.backend)
        self.replicas = replicas
        self.token = gtid_token if replicas else token
        self.primary = primary
        self.tombstone_ttls = tombstone_ttls
        self.namespace = namespace
        self.rows = ChangedRows()
        self.renamed: dict[str, list[int]] = {shard: [] for shard in SHARDS}  # up to where streams have each name
        self.replica = [dict.fromkeys(SHARDS, 0) for _ in range(2)]  # one for each reader
        self.applied: dict[Row, int] = dict.fromkeys(itertools.product(KEYS, SHARDS), 0)
        # By invalidator and `since`: the ends of the logs when it first saw it.
        self.ends: dict[tuple[int, str], dict[str, int]] = {}
        self.cursors = [dict.fromkeys(SHARDS, 0) for _ in range(2)]  # one for each invalidator
        self.actors: dict[int, Actor] = {}
        self.outcomes: list[Outcome] = []
        self._nonces = map(str, itertools.count())
        self.clear()  # of another world
        if replicas:
            self._begin_floors()

    def clear(self) -> None:
        """Lose every entry, the generation and the floors of this cache."""
        for key in KEYS:
            self.backend.lose(entry_key(self.namespace, key))
        self.backend.lose(generation_key(self.namespace))
        self.backend.lose(floors_key(self.namespace))

    # -- moves ------------------------------------------------------------------------------------------

    def do(self, move: Move) -> None:
        kind, x, y = move
        getattr(self, kind)(x, y)
        self.check()

    def write(self, x: int, y: int) -> None:
        """Change a row, and let some time pass, since tokens count whole seconds."""
        self.now += 0.5
        self.rows.change(SHARDS[x % 2], KEYS[y % 2], self.now)

    def change(self, x: int, y: int) -> None:
        """Change a row, and let an invalidator finish its call."""
        self.write(y, y // 2)
        self.finish(2 + x % 2, y)

    def steps(self, x: int, y: int) -> None:
        """Let an actor make a few calls."""
        for _ in range(1 + y % 4):
            self.step(x, y)
            self.check()

    def step(self, x: int, y: int) -> None:
        """Let an actor make one call: readers are 0 and 1, invalidators 2 and 3."""
        self._advance(x % 4, self._beginning(x % 4, y))

    def _beginning(self, who: int, y: int) -> Callable[[], Actor]:
        return partial(self._reader, who, y) if who < 2 else partial(self._invalidator, who - 2, y)

    def drop(self, x: int, y: int) -> None:
        """An application that has changed rows of a key invalidates it, or makes its next call of that."""
        self._advance(_APPLICATION, partial(self._application, KEYS[y % 2]))

    def _advance(self, who: int, begin: Callable[[], Actor], between: Callable[[], None] | None = None) -> None:
        if who not in self.actors:
            self.actors[who] = begin()
        actor = self.actors[who]
        try:
            ended, result = actor.steps.run(actor.body, between)
        except Unavailable:
            del self.actors[who]  # it failed; an invalidator's cursor stays, so it applies everything again
            return
        if ended:
            del self.actors[who]
            actor.done(result)

    def finish(self, x: int, y: int) -> None:
        """Let an actor make all remaining calls."""
        self._advance(x % 4, self._beginning(x % 4, y), between=self.check)

    def crash(self, x: int, y: int) -> None:
        """An actor stops for good in the middle of its call."""
        self.actors.pop(x % 4, None)

    def fault(self, x: int, y: int) -> None:
        """The next call of an actor, to the store or the database, gets no answer."""
        if x % 4 in self.actors:
            self.actors[x % 4].steps.fault = ("before", "after")[y % 2]

    def rewind(self, x: int, y: int) -> None:
        """An invalidator restarts from an old checkpoint and applies what follows again.

        Or the relay is reset to an older position, so that old changes come behind the newest.
        """
        if y > 11:
            self.republish(x, y)
            return
        self._rewind(x, y)

    def republish(self, x: int, y: int) -> None:
        self._rewind(x, y)
        for (number, _), ends in self.ends.items():
            if number == x % 2:
                ends.update({shard: min(end, self.cursors[number][shard]) for shard, end in ends.items()})

    def _rewind(self, x: int, y: int) -> None:
        cursor = self.cursors[x % 2]
        self.actors.pop(2 + x % 2, None)
        for shard in SHARDS:
            cursor[shard] = max(0, cursor[shard] - 1 - y % 4)

    def tick(self, x: int, y: int) -> None:
        """Time passes: a lease, a value or a tombstone ends."""
        self.now += (1.0, LEASE_TTL, VALUE_TTL, TOMBSTONE_TTL / (1 + x % 4))[y % 4]

    def replicate(self, x: int, y: int) -> None:
        """A replica catches up by a few changes of a shard."""
        shard, replica = SHARDS[x % 2], self.replica[x // 2 % 2]
        replica[shard] = min(len(self.rows.logs[shard]), replica[shard] + 1 + y % 4)

    def rename(self, x: int, y: int) -> None:
        """The stream of a shard goes on under another name, and its replicas keep theirs."""
        self.renamed[SHARDS[x % 2]].append(len(self.rows.logs[SHARDS[x % 2]]))

    def bump(self, x: int, y: int) -> None:
        """Begin a new generation."""
        Invalidator(self.store, self.namespace).bump("a test")

    def evict(self, x: int, y: int) -> None:
        self.backend.lose(entry_key(self.namespace, KEYS[y % 2]))

    def room(self, x: int, y: int) -> None:
        """From now on the store has no room, or some again."""
        self.backend.is_full = x % 2 == 1

    def forget_generation(self, x: int, y: int) -> None:
        """Lose the generation, or the floors."""
        self.backend.lose((generation_key, generation_key, floors_key)[y % 3](self.namespace))

    def flush(self, x: int, y: int) -> None:
        self.clear()

    def gap(self, x: int, y: int) -> None:
        """All invalidations up to now are lost for good, and a new generation replaces them."""
        lost = self.rows.versions(self.rows.ends())
        for cursor in self.cursors:
            cursor.update(self.rows.ends())
        self.bump(x, y)
        self._mark(lost)

    # -- actors -----------------------------------------------------------------------------------------

    def _reader(self, number: int, y: int) -> Actor:
        steps = Steps()
        keys = (KEYS[:1], KEYS[1:], KEYS, KEYS[::-1])[y % 4]
        store = SteppedStore(self.store, steps, lambda: dict(self.applied))

        def read() -> dict[str, Cached]:
            # New in each run, as it remembers what it read. Nonces have to be the same in each, so `steps` has them.
            cache = TokenCache(
                store,
                self.namespace,
                tombstone_ttl=TOMBSTONE_TTL,
                value_ttl=VALUE_TTL if y // 4 % 2 else None,
                lease_ttl=LEASE_TTL,
                lease_wait=0.01,
                clock=lambda: steps.call(lambda: self.now, steps=False),
                sleep=lambda _: steps.call(lambda: None),
            )
            with self._nonces_of(steps):
                return cache.get_many(keys, partial(self._load, steps, number))

        applied_before = dict(self.applied)
        return Actor(steps, body=read, done=partial(self._served, applied_before, store.floors))

    @contextmanager
    def _nonces_of(self, steps: Steps) -> Iterator[None]:
        """Let a cache write the same nonces each time its steps are run again."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(token_cache, "_nonce", lambda: steps.call(lambda: next(self._nonces), steps=False))
            yield

    def _load(self, steps: Steps, number: int, wanted: Mapping[str, Tokens | None]) -> dict[str, LoadedValue]:
        """Read the rows of each key, one shard after the other, so that writes come between."""
        if not self.replicas:
            return self._loaded(steps, wanted, self.rows.ends, with_tokens=False)
        loaded = self._loaded(steps, wanted, lambda: dict(self.replica[number]), with_tokens=True)
        lagging = {key: wanted[key] for key in wanted if not loaded[key].fresher}
        if lagging and self.primary:
            loaded |= self._loaded(steps, lagging, self.rows.ends, with_tokens=False)
        return loaded

    def _loaded(
        self, steps: Steps, wanted: Mapping[str, Tokens | None], at: Callable[[], dict[str, int]], *, with_tokens: bool
    ) -> dict[str, LoadedValue]:
        positions: dict[str, dict[str, int]] = {key: {} for key in wanted}
        tokens: dict[str, EventToken] = {}
        for shard in SHARDS:
            if with_tokens:
                tokens[shard] = self.token(shard, steps.call(at)[shard])
            # The rows are read after the token, and may be newer.
            read_at = steps.call(at)[shard]
            for key in wanted:
                positions[key][shard] = self.rows.versions({shard: read_at})[key, shard]
        fresher = {key: not with_tokens or is_fresher(tokens, wanted[key]) for key in wanted}
        return {key: LoadedValue(json.dumps(positions[key]).encode(), tokens, fresher[key]) for key in wanted}

    def _served(self, applied_before: Versions, floors: Mapping[str, Versions], results: dict[str, Cached]) -> None:
        for key, cached in results.items():
            self.outcomes.append(cached.outcome)
            if cached.outcome is Outcome.HIT:
                self._compare(key, cached.value, floors[entry_key(self.namespace, key)])
            elif not self.replicas:
                self._compare(key, cached.value, applied_before)

    def _invalidator(self, number: int, y: int) -> Actor:
        steps = Steps()
        store = SteppedStore(self.store, steps, dict)
        cursor = self.cursors[number]
        # Changes of one shard or of both, sometimes without tokens.
        taken = {shard: 1 + y // 4 % 3 for i, shard in enumerate(SHARDS) if y % 4 in (i, 2, 3)}
        pairs: list[tuple[str, EventToken | None]] = []
        to = dict(cursor)
        for shard, count in taken.items():
            to[shard] = min(len(self.rows.logs[shard]), cursor[shard] + count)
            for position in range(cursor[shard], to[shard]):
                change = None if y % 16 == 15 else self._token_of(shard, position)
                pairs.append((self.rows.logs[shard][position], change))

        begin = dict(cursor)

        def apply() -> None:
            clock = partial(steps.call, lambda: self.now, steps=False)
            ttl = self.tombstone_ttls[number]
            invalidator = Invalidator(store, self.namespace, tombstone_ttl=ttl, clock=clock)
            invalidator._mostly_cached = y % 2 == 1
            proven = self._published_since(number, begin, taken, invalidator, steps) if self.replicas else ""
            invalidator.apply(pairs, published_since=proven)

        def done(_: Any) -> None:
            rows = self.rows.changed(cursor, to)
            cursor.update(to)
            self._mark(rows)

        return Actor(steps, body=apply, done=done)

    def _application(self, key: str) -> Actor:
        steps = Steps()
        store = SteppedStore(self.store, steps, dict)

        def invalidate() -> bool:
            cache = TokenCache(
                store,
                self.namespace,
                tombstone_ttl=TOMBSTONE_TTL,
                clock=lambda: steps.call(lambda: self.now, steps=False),
            )
            with self._nonces_of(steps):
                return cache.invalidate(key)

        before = {row: at for row, at in self.rows.versions(self.rows.ends()).items() if row[0] == key}

        def done(is_invalid: bool) -> None:
            if is_invalid and not self.replicas:  # a replica that lags may fill it again
                self._mark(before)

        return Actor(steps, body=invalidate, done=done)

    def _token_of(self, shard: str, index: int) -> EventToken:
        found = self.token(shard, index + 1)
        number = 1 + sum(index >= begin for begin in self.renamed[shard])
        name = shard if number == 1 else f"{shard}@{number}"
        return replace(found, shard=name, timestamp=int(self.rows.commits[shard][index])) if self.replicas else found

    def _published_since(
        self, number: int, begin: Mapping[str, int], taken: Iterable[str], invalidator: Invalidator, steps: Steps
    ) -> str:
        since = invalidator.since()
        ends = steps.call(lambda: self.ends.setdefault((number, since), self.rows.ends()), steps=False)
        return since if all(begin[shard] >= ends[shard] for shard in taken) else ""

    # -- what is true -----------------------------------------------------------------------------------

    def _mark(self, rows: Versions) -> None:
        for row, at in rows.items():
            self.applied[row] = max(self.applied[row], at)

    def check(self) -> None:
        """Check I6 for a reader at this instant."""
        entries, generation = self.store.read(
            [entry_key(self.namespace, k) for k in KEYS], generation_key(self.namespace)
        )
        for key, stored in zip(KEYS, entries, strict=True):
            if stored and decode(stored.meta).serves(generation, self.now):
                self._compare(key, stored.value, self.applied)

    def _compare(self, key: str, value: bytes | None, floor: Versions) -> None:
        assert value is not None
        for shard, at in json.loads(value).items():
            assert at >= floor[key, shard], f"{key} served with {shard} as of {at}: older than {floor[key, shard]}"

    def _begin_floors(self) -> None:
        """The first changes begin the announcements, the next are seen behind them, the last ones begin the floors."""
        for key in range(3):
            self.now += 2.0  # tokens count whole seconds
            self.write(0, key)
            self.write(1, key)
            self._catch_up()

    def _catch_up(self) -> None:
        for replica in self.replica:
            replica.update(self.rows.ends())
        for number in range(2):
            while any(self.cursors[number][shard] < len(self.rows.logs[shard]) for shard in SHARDS):
                self.do(("finish", 2 + number, 10))

    # -- the end ----------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let every actor finish and apply every change; then the cache has to serve the current rows."""
        self.room(0, 0)
        self.tick(0, 2)
        for who in range(4):
            if who in self.actors:
                self.do(("finish", who, 0))
        while _APPLICATION in self.actors:
            self.do(("drop", 0, 0))
        self._catch_up()
        if self.replicas:
            # No replica reflects a change of unknown order, so its tombstone has to expire; and a few changes later
            # there are floors again.
            self.tick(0, 3)
            self._begin_floors()
        for _ in range(2):
            self.outcomes.clear()
            self.do(("finish", 0, 2))
        assert self.outcomes == [Outcome.HIT, Outcome.HIT]
        assert self.applied == self.rows.versions(self.rows.ends())
