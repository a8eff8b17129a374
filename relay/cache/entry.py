"""A cache entry, its JSON, and the rules for how invalidations and fills change it.

Pure functions, without a store or a clock: everything of I5 and I6 that concerns one entry. Every process that shares a
cache reads the JSON: fields may be added, but never change their meaning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import orjson

from relay.token import EventToken, Order, compare, is_numbered

MAX_COMPONENTS = 8  # the most tokens that an entry holds; the oldest are dropped
UNPLACED = ""  # the component for invalidations whose shard is unknown; its token is null

Tokens = Mapping[str, EventToken | None]
"""Tokens by component: the token's qualified shard, or ``UNPLACED`` with None."""


class State(StrEnum):
    """The state of an entry, which gives its tokens their meaning.

    A VALUE reflects every change up to its tokens. Only a value that reflects every change up to the tokens of a
    TOMBSTONE or a LEASE may be stored over it.
    """

    LEASE = "lease"
    VALUE = "value"
    TOMBSTONE = "tombstone"


_STATES = {state.value: state for state in State}


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry without its value, which the store keeps beside it.

    ``until``: epoch seconds. From then on a lease may be taken over and a value is no longer served. 0: no end.
    ``kept``: the tokens that a VALUE replaced and reflects, for shards not in its own tokens. They discard no
    invalidation, since one that looks old may be younger than the read; but later values have to reflect them, too.
    """

    state: State
    generation: str
    tokens: Tokens
    until: float = 0.0
    kept: Tokens = field(default_factory=dict)

    def serves(self, generation: str, now: float) -> bool:
        """Whether the value may be returned to a reader that read this generation after the entry."""
        live = not self.until or now < self.until
        return self.state is State.VALUE and self.generation == generation and live  # I6, I9

    def is_being_filled(self, generation: str, now: float, longest: float) -> bool:
        """Whether another reader holds a lease on it whose value would be served.

        A lease with more than ``longest`` seconds left comes from a clock that is far ahead, and is not waited for.
        """
        live = now < self.until <= now + longest
        return self.state is State.LEASE and self.generation == generation and live


UNREADABLE = Entry(State.TOMBSTONE, "", {UNPLACED: None})
"""The entry for bytes that cannot be decoded: nothing is served, and any invalidation replaces it."""


class Held(dict[str, EventToken | None]):
    """The tokens, by component of the entry, that a read has to reflect to be stored.

    ``floors``: by shard, what a read from a copy that may lag has to reflect as well. A shard without a floor, or with
    None, has to be read where every committed write is visible (see ``relay.cache.floors``).
    """

    def __init__(self, tokens: Tokens, floors: Tokens) -> None:
        super().__init__(tokens)
        self.floors = floors


@dataclass(frozen=True, slots=True)
class LoadedValue:
    """The result of a loader for one key.

    ``value``: None (cached, too) if the item does not exist. ``tokens``: one for each shard read from a copy that may
    lag, taken *before* the read; without one, a shard was read where every committed write is visible. ``fresher``: the
    read reflects every invalidation it was given to compare with. ``canonical``: changes of the row that was read
    invalidate this key, which is not just another spelling that finds the row.
    """

    value: bytes | None
    tokens: Mapping[str, EventToken]
    fresher: bool
    canonical: bool = True


class Folded(NamedTuple):
    """The result of several invalidations of one entry. ``entry``: None leaves the entry unchanged."""

    entry: Entry | None
    applied: int
    discarded: int
    unknown: int


def order_of(entry: Entry | None, token: EventToken | None) -> Order:
    """Return the order of an invalidation relative to the entry's component for the same shard.

    Without an entry it is NEWER. A null token, and a component the entry lacks, are UNKNOWN.
    """
    if entry is None:
        return Order.NEWER
    return compare(token, entry.tokens.get(_component(token)), positions_only=True)


def _component(token: EventToken | None) -> str:
    return token.shard if token is not None else UNPLACED


def invalidated(entry: Entry | None, token: EventToken | None, generation: str) -> Entry | None:
    """Return the entry after an invalidation; None to discard the invalidation.

    ``generation``: read before the entry. A token of None is unknown and always invalidates.
    """
    return fold(entry, [token], generation).entry


def _tombstone(entry: Entry | None, token: EventToken | None, generation: str) -> Entry:
    shard = _component(token)
    if shard == UNPLACED:
        token = None  # a token without a shard cannot be compared
    if entry is None:
        return Entry(State.TOMBSTONE, generation, {shard: token})
    # I6: the other components stay; otherwise a fill could pass below an earlier invalidation.
    tokens = required(entry, generation)
    replaced = tokens.pop(shard, None)
    against = Order.NEWER if replaced is None else compare(token, replaced, positions_only=True)
    tokens[shard] = replaced if against in (Order.OLDER, Order.EQUAL) else token
    if against is Order.UNKNOWN:
        tokens[UNPLACED] = None  # the new token may be older than the one it replaces
    return Entry(State.TOMBSTONE, generation, _bounded(tokens))


def outlived(entry: Entry, now: float) -> Entry | None:
    """Return the entry that has to last as long as a new tombstone, because it discarded an invalidation.

    Only this entry knows that reads have to reflect the invalidation. None for a value that is still served, which the
    store keeps long enough.
    """
    if entry.state is not State.VALUE:
        return entry
    if not entry.until or now < entry.until:
        return None
    return Entry(State.TOMBSTONE, entry.generation, {**entry.kept, **entry.tokens})


def fold(entry: Entry | None, tokens: Sequence[EventToken | None], generation: str) -> Folded:
    """Apply several invalidations to one entry, in the given order, as if each had been written."""
    now, applied, unknown = entry, 0, 0
    for token in tokens:
        order = order_of(now, token)
        if order is Order.OLDER or order is Order.EQUAL:  # I5: discarded only if the entry is known to include it
            continue
        applied += 1
        unknown += order is Order.UNKNOWN
        now = _tombstone(now, token, generation)
    return Folded(now if applied else None, applied, len(tokens) - applied, unknown)


def required(entry: Entry, generation: str) -> dict[str, EventToken | None]:
    """Return the tokens that a value has to reach to replace this entry."""
    tokens = {**entry.kept, **entry.tokens}  # I6
    if entry.generation != generation and not all(token is None or has_floor(token) for token in tokens.values()):
        tokens[UNPLACED] = None  # I9: invalidations were lost between the two generations, and no floor knows of them
    return tokens


def leased(entry: Entry | None, generation: str, until: float) -> Entry:
    """Return the lease under which a value for the entry is loaded. ``until``: epoch seconds."""
    return Entry(State.LEASE, generation, required(entry, generation) if entry else {}, until)


def emptied(entry: Entry) -> Entry | None:
    """Return the entry that remains when a lease is given back or a value dropped; None means no entry."""
    tokens = required(entry, entry.generation)  # I6: also the tokens that a value has replaced
    return Entry(State.TOMBSTONE, entry.generation, tokens) if tokens else None


def filled(lease: Entry, loaded: LoadedValue, floors: Tokens, until: float = 0.0) -> Entry | None:
    """Return the entry of a value that was loaded under a lease, or None if it must not be stored.

    ``floors``: the floors of the lease's generation, read after the lease was known to be possible. The entry has only
    the loader's tokens: any invalidation clears a value that was read without a token.
    """
    if not loaded.canonical:
        return None  # I6: nothing would ever invalidate it
    tokens = {token.shard: token for token in loaded.tokens.values()}
    if not are_above(tokens, floors):
        return None  # I6: lost tombstones may have been for changes that this read does not reflect
    if lease.tokens or not tokens:
        if not loaded.fresher:
            return None
        for shard, held in lease.tokens.items():
            if held and shard in tokens and compare(tokens[shard], held, positions_only=True) is Order.OLDER:
                return None  # I6: by its own token, the read is not fresher
    kept = {shard: held for shard, held in lease.tokens.items() if shard not in tokens}
    return Entry(State.VALUE, lease.generation, _bounded(dict(tokens)), until, kept)


def is_fresher(tokens: Mapping[str, EventToken], held: Tokens | None) -> bool:
    """Whether a read with these tokens reflects everything in ``held``; None contains nothing, and no floors.

    For loaders that read from copies and have a token for every shard of the read. No token reflects an invalidation
    whose shard is unknown: read from the primary instead. A shard that was not read (it was split since) is reflected
    if all shards read of its source are past it. Timestamps do not count, since a loader's clock is not the relay's.
    """
    floors = held.floors if isinstance(held, Held) else {} if held is None else None
    if floors is not None and not are_above(tokens, floors):
        return False
    for shard, bound in (held or {}).items():
        if bound is None:
            return False  # I5
        source = shard.partition("/")[0]
        same = tokens.get(shard)
        read = [same] if same else [t for t in tokens.values() if t.shard.partition("/")[0] == source]
        if not read or not all(reaches(token, bound) for token in read):
            return False
    return True


def are_above(tokens: Mapping[str, EventToken], floors: Tokens) -> bool:
    """Whether a read with these tokens reflects the floor of each shard that it read."""
    return all(reaches(token, floors.get(token.shard)) for token in tokens.values() if has_floor(token))


def has_floor(token: EventToken) -> bool:
    """Whether the token's shard has a floor. DynamoDB's copies report no positions, so its shards need none."""
    return not is_numbered(token.position)


def reaches(token: EventToken, bound: EventToken | None) -> bool:
    """Whether a read with the token reflects every change of the shard up to ``bound``. No token reaches None."""
    return bound is not None and compare(token, bound, positions_only=True) in (Order.EQUAL, Order.NEWER)


def _bounded(tokens: dict[str, EventToken | None]) -> dict[str, EventToken | None]:
    """Drop the oldest components beyond the limit. Comparing with a dropped one is UNKNOWN."""
    placed = [shard for shard in tokens if shard != UNPLACED]
    for shard in placed[:-MAX_COMPONENTS]:
        del tokens[shard]
        tokens[UNPLACED] = None  # I6: otherwise a fill could pass below the dropped component
    return tokens


def encode(entry: Entry, nonce: str) -> bytes:
    """Return the entry as JSON. ``nonce``: new for each write, so that equal bytes mean the same write."""
    fields: dict[str, Any] = {"n": nonce, "s": entry.state, "g": entry.generation, "t": entry.tokens}
    if entry.until:
        fields["u"] = entry.until
    if entry.kept:
        fields["k"] = entry.kept
    return orjson.dumps(fields)


def decode(meta: bytes) -> Entry:
    """Return the entry in the JSON; ``UNREADABLE`` for other bytes, so that none can stop a reader."""
    try:
        fields = orjson.loads(meta)
        tokens, kept = _tokens(fields.get("t")), _tokens(fields.get("k"))
        return Entry(_STATES[fields["s"]], str(fields["g"]), tokens, float(fields.get("u", 0.0)), kept)
    except (ValueError, TypeError, KeyError, AttributeError):
        return UNREADABLE


def _tokens(raw: dict[str, dict[str, Any] | None] | None) -> dict[str, EventToken | None]:
    tokens = {}
    for shard, fields in raw.items() if raw is not None else ():
        tokens[shard] = token = _token(fields)
        if shard != _component(token):
            raise ValueError("the token of a component names another shard")
    return tokens


def _token(fields: dict[str, Any] | None) -> EventToken | None:
    if fields is None:
        return None
    if fields["origin"] is not None:
        return EventToken.from_json(orjson.dumps(fields))
    timestamp, position = fields["timestamp"], fields["position"]
    if type(timestamp) is not int or type(position) is not str:
        raise ValueError(f"{fields!r} is not an event token")
    return EventToken(timestamp, fields["shard"], position)
