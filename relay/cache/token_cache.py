"""The cache as an application uses it: read values, and fill the cache without storing stale ones.

``relay.cache.entry`` holds the rules; this module calls the store, the loader and the clock. I6 depends on the order of
those calls. A coroutine fixes the order; threads and coroutines make its calls.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, TypeVar

from relay.cache.entry import Entry, Held, LoadedValue, State, Tokens, decode, emptied, encode, filled, leased
from relay.cache.floors import FloorsReader
from relay.cache.invalidator import Invalidator
from relay.cache.keys import row_keys
from relay.cache.reads import Cached, Calls, CountedReads, Lease, Outcome, Reads
from relay.cache.store import FOREVER, KEEP, ConditionalWrite, Store, StoredEntry, entry_key, generation_key
from relay.errors import StoreFull, Unavailable
from relay.process.seldom import Seldom
from relay.token import EventToken

_log = logging.getLogger(__name__)

Load = Callable[[str, Tokens | None], LoadedValue]
"""Loads one key. The second argument is the tokens to compare the read with (a ``Held``), or None."""

LoadMany = Callable[[Mapping[str, Tokens | None]], Mapping[str, LoadedValue]]
"""Loads the keys of the mapping, whose values are the tokens to compare each read with. Returns all keys."""

T = TypeVar("T")

_CLOCK_SLACK = 2  # lease times: the clocks and settings of other processes may differ by one
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.05  # seconds until a key filled by another reader is read again; doubles


@dataclass(eq=False, repr=False)
class TokenCache(CountedReads):
    """A cache that serves no value older than an applied invalidation (I6). Threads may share it.

    ``tombstone_ttl``: seconds, the same as the invalidator's. ``value_ttl``: seconds for which a value is served; None
    means no end. ``lease_ttl``: seconds a load may take, ``tombstone_ttl`` at most; after that another reader may load
    too, and only one of the two values is stored. ``lease_wait``: seconds to wait for a value that another reader is
    loading; None means about as long as loads take, and ``lease_ttl`` at most.

    While the store cannot be reached, values are loaded and not stored.
    """

    store: Store
    namespace: str
    _: KW_ONLY
    tombstone_ttl: float = 3600.0
    value_ttl: float | None = None
    lease_ttl: float = 5.0
    lease_wait: float | None = None
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        ttl, clock = self.tombstone_ttl, self.clock
        if self.lease_ttl > ttl:
            raise ValueError(
                f"lease_ttl, {self.lease_ttl:g} s, must be at most tombstone_ttl, {ttl:g} s: after that, the cache no "
                "longer knows what a load has to reflect, so it does not store the result"
            )
        super().__init__()
        self._invalidator = Invalidator(self.store, self.namespace, tombstone_ttl=ttl, clock=clock)
        self._floors = FloorsReader(self.store, self.namespace, ttl, clock)
        self._warning = Seldom()

    def get_or_load(self, key: str, load: Load, *, refused: bytes | None = None) -> Cached:
        """Return the cached value, or load it, and store it if safe. Raises as ``load`` does.

        ``refused``: a cached value that the caller cannot decode: it is loaded again.
        """
        return self.get_many([key], lambda wanted: {key: load(key, wanted[key])}, refused=refused)[key]

    def get_many(self, keys: Iterable[str], load_many: LoadMany, *, refused: bytes | None = None) -> dict[str, Cached]:
        """Return each key's value. Keys without one are loaded together. Raises as the loader does."""
        reading = self.read(keys, _CallsInThread(load_many, self.sleep), refused)
        try:
            reading.send(None)
        except StopIteration as end:
            results: dict[str, Cached] = end.value
            return results
        raise RuntimeError("a read waits for something that no thread can wait for")

    def invalidate(self, *keys: str, token: EventToken | None = None) -> bool:
        """Serve no value of these keys that was read before, nor one that is being loaded now.

        For an application that has just committed a change; the relay's own invalidation follows. ``token``: the token
        of the change, if known: no read from a copy that lags behind it is stored. Return False if the store cannot be
        reached.
        """
        try:
            if token is not None:
                self._invalidator.apply([(key, token) for key in keys], published_since="")
            else:
                self._drop(list(dict.fromkeys(keys)))
        except Unavailable as error:
            self._note_unreachable(error)
            return False
        return True

    def invalidate_rows(self, templates: Iterable[str], *rows: Mapping[str, Any]) -> bool:
        """``invalidate`` the keys of rows, such as an item's former and new one, by templates as in ``cache.keys``."""
        return self.invalidate(*row_keys(templates, rows))

    def _drop(self, keys: list[str]) -> None:
        """Remove values and leases from entries, but keep their tokens. Raises ``Unavailable``."""
        while keys:
            found, generation = self.store.read([*map(self._name, keys)], generation_key(self.namespace))
            if self._floors.must_be_read(found):
                self._floors.read(generation)
            drops = []
            for key, stored in zip(keys, found, strict=True):
                if stored and (entry := decode(stored.meta)).state is not State.TOMBSTONE:
                    drops.append(self._emptied(key, entry, stored.meta))
            # Another reader may have stored a value in between that was read before.
            try:
                conflicts = self.store.compare_and_set(drops) if drops else {}
            except StoreFull as full:
                conflicts = self._invalidator.delete(drops, full)
            keys = [key for key in keys if self._name(key) in conflicts]

    async def read(self, keys: Iterable[str], calls: Calls, refused: bytes | None = None) -> dict[str, Cached]:
        """Do the work of ``get_many`` with ``calls``."""
        pending = list(dict.fromkeys(keys))
        reads = Reads(calls, refused)
        waited, pause = 0.0, _FIRST_PAUSE
        while pending:
            if not (pending := await self._serve(pending, reads)):
                break
            longest = self.lease_wait if self.lease_wait is not None else self.usual_fill_time(self.lease_ttl)
            if waited >= longest:
                break
            pause = min(pause, longest - waited)
            await calls.pause(pause)
            waited, pause = waited + pause, min(2 * pause, _LONGEST_PAUSE)
        await self._load_only(pending, reads)
        self.count(reads)
        return reads.found

    async def _serve(self, keys: list[str], reads: Reads) -> list[str]:
        """Read the keys, fill those without a value, and return those that another reader is filling."""
        # The generation comes with the entries, before anything is loaded: a value loaded across a bump has the old
        # generation and is never served (I6).
        try:
            read = partial(self.store.read, [self._name(k) for k in keys], generation_key(self.namespace))
            found, generation = await reads.calls.store(read)
            missing = self._served(keys, found, generation, reads)
            if missing and self._floors.must_be_read(found):
                await reads.calls.store(partial(self._floors.read, generation))
        except Unavailable as error:
            self._note_unreachable(error)
            await self._load_only([key for key in keys if key not in reads.found], reads)
            return []
        now = self.clock()
        busy: list[str] = []
        leases: dict[str, Lease] = {}
        writes: list[ConditionalWrite] = []
        for key, (stored, entry) in missing.items():
            if entry and entry.is_being_filled(generation, now, _CLOCK_SLACK * self.lease_ttl):
                busy.append(key)
            else:
                lease = leased(entry, generation, now + self.lease_ttl)
                meta = encode(lease, _nonce())
                leases[key] = Lease(lease, meta, stored is None)
                expected = stored.meta if stored else None
                writes.append(ConditionalWrite(self._name(key), expected, meta, None, self._lease_ttl(entry, lease)))
        if not leases:
            return busy
        conflicts, unmade, _ = await self._write(writes, reads)
        busy += [key for key in leases if self._name(key) in conflicts]
        # First, so that a failed load leaves none of these leases behind.
        await self._fill({k: v for k, v in leases.items() if self._name(k) not in conflicts | unmade}, reads)
        await self._load_only([key for key in leases if self._name(key) in unmade], reads)
        return busy

    def _served(
        self, keys: list[str], found: list[StoredEntry | None], generation: str, reads: Reads
    ) -> dict[str, tuple[StoredEntry | None, Entry | None]]:
        """Record the values that may be served; return the other keys with the store's entries for them."""
        now = self.clock()
        missing: dict[str, tuple[StoredEntry | None, Entry | None]] = {}
        for key, stored in zip(keys, found, strict=True):
            entry = decode(stored.meta) if stored else None
            if stored and entry and entry.serves(generation, now) and reads.accepts(stored.value):
                reads.found[key] = Cached(stored.value, Outcome.HIT)
            else:
                missing[key] = stored, entry
        return missing

    async def _load_only(self, keys: list[str], reads: Reads) -> None:
        if keys:
            loaded = await reads.calls.load(dict.fromkeys(keys))
            reads.found.update((key, Cached(loaded[key].value, Outcome.MISS)) for key in keys)

    async def _fill(self, leases: dict[str, Lease], reads: Reads) -> None:
        """Load the leased keys, and store each value whose lease was not replaced."""
        if not leases:
            return
        began = self.clock()
        generation = next(iter(leases.values())).entry.generation
        try:
            # I6: after the leases were written. An invalidation from here on replaces its lease.
            floors = await self._read_floors(generation, reads)
            of = {key: lease.entry.tokens for key, lease in leases.items()}
            loaded = await reads.calls.load({key: Held(of[key], floors) if of[key] or floors else None for key in of})
            values = {key: loaded[key] for key in leases}
        except (Exception, asyncio.CancelledError):
            await self._write([self._emptied(key, lease.entry, lease.meta) for key, lease in leases.items()], reads)
            raise
        now = self.clock()
        self.count_fill_time(min(max(0.0, now - began), self.lease_ttl))  # the clock may have been set
        until = now + self.value_ttl if self.value_ttl is not None else 0.0
        fills: dict[str, ConditionalWrite] = {}
        releases = []
        for key, lease in leases.items():
            entry = filled(lease.entry, values[key], floors, until)
            if entry is None:
                reads.too_old += values[key].canonical
                releases.append(self._emptied(key, lease.entry, lease.meta))
            else:
                meta = encode(entry, _nonce())
                ttl = self._value_ttl(entry)
                fills[key] = ConditionalWrite(self._name(key), lease.meta, meta, values[key].value, ttl)
        conflicts, unmade, refused = await self._write([*fills.values(), *releases], reads)
        # No reader should wait for a value that the store refuses.
        left = [key for key in fills if self._name(key) in refused]
        await self._write([self._emptied(key, leases[key].entry, leases[key].meta) for key in left], reads)
        for key, lease in leases.items():
            stored = key in fills and self._name(key) not in conflicts | unmade
            reads.adds += stored and lease.is_first
            reads.found[key] = Cached(values[key].value, Outcome.FILLED if stored else Outcome.DROPPED)

    async def _write(self, writes: list[ConditionalWrite], reads: Reads) -> tuple[set[str], set[str], set[str]]:
        """Write, and let no error fail the application; return the keys in conflict, those unmade, those refused."""
        if not writes:
            return set(), set(), set()
        try:
            return set(await reads.calls.store(partial(self.store.compare_and_set, writes))), set(), set()
        except StoreFull as full:
            self._note_unreachable(full)
            return set(full.conflicts), set(full.refused), set(full.refused)
        except Unavailable as error:
            self._note_unreachable(error)
            return set(), {write.key for write in writes}, set()

    def _emptied(self, key: str, entry: Entry, meta: bytes) -> ConditionalWrite:
        """Return the write that leaves only the tokens of a lease or a value, if it has any."""
        rest = emptied(entry)
        ttl = self._floors.longest if entry.state is State.VALUE else KEEP
        return ConditionalWrite(self._name(key), meta, None if rest is None else encode(rest, _nonce()), None, ttl)

    def _lease_ttl(self, entry: Entry | None, lease: Entry) -> float:
        # A lease over a tombstone replaces it and has to last as long: if shorter, a late read could be stored; if
        # longer, a key whose reads are never fresher would never be cached again.
        if not lease.tokens:
            return self.lease_ttl
        return self._floors.longest if entry and entry.state is State.VALUE else KEEP

    def _value_ttl(self, entry: Entry) -> float:
        if self.value_ttl is None:
            return FOREVER
        # Until its end, a value discards invalidations that it reflects. After that it replaces their tombstones.
        return self.value_ttl + self._floors.longest if entry.tokens or entry.kept else self.value_ttl

    async def _read_floors(self, generation: str, reads: Reads) -> Tokens:
        try:
            return await reads.calls.store(partial(self._floors.read, generation))
        except Unavailable as error:
            self._note_unreachable(error)
            return {}

    def _name(self, key: str) -> str:
        return entry_key(self.namespace, key)

    def _note_unreachable(self, error: Unavailable) -> None:
        self.count_unreachable()
        if self._warning.is_due():
            what = "does not store everything that it loads" if isinstance(error, StoreFull) else "is bypassed"
            _log.warning("cache namespace %s %s, values come from the source: %s", self.namespace, what, error)


