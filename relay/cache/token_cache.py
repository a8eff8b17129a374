"""The cache as an application uses it: read values, and fill the cache without storing stale ones.

``relay.cache.entry`` holds the rules; this module calls the store, the loader and the clock, with a lease around every
load. I6 depends on the order of those calls: run ``tests/cache/test_interleavings.py`` after changing it.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from relay.cache.entry import Entry, LoadedValue, State, Tokens, decode, encode, filled, leased, released
from relay.cache.store import FOREVER, KEEP, ConditionalWrite, Store, entry_key, generation_key
from relay.errors import Unavailable

_log = logging.getLogger(__name__)

Load = Callable[[str, Tokens | None], LoadedValue]
"""Loads one key. The second argument is what to compare the read with, None for nothing."""

LoadMany = Callable[[Mapping[str, Tokens | None]], Mapping[str, LoadedValue]]
"""Loads the keys of the mapping, whose values are what to compare each read with. Returns all keys."""

_CLOCK_SLACK = 2  # lease times, since clocks and settings of other processes may differ by one
_FIRST_PAUSE = 0.005  # seconds before a key that another reader fills is read again; doubles


class Outcome(StrEnum):
    """How a value was found.

    HIT: from the cache. FILLED: loaded and stored. DROPPED: loaded, but not stored, because the entry was invalidated
    meanwhile or the read was not fresher. MISS: loaded without an attempt to store it, because another reader was
    filling it or the store could not be reached.
    """

    HIT = "hit"
    FILLED = "filled"
    DROPPED = "dropped"
    MISS = "miss"


@dataclass(frozen=True, slots=True)
class Cached:
    """A value (None: there is no such item) and where it came from."""

    value: bytes | None
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class _Lease:
    entry: Entry
    meta: bytes


class TokenCache:
    """A cache that serves no value older than an applied invalidation (I6). Shared by threads.

    ``tombstone_ttl``: seconds, the same as the invalidator's. ``value_ttl``: seconds for which a value is served, None
    for no end. ``lease_ttl``: seconds a load may take; after that another reader may load too, and only one of the two
    values is stored. ``lease_wait``: seconds to wait for a value that another reader is loading. ``hits``, ``filled``,
    ``dropped`` and ``misses`` count keys by outcome, ``unreachable`` the failed calls to the store, after which the
    value is loaded and not stored.
    """

    def __init__(
        self,
        store: Store,
        namespace: str,
        *,
        tombstone_ttl: float = 3600.0,
        value_ttl: float | None = None,
        lease_ttl: float = 5.0,
        lease_wait: float = 0.1,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        nonce: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self.store = store
        self.namespace = namespace
        self.tombstone_ttl = tombstone_ttl
        self.value_ttl = value_ttl
        self.lease_ttl = lease_ttl
        self.lease_wait = lease_wait
        self._clock = clock
        self._sleep = sleep
        self._nonce = nonce
        self._lock = threading.Lock()  # guards everything below; never held during a call to the store or the loader
        self._is_reachable = True
        self.hits = 0
        self.filled = 0
        self.dropped = 0
        self.misses = 0
        self.unreachable = 0

    def __repr__(self) -> str:
        return f"<TokenCache[{self.namespace}, hits={self.hits}, filled={self.filled}]>"

    def get_or_load(self, key: str, load: Load) -> Cached:
        """Return the cached value, or load it, and store it if that is safe. Raises what ``load`` raises."""
        return self.get_many([key], lambda wanted: {key: load(key, wanted[key])})[key]

    def get_many(self, keys: Iterable[str], load_many: LoadMany) -> dict[str, Cached]:
        """Return each key's value; keys without one are loaded together. Raises what the loader raises."""
        pending = list(dict.fromkeys(keys))
        results: dict[str, Cached] = {}
        waited, pause = 0.0, _FIRST_PAUSE
        while pending:
            pending = self._serve(pending, load_many, results)
            if not pending or waited >= self.lease_wait:
                break
            pause = min(pause, self.lease_wait - waited)
            self._sleep(pause)
            waited, pause = waited + pause, pause * 2
        self._load_only(pending, load_many, results)
        self._count(results)
        return results

    def _serve(self, keys: list[str], load_many: LoadMany, results: dict[str, Cached]) -> list[str]:
        """Read the keys, fill those that lack a value, and return those that another reader is filling."""
        # The generation comes with the entries, before anything is loaded: a value loaded across a bump has the old
        # generation and is never served (I6).
        try:
            found, generation = self.store.read([self._name(k) for k in keys], generation_key(self.namespace))
        except Unavailable as error:
            self._note_unreachable(error)
            self._load_only(keys, load_many, results)
            return []
        with self._lock:
            self._is_reachable = True
        now = self._clock()
        busy: list[str] = []
        leases: dict[str, _Lease] = {}
        writes: list[ConditionalWrite] = []
        for key, stored in zip(keys, found, strict=True):
            entry = decode(stored.meta) if stored else None
            if stored and entry and entry.serves(generation, now):
                results[key] = Cached(stored.value, Outcome.HIT)
            elif entry and entry.is_being_filled(generation, now, _CLOCK_SLACK * self.lease_ttl):
                busy.append(key)
            else:
                lease = leased(entry, generation, now + self.lease_ttl)
                meta = encode(lease, self._nonce())
                leases[key] = _Lease(lease, meta)
                expected = stored.meta if stored else None
                writes.append(ConditionalWrite(self._name(key), expected, meta, None, self._lease_ttl(entry, lease)))
        conflicts = self._write(writes)
        busy += [key for key in leases if self._name(key) in conflicts]
        self._fill({k: v for k, v in leases.items() if self._name(k) not in conflicts}, load_many, results)
        return busy

    def _load_only(self, keys: list[str], load_many: LoadMany, results: dict[str, Cached]) -> None:
        if keys:
            loaded = load_many(dict.fromkeys(keys))
            results.update((key, Cached(loaded[key].value, Outcome.MISS)) for key in keys)

    def _fill(self, leases: dict[str, _Lease], load_many: LoadMany, results: dict[str, Cached]) -> None:
        """Load the leased keys, and store each value whose lease has not been replaced."""
        if not leases:
            return
        try:
            # I6: after the lease was written. An invalidation from here on replaces the lease.
            loaded = load_many({key: lease.entry.tokens or None for key, lease in leases.items()})
            values = {key: loaded[key] for key in leases}
        except Exception:
            self._write([self._release(key, lease) for key, lease in leases.items()])
            raise
        until = self._clock() + self.value_ttl if self.value_ttl is not None else 0.0
        fills: dict[str, ConditionalWrite] = {}
        releases = []
        for key, lease in leases.items():
            entry = filled(lease.entry, values[key], until)
            if entry is None:
                releases.append(self._release(key, lease))
            else:
                meta = encode(entry, self._nonce())
                ttl = self._value_ttl(entry)
                fills[key] = ConditionalWrite(self._name(key), lease.meta, meta, values[key].value, ttl)
        conflicts = self._write([*fills.values(), *releases])
        for key in leases:
            stored = key in fills and self._name(key) not in conflicts
            results[key] = Cached(values[key].value, Outcome.FILLED if stored else Outcome.DROPPED)

    def _write(self, writes: list[ConditionalWrite]) -> set[str]:
        """Write; return the names not written. An unreachable store must not fail the application."""
        if not writes:
            return set()
        try:
            return set(self.store.compare_and_set(writes))
        except Unavailable as error:
            self._note_unreachable(error)
            return {write.key for write in writes}

    def _release(self, key: str, lease: _Lease) -> ConditionalWrite:
        entry = released(lease.entry)
        meta = None if entry is None else encode(entry, self._nonce())
        return ConditionalWrite(self._name(key), lease.meta, meta, None, KEEP)

    def _lease_ttl(self, entry: Entry | None, lease: Entry) -> float:
        # A lease over a tombstone replaces it and has to last as long: if shorter, a late read could be stored; if
        # longer, a key whose reads are never fresher would never be cached again.
        if not lease.tokens:
            return self.lease_ttl
        return self.tombstone_ttl if entry and entry.state is State.VALUE else KEEP

    def _value_ttl(self, entry: Entry) -> float:
        # The tokens of an expired value still keep older reads of other copies out.
        if self.value_ttl is None:
            return FOREVER
        return max(self.value_ttl, self.tombstone_ttl) if entry.tokens else self.value_ttl

    def _name(self, key: str) -> str:
        return entry_key(self.namespace, key)

    def _note_unreachable(self, error: Unavailable) -> None:
        with self._lock:
            self.unreachable += 1
            is_first, self._is_reachable = self._is_reachable, False
        if is_first:  # one line for each outage, however many readers it affects
            _log.warning("cache namespace %s is bypassed, values come from the source: %s", self.namespace, error)

    def _count(self, results: Mapping[str, Cached]) -> None:
        with self._lock:
            for cached in results.values():
                match cached.outcome:
                    case Outcome.HIT:
                        self.hits += 1
                    case Outcome.FILLED:
                        self.filled += 1
                    case Outcome.DROPPED:
                        self.dropped += 1
                    case Outcome.MISS:
                        self.misses += 1
