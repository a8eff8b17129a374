"""A cache entry, its JSON, and the rules by which invalidations and fills change it.

The rules are pure functions: no store, no clock. Every word of I5 and I6 that is about one entry stands
here, so a new rule comes with new vectors in ``tests/cache/test_entry.py`` and goes through
``tests/cache/test_interleavings.py``. The JSON is read by every process that shares a cache: fields may
be added, never given another meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import orjson

from relay.token import EventToken, Order, compare

MAX_COMPONENTS = 8
"""The most tokens an entry holds; the oldest make room."""

UNPLACED = ""
"""The component of invalidations that are known to have happened, but not where: its token is null."""

Tokens = Mapping[str, EventToken | None]
"""Tokens by component, which is the token's qualified shard; or ``UNPLACED`` with None."""


class State(StrEnum):
    """What an entry's tokens mean depends on its state.

    In a VALUE: the value holds every change up to them. In a TOMBSTONE or a LEASE they are the *floor*:
    only a value that holds every change up to them may be stored.
    """

    LEASE = "lease"
    VALUE = "value"
    TOMBSTONE = "tombstone"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry without its value, which the store keeps beside it.

    ``until``: epoch seconds; a lease may be taken over, a value is no longer served from then on. 0: no end.
    """

    state: State
    generation: str
    tokens: Tokens
    until: float = 0.0

    def serves(self, generation: str, now: float) -> bool:
        """Whether the value may be handed to a reader who read this generation after the entry."""
        live = not self.until or now < self.until
        return self.state is State.VALUE and self.generation == generation and live  # I6, I9

    def leased(self, generation: str, now: float, longest: float) -> bool:
        """Whether somebody is filling it, with a result that would be served.

        A lease with more than ``longest`` seconds to go was given by a clock that is far ahead: not waited for.
        """
        live = now < self.until <= now + longest
        return self.state is State.LEASE and self.generation == generation and live


UNREADABLE = Entry(State.TOMBSTONE, "", {UNPLACED: None})
"""Stands for bytes that are no entry: nothing is served, nothing is known, any invalidation is written."""


@dataclass(frozen=True, slots=True)
class LoadedValue:
    """What a loader read.

    ``value`` None: there is no such item, which is cached as such. ``tokens``: one for each shard read from
    a copy that may lag, taken *before* the read. A shard that is left out was read where every committed
    write is seen (a consistent read, the primary), and every loader of that cache key has to do the same.
    ``fresher``: the read reflects every invalidation it was given to compare with.
    """

    value: bytes | None
    tokens: Mapping[str, EventToken]
    fresher: bool


class Folded(NamedTuple):
    """What several invalidations make of one entry. ``entry`` None: leave it as it is."""

    entry: Entry | None
    applied: int
    discarded: int
    unknown: int


def judge(entry: Entry | None, token: EventToken | None) -> Order:
    """Return the order of an invalidation relative to the entry's component for the same shard.

    No entry is older than anything. A null token, and a component the entry lacks, are UNKNOWN.
    """
    if entry is None:
        return Order.NEWER
    return compare(token, entry.tokens.get(_component(token)), positions_only=True)


def _component(token: EventToken | None) -> str:
    return token.shard if token is not None else UNPLACED


def invalidated(entry: Entry | None, token: EventToken | None, generation: str) -> Entry | None:
    """Return what an invalidation makes of an entry; None to discard it (seed 004, "Cache Invalidation").

    ``generation``: one read before the entry. A token of None is unknown and always invalidates.
    """
    order = judge(entry, token)
    if order is Order.OLDER or order is Order.EQUAL:  # I5: only what is known to be included is discarded
        return None
    return _tombstone(entry, token, generation, order)


def _tombstone(entry: Entry | None, token: EventToken | None, generation: str, order: Order) -> Entry:
    shard = _component(token)
    if shard == UNPLACED:
        token = None  # a token that names no shard cannot be compared with any
    if entry is None:
        return Entry(State.TOMBSTONE, generation, {shard: token})
    # I6: the other components stay, or a fill could pass below an invalidation that was applied before.
    tokens = floor(entry, generation)
    replaced = tokens.pop(shard, None)
    tokens[shard] = token
    if replaced is not None and order is Order.UNKNOWN:
        tokens[UNPLACED] = None  # the token kept may be older than the one let go
    return Entry(State.TOMBSTONE, generation, _bounded(tokens))


def fold(entry: Entry | None, tokens: Sequence[EventToken | None], generation: str) -> Folded:
    """Apply several invalidations to one entry, in the order given, as if each had been written."""
    now, applied, discarded, unknown = entry, 0, 0, 0
    for token in tokens:
        order = judge(now, token)
        if order is Order.OLDER or order is Order.EQUAL:
            discarded += 1
            continue
        applied += 1
        unknown += order is Order.UNKNOWN
        now = _tombstone(now, token, generation, order)
    return Folded(now if applied else None, applied, discarded, unknown)


def floor(entry: Entry, generation: str) -> dict[str, EventToken | None]:
    """Return the tokens that a value has to reach to take this entry's place."""
    tokens = dict(entry.tokens)
    if entry.generation != generation:
        tokens[UNPLACED] = None  # I9: between two generations invalidations were lost
    return tokens


