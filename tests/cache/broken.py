"""Stores and rules of a cache that each lack one guard on purpose, to check that the tests of I6 notice.

``GUARDS`` names them; a test replaces a rule where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest

from relay.cache.entry import (
    UNPLACED,
    Entry,
    Folded,
    LoadedValue,
    State,
    Tokens,
    decode,
    encode,
    filled,
    fold,
    order_of,
)
from relay.cache.floors import Floors
from relay.cache.invalidator import InvalidationCounts, Invalidator
from relay.cache.store import KEEP, READ, ConditionalWrite, Store, entry_key, generation_key
from relay.cache.token_cache import TokenCache
from relay.errors import StoreFull
from relay.token import EventToken, Order
from tests.cache.steps import WrappedStore
from tests.cache.world import LEASE_TTL

_nonces = count()


class BrokenStore(WrappedStore):
    """Each subclass breaks the writes of a store in one way."""

    def compare_and_set(self, writes: Sequence[ConditionalWrite]) -> dict[str, bytes | None]:
        return self.inner.compare_and_set([self.broken(write) for write in writes])

    def broken(self, write: ConditionalWrite) -> ConditionalWrite:
        return write


class UnguardedFills(BrokenStore):
    """Stores a value over any current entry, as a plain SET does."""

    def broken(self, write: ConditionalWrite) -> ConditionalWrite:
        if write.value is None:
            return write
        current = self.inner.compare_and_set([ConditionalWrite(write.key, READ, None, None, KEEP)])
        return write._replace(expected=current[write.key])


class LateGeneration(BrokenStore):
    """Stores a value with the generation read when it is stored, not before it was loaded."""

    def broken(self, write: ConditionalWrite) -> ConditionalWrite:
        if write.value is None or write.meta is None:
            return write
        generation = self.inner.generation(generation_key(write.key.partition(":")[0]))
        return write._replace(meta=encode(replace(decode(write.meta), generation=generation), f"x{next(_nonces)}"))


class NoLeases(BrokenStore):
    """Writes no leases, and fills an entry that is still missing, or still the same tombstone."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.found: dict[bytes | None, bytes | None] = {}

    def compare_and_set(self, writes: Sequence[ConditionalWrite]) -> dict[str, bytes | None]:
        made = []
        for write in writes:
            if write.meta and decode(write.meta).state is State.LEASE:
                self.found[write.meta] = write.expected
            elif write.expected not in self.found:
                made.append(write)
            elif write.value is not None:
                made.append(write._replace(expected=self.found[write.expected]))
        return self.inner.compare_and_set(made)


def stores_whatever_is_loaded(lease: Entry, loaded: LoadedValue, floors: Tokens, until: float = 0.0) -> Entry:
    return Entry(State.VALUE, lease.generation, dict(loaded.tokens), until)


def takes_any_spelling(lease: Entry, loaded: LoadedValue, floors: Tokens, until: float = 0.0) -> Entry | None:
    return filled(lease, replace(loaded, canonical=True), floors, until)


def lease_without_tokens(_: Entry | None, generation: str, until: float) -> Entry:
    return Entry(State.LEASE, generation, {}, until)


def serves_any(entry: Entry, *_: Any) -> bool:
    return entry.state is State.VALUE


def forgets_components(_: Entry | None, token: EventToken | None, generation: str) -> Entry:
    return Entry(State.TOMBSTONE, generation, {token.shard if token else UNPLACED: token})


def takes_unknown_for_older(entry: Entry | None, token: EventToken | None) -> Order:
    order = order_of(entry, token)
    return Order.OLDER if order is Order.UNKNOWN else order


def are_above_anything(tokens: Mapping[str, EventToken], floors: Tokens) -> bool:
    return True


def only_notes_losses(floors: Floors, losses: str, now: float) -> Floors:
    return replace(floors, losses=losses)


def oldest_floors(floors: Floors, now: float, tombstone_ttl: float) -> dict[str, EventToken | None]:
    return {shard: held[0] for shard, held in floors.periods[0].tokens.items() if shard in floors.begun}


def begins_with_any_published_since(token: EventToken, floors: Floors, published_since: str | None) -> bool:
    return published_since in (None, floors.since)


def announces_late(
    invalidator: Invalidator, pairs: Sequence[tuple[str, EventToken | None]], *, published_since: str = ""
) -> None:
    entries: dict[str, list[EventToken | None]] = {}
    for key, token in pairs:
        entries.setdefault(entry_key(invalidator.namespace, key), []).append(token)
    invalidator._apply(entries, InvalidationCounts())
    _announce(invalidator, [token for _, token in pairs], published_since)


