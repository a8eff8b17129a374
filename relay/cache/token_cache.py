"""The cache as an application uses it: read values, and fill the cache without storing stale ones.

``relay.cache.entry`` holds the rules; this module calls the store, the loader and the clock, with a lease around every
load. I6 depends on the order of those calls: run ``tests/cache/test_interleavings.py`` after changing it. A coroutine
gives the order. Threads make its calls here, and coroutines in ``relay.cache.async_cache``.
"""

import logging
import secrets
import threading
import time
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from relay.cache.entry import Entry, Held, LoadedValue, State, Tokens, decode, emptied, encode, filled, leased
from relay.cache.floors import FloorsReader
from relay.cache.invalidator import Invalidator
from relay.cache.keys import row_keys
from relay.cache.reads import Cached, Calls, FillTime, Lease, Outcome, Reads
from relay.cache.store import FOREVER, KEEP, ConditionalWrite, Store, StoredEntry, entry_key, generation_key
from relay.errors import StoreFull, Unavailable
from relay.process.seldom import Seldom
from relay.token import EventToken

_log = logging.getLogger(__name__)

Load = Callable[[str, Tokens | None], LoadedValue]
"""Loads one key. The second argument is what to compare the read with (a ``Held``), or None."""

LoadMany = Callable[[Mapping[str, Tokens | None]], Mapping[str, LoadedValue]]
"""Loads the keys of the mapping, whose values are what to compare each read with. Returns all keys."""

T = TypeVar("T")

_CLOCK_SLACK = 2  # lease times, since clocks and settings of other processes may differ by one
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.05  # seconds before a key that another reader fills is read again; doubles