def _nonce() -> str:
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class _CallsInThread(Calls):
    """Makes the calls in the thread that waits for them, so no coroutine ever has to wait."""

    load_many: LoadMany
    sleep: Callable[[float], None]

    async def store(self, call: Callable[[], T]) -> T:
        return call()

    async def load(self, wanted: Mapping[str, Tokens | None]) -> Mapping[str, LoadedValue]:
        return self.load_many(wanted)

    async def pause(self, seconds: float) -> None:
        self.sleep(seconds)


AsyncLoad = Callable[[str, Tokens | None], Awaitable[LoadedValue]]
"""``Load``, as a coroutine function."""

AsyncLoadMany = Callable[[Mapping[str, Tokens | None]], Awaitable[Mapping[str, LoadedValue]]]
"""``LoadMany``, as a coroutine function."""


class AsyncTokenCache:
    """``TokenCache`` for coroutines: ``cache`` has the settings and the counters, and may be used by threads, too.

    Loaders are awaited, and so are waits for other readers. The store is called in threads of ``asyncio``.
    """

    def __init__(self, cache: TokenCache) -> None:
        self.cache = cache

    async def get_or_load(self, key: str, load: AsyncLoad, *, refused: bytes | None = None) -> Cached:
        async def load_many(wanted: Mapping[str, Tokens | None]) -> Mapping[str, LoadedValue]:
            return {key: await load(key, wanted[key])}

        return (await self.get_many([key], load_many, refused=refused))[key]

    async def get_many(
        self, keys: Iterable[str], load_many: AsyncLoadMany, *, refused: bytes | None = None
    ) -> dict[str, Cached]:
        return await self.cache.read(keys, _AwaitedCalls(load_many), refused)

    async def invalidate(self, *keys: str, token: EventToken | None = None) -> bool:
        return await asyncio.to_thread(self.cache.invalidate, *keys, token=token)


@dataclass(frozen=True, slots=True)
class _AwaitedCalls(Calls):
    load_many: AsyncLoadMany

    async def store(self, call: Callable[[], T]) -> T:
        return await asyncio.to_thread(call)

    async def load(self, wanted: Mapping[str, Tokens | None]) -> Mapping[str, LoadedValue]:
        return await self.load_many(wanted)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