def outlives_nothing(entry: Entry, now: float) -> Entry | None:
    return None


def value_ttl_alone(cache: TokenCache, entry: Entry) -> float:
    return cache.value_ttl or 0.0


def forgets_what_values_replaced(entry: Entry, generation: str) -> dict[str, EventToken | None]:
    return dict(entry.tokens)


def forgets_everything(entry: Entry) -> None:
    return None


def leaves_what_is_refused(
    _: Invalidator, writes: Sequence[ConditionalWrite], full: StoreFull
) -> dict[str, bytes | None]:
    return full.conflicts


def leaves_leases(entry: Entry | None, tokens: Sequence[EventToken | None], generation: str) -> Folded:
    if entry is not None and entry.state is State.LEASE:
        return Folded(None, 0, len(tokens), 0)
    return fold(entry, tokens, generation)


_announce = Invalidator._announce


@dataclass(frozen=True)
class MissingGuard:
    """``store``: what stands around the store, if anything. ``rule``: the name of a rule, and what takes its place."""

    store: Callable[[Store], Store] | None = None
    rule: tuple[str, Callable[..., Any]] | None = None

    @contextmanager
    def missing(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            if self.rule:
                patch.setattr(*self.rule)
            yield


_CACHE = "relay.cache.token_cache"
_FLOORS = "relay.cache.floors.Floors"
_INVALIDATOR = "relay.cache.invalidator.Invalidator"

GUARDS = {
    "fills without a guard": MissingGuard(UnguardedFills),
    "the generation read when a value is stored": MissingGuard(LateGeneration),
    "no leases, and a tombstone evicted early": MissingGuard(NoLeases),
    "a lease that ends before the tombstone it replaced": MissingGuard(
        rule=(f"{_CACHE}.TokenCache._lease_ttl", lambda *_: LEASE_TTL)
    ),
    "a full store that keeps a value whose tombstone it refuses": MissingGuard(
        rule=(f"{_INVALIDATOR}.delete", leaves_what_is_refused)
    ),
    "a full store that keeps its floors": MissingGuard(rule=(f"{_INVALIDATOR}._forget_floors", lambda *_: None)),
    "one component only": MissingGuard(rule=("relay.cache.entry._tombstone", forgets_components)),
    "a fill over nothing that asks for no floor": MissingGuard(
        rule=("relay.cache.entry.are_above", are_above_anything)
    ),
    "floors that ignore evictions": MissingGuard(rule=(f"{_FLOORS}.after_losses", only_notes_losses)),
    "floors that ignore expired tombstones": MissingGuard(rule=(f"{_FLOORS}.at", oldest_floors)),
    "floors that begin with a change published long before": MissingGuard(
        rule=("relay.cache.floors._begins", lambda *_: True)
    ),
    "floors that begin with an old change published late": MissingGuard(
        rule=("relay.cache.floors._begins", begins_with_any_published_since)
    ),
    "floors that last when their shard has ended": MissingGuard(rule=("relay.cache.floors._ended", lambda _: set())),
    "tokens announced after their tombstones are written": MissingGuard(rule=(f"{_INVALIDATOR}.apply", announces_late)),
    "an expired value that discards an invalidation and then goes": MissingGuard(
        rule=("relay.cache.invalidator.outlived", outlives_nothing)
    ),
    "a value that goes before the tombstone it replaced": MissingGuard(
        rule=(f"{_CACHE}.TokenCache._value_ttl", value_ttl_alone)
    ),
    "a value of the primary that forgets what it replaced": MissingGuard(
        rule=("relay.cache.entry.required", forgets_what_values_replaced)
    ),
    "a change of the application that drops no load": MissingGuard(
        rule=(f"{_CACHE}.TokenCache._drop", lambda *_: None)
    ),
    "a dropped value that forgets what it replaced": MissingGuard(rule=(f"{_CACHE}.emptied", forgets_everything)),
    "any generation is served": MissingGuard(rule=("relay.cache.entry.Entry.serves", serves_any)),
    "unknown is older": MissingGuard(rule=("relay.cache.entry.order_of", takes_unknown_for_older)),
    "every loaded value is stored": MissingGuard(rule=(f"{_CACHE}.filled", stores_whatever_is_loaded)),
    "a value under another spelling of its key": MissingGuard(rule=(f"{_CACHE}.filled", takes_any_spelling)),
    "a lease without tokens": MissingGuard(rule=(f"{_CACHE}.leased", lease_without_tokens)),
    "an invalidation that leaves leases alone": MissingGuard(rule=("relay.cache.invalidator.fold", leaves_leases)),
}