class TokenCache:
    """A cache that serves no value older than an applied invalidation (I6). Threads may share it.

    ``tombstone_ttl``: seconds, the same as the invalidator's. ``value_ttl``: seconds for which a value is served; None
    means no end. ``lease_ttl``: seconds a load may take, ``tombstone_ttl`` at most; after that another reader may load
    too, and only one of the two values is stored. ``lease_wait``: seconds to wait for a value that another reader is
    loading; None means about as long as loads take, and ``lease_ttl`` at most.

    ``hits`` and ``misses`` count keys. ``misses`` are ``adds`` (stored where there was no entry), ``compare_and_sets``
    (stored in place of one) and ``no_ops`` (loaded and not stored), ``too_old`` of them because the read was not known
    to be fresh enough. ``unreachable`` counts failed calls to the store; values are then loaded and not stored.
    """

    def __init__(
        self,
        store: Store,
        namespace: str,
        *,
        tombstone_ttl: float = 3600.0,
        value_ttl: float | None = None,
        lease_ttl: float = 5.0,
        lease_wait: float | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        nonce: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        if lease_ttl > tombstone_ttl:
            raise ValueError(
                f"lease_ttl, {lease_ttl:g} s, must be at most tombstone_ttl, {tombstone_ttl:g} s: what a load has to "
                "reflect is remembered for no longer, and what it returns after that is not stored"
            )
        self.store = store
        self.namespace = namespace
        self.tombstone_ttl = tombstone_ttl
        self.value_ttl = value_ttl
        self.lease_ttl = lease_ttl
        self.lease_wait = lease_wait
        self._invalidator = Invalidator(store, namespace, tombstone_ttl=tombstone_ttl)
        self._clock = clock
        self._sleep = sleep
        self._nonce = nonce
        self._floors = FloorsReader(store, namespace, tombstone_ttl, clock)
        self._warning = Seldom()
        self._lock = threading.Lock()  # guards everything below; never held during a call to the store or the loader
        self._fill_time = FillTime()
        self.hits = 0
        self.misses = 0
        self.adds = 0
        self.compare_and_sets = 0
        self.no_ops = 0
        self.too_old = 0
        self.unreachable = 0

    def get_or_load(self, key: str, load: Load, *, refused: bytes | None = None) -> Cached:
        """Return the cached value, or load it, and store it if that is safe. Raises what ``load`` raises.

        ``refused``: a value that the caller cannot read, to be loaded again.
        """
        return self.get_many([key], lambda wanted: {key: load(key, wanted[key])}, refused=refused)[key]

    def get_many(self, keys: Iterable[str], load_many: LoadMany, *, refused: bytes | None = None) -> dict[str, Cached]:
        """Return each key's value; keys without one are loaded together. Raises what the loader raises."""
        reading = self.read(keys, _CallsInThread(load_many, self._sleep), refused)
        try:
            reading.send(None)
        except StopIteration as end:
            results: dict[str, Cached] = end.value
            return results
        raise RuntimeError("a read waits for something that no thread can wait for")

    def invalidate(self, *keys: str, token: EventToken | None = None) -> bool:
        """Serve no value of these keys that was read before, also none that is being loaded now.

        For an application that has just committed a change, which the relay's own invalidation follows. ``token``: the
        token of the change, if it is known: no read of a copy that lags behind it is stored. Return False if the store
        cannot be reached.
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
        """Do as ``invalidate`` with the keys of rows, such as the old and the new one of an item that was written.

        ``templates``: as in ``cache.keys``. ``rows``: as for ``key_text``.
        """
        return self.invalidate(*row_keys(templates, rows))

    def _drop(self, keys: list[str]) -> None:
        """Take values and leases out of entries, and keep their tokens. Raises ``Unavailable``."""
        while keys:
            found, generation = self.store.read([*map(self._name, keys)], generation_key(self.namespace))
            if self._floors.must_be_read(found):
                self._floors.read(generation)
            drops = []
            for key, stored in zip(keys, found, strict=True):
                entry = decode(stored.meta) if stored else None
                if stored and entry and entry.state is not State.TOMBSTONE:
                    drops.append(self._emptied(key, entry, stored.meta))
            # A fill may have come between, of a value that was read before.
            try:
                conflicts = self.store.compare_and_set(drops) if drops else {}
            except StoreFull as full:
                conflicts = self._invalidator.delete(drops, full)
            keys = [key for key in keys if self._name(key) in conflicts]

    async def read(self, keys: Iterable[str], calls: Calls, refused: bytes | None = None) -> dict[str, Cached]:
        """Do as ``get_many``, by ``calls``."""
        pending = list(dict.fromkeys(keys))
        reads = Reads(calls, refused)
        waited, pause = 0.0, _FIRST_PAUSE
        while pending:
            pending = await self._serve(pending, reads)
            if not pending or waited >= (longest := self._longest_wait()):
                break
            pause = min(pause, longest - waited)
            await calls.pause(pause)
            waited, pause = waited + pause, min(2 * pause, _LONGEST_PAUSE)
        await self._load_only(pending, reads)
        self._count(reads)
        return reads.found

    def _longest_wait(self) -> float:
        """Return how many seconds to wait for values that other readers load."""
        if self.lease_wait is not None:
            return self.lease_wait
        with self._lock:
            return self._fill_time.longest(self.lease_ttl)

    async def _serve(self, keys: list[str], reads: Reads) -> list[str]:
        """Read the keys, fill the ones that lack a value, and return the ones that another reader is filling."""
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
        now = self._clock()
        busy: list[str] = []
        leases: dict[str, Lease] = {}
        writes: list[ConditionalWrite] = []
        for key, (stored, entry) in missing.items():
            if entry and entry.is_being_filled(generation, now, _CLOCK_SLACK * self.lease_ttl):
                busy.append(key)
            else:
                lease = leased(entry, generation, now + self.lease_ttl)
                meta = encode(lease, self._nonce())
                leases[key] = Lease(lease, meta, stored is None)
                expected = stored.meta if stored else None
                writes.append(ConditionalWrite(self._name(key), expected, meta, None, self._lease_ttl(entry, lease)))
        if not leases:
            return busy
        conflicts, unmade, _ = await self._write(writes, reads)
        busy += [key for key in leases if self._name(key) in conflicts]
        # First, so that no failed load leaves these leases behind.
        await self._fill({k: v for k, v in leases.items() if self._name(k) not in conflicts | unmade}, reads)
        await self._load_only([key for key in leases if self._name(key) in unmade], reads)
        return busy

    def _served(
        self, keys: list[str], found: list[StoredEntry | None], generation: str, reads: Reads
    ) -> dict[str, tuple[StoredEntry | None, Entry | None]]:
        """Note the values that may be served, and return the other keys with what the store has for them."""
        now = self._clock()
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
        """Load the leased keys, and store each value whose lease has not been replaced."""
        if not leases:
            return
        began = self._clock()
        generation = next(iter(leases.values())).entry.generation
        try:
            # I6: after the leases were written. An invalidation from here on replaces its lease.
            floors = await self._read_floors(generation, reads)
            of = {key: lease.entry.tokens for key, lease in leases.items()}
            loaded = await reads.calls.load({key: Held(of[key], floors) if of[key] or floors else None for key in of})
            values = {key: loaded[key] for key in leases}
        except (Exception, CancelledError):
            await self._write([self._emptied(key, lease.entry, lease.meta) for key, lease in leases.items()], reads)
            raise
        now = self._clock()
        with self._lock:
            self._fill_time.add(min(max(0.0, now - began), self.lease_ttl))  # the clock may have been set
        until = now + self.value_ttl if self.value_ttl is not None else 0.0
        fills: dict[str, ConditionalWrite] = {}
        releases = []
        for key, lease in leases.items():
            entry = filled(lease.entry, values[key], floors, until)
            if entry is None:
                reads.too_old += values[key].canonical
                releases.append(self._emptied(key, lease.entry, lease.meta))
            else:
                meta = encode(entry, self._nonce())
                ttl = self._value_ttl(entry)
                fills[key] = ConditionalWrite(self._name(key), lease.meta, meta, values[key].value, ttl)
        conflicts, unmade, refused = await self._write([*fills.values(), *releases], reads)
        # No reader waits for a value that the store does not take.
        left = [key for key in fills if self._name(key) in refused]
        await self._write([self._emptied(key, leases[key].entry, leases[key].meta) for key in left], reads)
        for key, lease in leases.items():
            stored = key in fills and self._name(key) not in conflicts | unmade
            reads.adds += stored and lease.is_first
            reads.found[key] = Cached(values[key].value, Outcome.FILLED if stored else Outcome.DROPPED)

    async def _write(self, writes: list[ConditionalWrite], reads: Reads) -> tuple[set[str], set[str], set[str]]:
        """Write; return the names of the conflicts, of what was not written for another reason, and of what is refused.

        A store that is full or cannot be reached must not fail the application.
        """
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
        return ConditionalWrite(self._name(key), meta, None if rest is None else encode(rest, self._nonce()), None, ttl)

    def _lease_ttl(self, entry: Entry | None, lease: Entry) -> float:
        # A lease over a tombstone replaces it and has to last as long: if shorter, a late read could be stored; if
        # longer, a key whose reads are never fresher would never be cached again.
        if not lease.tokens:
            return self.lease_ttl
        return self._floors.longest if entry and entry.state is State.VALUE else KEEP

    def _value_ttl(self, entry: Entry) -> float:
        if self.value_ttl is None:
            return FOREVER
        # Until its end a value discards invalidations that it reflects. After that it stands for their tombstones.
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
        with self._lock:
            self.unreachable += 1
        if self._warning.is_due():
            what = "does not store all that it loads" if isinstance(error, StoreFull) else "is bypassed"
            _log.warning("cache namespace %s %s, values come from the source: %s", self.namespace, what, error)

    def _count(self, reads: Reads) -> None:
        hits = fills = 0
        for cached in reads.found.values():
            hits += cached.outcome is Outcome.HIT
            fills += cached.outcome is Outcome.FILLED
        misses = len(reads.found) - hits
        with self._lock:
            self.hits += hits
            self.misses += misses
            self.adds += reads.adds
            self.compare_and_sets += fills - reads.adds
            self.no_ops += misses - fills
            self.too_old += reads.too_old


class _CallsInThread(Calls):
    """Makes the calls in the thread that waits for them, so no coroutine ever has to wait."""

    def __init__(self, load_many: LoadMany, sleep: Callable[[float], None]) -> None:
        self._load_many = load_many
        self._sleep = sleep

    async def store(self, call: Callable[[], T]) -> T:
        return call()

    async def load(self, wanted: Mapping[str, Tokens | None]) -> Mapping[str, LoadedValue]:
        return self._load_many(wanted)

    async def pause(self, seconds: float) -> None:
        self._sleep(seconds)
