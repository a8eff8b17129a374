"""Stores and rules of a cache that each lack one guard on purpose, to check that the tests of I6 notice.

A test replaces a rule where it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from relay.cache.entry import UNPLACED, Entry, LoadedValue, State, Tokens, decode, encode, order_of
from relay.cache.floors import Floors
from relay.cache.invalidator import InvalidationCounts, Invalidator
from relay.cache.store import KEEP, READ, ConditionalWrite, Store, entry_key, generation_key
from relay.cache.token_cache import TokenCache
from relay.token import EventToken, Order
from tests.cache.steps import WrappedStore

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


def lease_without_tokens(_: Entry | None, generation: str, until: float) -> Entry:
    return Entry(State.LEASE, generation, {}, until)


def lease_without_null_tokens(entry: Entry | None, generation: str, until: float) -> Entry:
    tokens = {shard: held for shard, held in entry.tokens.items() if held} if entry else {}
    return Entry(State.LEASE, generation, tokens, until)


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


_announce = Invalidator._announce


def forgets_everything(entry: Entry) -> None:
    return None