def leased(entry: Entry | None, generation: str, until: float) -> Entry:
    """Return the lease under which what the entry lacks is loaded. ``until``: epoch seconds."""
    return Entry(State.LEASE, generation, floor(entry, generation) if entry else {}, until)


def released(lease: Entry) -> Entry | None:
    """Return what a lease leaves behind when nothing is stored; None for no entry."""
    return Entry(State.TOMBSTONE, lease.generation, lease.tokens) if lease.tokens else None


def filled(lease: Entry, loaded: LoadedValue, until: float = 0.0) -> Entry | None:
    """Return the entry of a value loaded under a lease; None where it may not be stored.

    Only the loader's own tokens go in: what it read without a token is cleared by any invalidation.
    """
    tokens = {token.shard: token for token in loaded.tokens.values() if token.shard != UNPLACED}
    if lease.tokens:
        if not loaded.fresher:
            return None
        for shard, held in lease.tokens.items():
            if held and shard in tokens and compare(tokens[shard], held, positions_only=True) is Order.OLDER:
                return None  # I6: its own token says that it is not fresher
    return Entry(State.VALUE, lease.generation, _bounded(dict(tokens)), until)


def is_fresher(tokens: Mapping[str, EventToken], held: Tokens | None) -> bool:
    """Whether a read with these tokens reflects everything in ``held``; None asks for nothing.

    For loaders that read from copies, every shard of the read having its token. An unplaced invalidation
    is reflected by no token: read from the primary instead. A shard that was not read (it was split since)
    is reflected if all shards read of its source are past it. Timestamps do not count: those of a loader are of
    another clock than the relay's.
    """
    for shard, bound in (held or {}).items():
        if bound is None:
            return False  # I5
        source = shard.partition("/")[0]
        same = tokens.get(shard)
        read = [same] if same else [t for t in tokens.values() if t.shard.partition("/")[0] == source]
        orders = [compare(token, bound, positions_only=True) for token in read]
        if not orders or not all(order in (Order.EQUAL, Order.NEWER) for order in orders):
            return False
    return True


def _bounded(tokens: dict[str, EventToken | None]) -> dict[str, EventToken | None]:
    """Drop the oldest components past the limit: comparing with one of them is UNKNOWN from now on."""
    placed = [shard for shard in tokens if shard != UNPLACED]
    for shard in placed[:-MAX_COMPONENTS]:
        del tokens[shard]
        tokens[UNPLACED] = None  # I6: else a fill could pass below the one dropped
    return tokens


def encode(entry: Entry, nonce: str) -> bytes:
    """Return the entry as JSON. ``nonce``: new at every write, so that equal bytes are the same write."""
    fields: dict[str, Any] = {"n": nonce, "s": entry.state, "g": entry.generation, "t": entry.tokens}
    if entry.until:
        fields["u"] = entry.until
    return orjson.dumps(fields)


def decode(meta: bytes) -> Entry:
    """Return the entry of the JSON; ``UNREADABLE`` for anything else, so that no byte can stop a reader."""
    try:
        fields = orjson.loads(meta)
        tokens: dict[str, EventToken | None] = {}
        for shard, raw in fields["t"].items():
            token = tokens[shard] = _token(raw)
            if shard != _component(token):
                return UNREADABLE
        return Entry(State(fields["s"]), str(fields["g"]), tokens, float(fields.get("u", 0.0)))
    except (ValueError, TypeError, KeyError, AttributeError):
        return UNREADABLE


def _token(fields: dict[str, Any] | None) -> EventToken | None:
    if fields is None:
        return None
    if fields["origin"] is not None:
        return EventToken.from_json(orjson.dumps(fields))
    timestamp, position = fields["timestamp"], fields["position"]
    if type(timestamp) is not int or type(position) is not str:
        raise ValueError(f"{fields!r} is not an event token")
    return EventToken(timestamp, fields["shard"], position)
