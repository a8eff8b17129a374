"""The floors of a namespace: what a read of a lagging copy must reflect to fill a key about which nothing is cached.

For each shard, a token that covers every invalidation applied so far whose tombstone may be gone ("Replicas" in the
README). A process *announces* the tokens of its invalidations before it applies them. So the announcements of
``tombstone_ttl`` ago cover all tombstones that may have expired. Where memory may have been lost, the newest
announcements count at once. Where announcements may have been lost too (a new generation, an invalidation without a
token), floors start over: with the first change of a shard that was committed and published after that moment, since it
is newer than all that was applied before. Published is not enough: a relay that is reset, or lags behind another one,
publishes old changes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations
from typing import Self

from relay.cache.entry import UNPLACED, State, decode, reaches
from relay.cache.store import FOREVER, ConditionalWrite, Store, StoredEntry, floors_key, generation_key, has_lost
from relay.errors import StoreFull
from relay.keyrange import KeyRange, shard_range
from relay.records import Shard
from relay.records.codec import StoredRecord
from relay.token import EventToken, Order, compare

_PERIODS = 4  # periods in a tombstone_ttl: a floor is at most a quarter older than necessary
_SLACK = 0.1  # part of a tombstone_ttl by which the clocks of applications and invalidators may differ
_ATTEMPTS = 4  # attempts to raise the floors of a reader
MOST_BYTES = 256 << 10  # bytes of the JSON, which each miss reads; memcached takes items of 1 MB
_MOST_UNORDERED = 4  # tokens of one shard, none known to be newer than another

Unordered = tuple[EventToken, ...]
"""Tokens of one shard, none known to be newer than another. A read has to reflect all of them."""


@dataclass(frozen=True, slots=True)
class Period:
    """The tokens announced up to the next period's ``start`` (epoch seconds), by shard."""

    start: float
    tokens: Mapping[str, Unordered]


@dataclass(frozen=True, slots=True)
class Floors(StoredRecord):
    """The announcements in one generation, and the shards whose floors have ``begun``.

    ``since``: a random id of the moment since which announcements are complete, ``began`` the same in epoch seconds.
    ``losses``: the store's last answer about lost entries. ``tombstone_ttl``: seconds, the shortest that was announced.
    ``periods``: the oldest first, at least one.
    """

    generation: str
    since: str
    began: float
    tombstone_ttl: float
    losses: str
    periods: tuple[Period, ...]
    begun: frozenset[str]

    def at(self, now: float, tombstone_ttl: float) -> dict[str, EventToken | None]:
        """Return the floor of each shard; None if no token reaches it. ``tombstone_ttl``: the reader's own setting."""
        # I6: a tombstone lasts as long as the process that wrote it was configured.
        expired = now - min(tombstone_ttl, self.tombstone_ttl) * (1 - _SLACK)
        tokens = self.periods[0].tokens
        for period in self.periods[1:]:
            if period.start > expired:
                break
            tokens = period.tokens
        return {shard: held[0] if len(held) == 1 else None for shard, held in tokens.items() if shard in self.begun}

    def after_losses(self, losses: str, now: float) -> Self:
        """Return the floors after tombstones may have been lost: everything announced so far has to be reflected."""
        return replace(self, losses=losses, periods=_from(now, self.periods[-1].tokens))


def announced(
    floors: Floors | None,
    tokens: Iterable[EventToken | None],
    *,
    generation: str,
    losses: str,
    now: float,
    tombstone_ttl: float,
    published_since: str | None,
    new_since: str,
) -> Floors:
    """Return the floors after invalidations with ``tokens`` were announced; a token of None is unknown.

    ``published_since``: the ``since`` after which the changes are known to have been published, "" if there is none.
    None means that the caller guarantees it. ``new_since``: the new id if announcements start over.
    """
    tokens = list(tokens)
    placed = _newest(token for token in tokens if token is not None and token.shard != UNPLACED)
    ttl = tombstone_ttl if floors is None else min(tombstone_ttl, floors.tombstone_ttl)
    anew = Floors(generation, new_since, now, tombstone_ttl, losses, _from(now, {}), frozenset())
    if floors is None or floors.generation != generation:
        floors = anew
    elif any(token is None or token.shard == UNPLACED for token in tokens):
        floors = anew  # I6: no floor covers a change whose position is unknown
    # I6: by a clock that was set back, no period would begin for a long time.
    elif has_lost(floors.losses, losses) or now < floors.periods[-1].start - ttl * _SLACK:
        floors = floors.after_losses(losses, now)
    elif now - floors.periods[-1].start >= ttl / _PERIODS:
        periods = (*floors.periods, Period(now, floors.periods[-1].tokens))
        while len(periods) > 1 and periods[1].start <= now - ttl:
            periods = periods[1:]
        floors = replace(floors, periods=periods)
    floors = replace(floors, losses=losses, tombstone_ttl=ttl)
    *earlier, last = floors.periods
    held = dict(last.tokens)
    for token in placed:
        of_shard = held.get(token.shard, ())
        if not any(reaches(each, token) for each in of_shard):
            held[token.shard] = (*(each for each in of_shard if not reaches(token, each)), token)
    if any(len(unordered) > _MOST_UNORDERED for unordered in held.values()):
        return anew
    begins = {token.shard for token in placed if _begins(token, floors, published_since)} - floors.begun
    # The announcements before a shard's floor began may be far older than the invalidations that others had applied.
    first = {shard: held[shard] for shard in begins}
    periods = (*(Period(each.start, {**each.tokens, **first}) for each in earlier), Period(last.start, held))
    return replace(floors, periods=periods, begun=(floors.begun | begins) - _ended(held))


def _begins(token: EventToken, floors: Floors, published_since: str | None) -> bool:
    """Whether the change is newer than everything applied before the announcements began."""
    # I6: a shard that others were merged into may have this change of one, and lack an earlier one of another.
    if token.origin is not None:
        return False
    if published_since is None:
        return True
    # I6: its timestamp is whole seconds, rounded down.
    return published_since == floors.since and token.timestamp > floors.began


def _ended(held: Mapping[str, Unordered]) -> set[str]:
    """Return the shards whose changes are not all known to be newer than those of others that may have their rows."""
    return {
        shard
        for shard, others in _overlapping(frozenset(held)).items()
        if not all(_is_newer(held[shard], token) for other in others for token in held[other])
    }


def _is_newer(held: Unordered, token: EventToken) -> bool:
    # I6: timestamps never decrease along a lineage. So changes of a parent that come late, or again, end no floor of a
    # child, and begin none of the parent.
    return any(compare(each, token, timestamp_first=True) is Order.NEWER for each in held)


@lru_cache(maxsize=4)
def _overlapping(shards: frozenset[str]) -> Mapping[str, list[str]]:
    """Return the shards that overlap others, and which others."""
    places = [(shard, *_place(shard)) for shard in shards]
    found: dict[str, list[str]] = {}
    for (one, stream, keyspace, keys), (other, its_stream, its_keyspace, its_keys) in permutations(places, 2):
        # I6: tables that were moved may have another sharding key.
        if stream == its_stream and (keyspace != its_keyspace or (keys and its_keys and keys.intersects(its_keys))):
            found.setdefault(one, []).append(other)
    return found


def _place(shard: str) -> tuple[list[str], list[str], KeyRange | None]:
    """Return the stream of a token's shard, the keyspace if it is another one, and the keys if the name tells them."""
    *parts, name = Shard(shard).name.split("/")
    try:
        return parts[:2], parts[2:], shard_range(name)
    except ValueError:
        return parts[:2], parts[2:], None


def _from(now: float, tokens: Mapping[str, Unordered]) -> tuple[Period, ...]:
    """Return two periods that begin now: one for everything up to now, one for later announcements."""
    return Period(now, tokens), Period(now, tokens)


def _newest(tokens: Iterable[EventToken]) -> Iterable[EventToken]:
    """Return tokens that cover all the given ones. Tokens that differ only in their last number are compared by it."""
    found: dict[tuple[str, str, bool], tuple[int, EventToken]] = {}
    for token in tokens:
        head, _, last = token.position.rpartition("-")
        is_numbered = last.isascii() and last.isdigit()
        place = token.shard, head if is_numbered else token.position, is_numbered
        number = int(last) if is_numbered else 0
        if place not in found or found[place][0] < number:
            found[place] = number, token
    return [token for _, token in found.values()]


def shortened(floors: Floors, now: float, new_since: str) -> Floors:
    """Return floors of at most ``MOST_BYTES``: first everything announced at once, otherwise floors that start over."""
    floors = replace(floors, periods=_from(now, floors.periods[-1].tokens))
    if len(floors.to_json()) <= MOST_BYTES:
        return floors
    return replace(floors, since=new_since, began=now, periods=_from(now, {}), begun=frozenset())


@lru_cache(maxsize=4)
def decode_floors(text: bytes | None) -> Floors | None:
    """Return the floors in the JSON; None, which means no floors, for other bytes."""
    try:
        floors = Floors.from_json(text or b"")
    except ValueError:
        return None
    return floors if floors.periods else None


@dataclass(eq=False, repr=False)
class FloorsReader:
    """Reads the floors of a namespace for its readers. Threads may share it. ``_tombstone_ttl``: seconds."""

    _store: Store
    _namespace: str
    _tombstone_ttl: float
    _clock: Callable[[], float]

    def __post_init__(self) -> None:
        # How many seconds replacements of tombstones must last, whatever the announcers' settings, and whether that was
        # read. Set by any thread, without a lock, in this order.
        self.longest = self._tombstone_ttl
        self._was_read = False

    def read(self, generation: str) -> dict[str, EventToken | None]:
        """Return a generation's floors, for entries already read. Lost entries raise floors. Raises ``Unavailable``."""
        key = floors_key(self._namespace)
        for _ in range(_ATTEMPTS):
            (stored,), _ = self._store.read([key], generation_key(self._namespace))
            floors = decode_floors(stored.meta) if stored else None
            self.longest = max(self._tombstone_ttl, floors.tombstone_ttl if floors else 0.0)  # I6
            self._was_read = True
            # I9: the announcements of another generation may be incomplete.
            if stored is None or floors is None or floors.generation != generation:
                break
            losses, now = self._store.losses(), self._clock()
            # I6: otherwise tombstones may be gone before their time. Read after the entries, it covers all lost ones.
            if not has_lost(floors.losses, losses):
                return floors.at(now, self._tombstone_ttl)
            raised = floors.after_losses(losses, now).to_json()
            try:
                self._store.compare_and_set([ConditionalWrite(key, stored.meta, raised, None, FOREVER)])
            except StoreFull:
                break  # I6: better no floors than floors that ignore the losses
        return {}

    def must_be_read(self, found: Iterable[StoredEntry | None]) -> bool:
        """Whether to call ``read`` before these entries are replaced: a value among them replaces tombstones."""
        if self._was_read:
            return False
        entries = (decode(stored.meta) for stored in found if stored is not None)
        return any(entry.state is State.VALUE and (entry.tokens or entry.kept) for entry in entries)  # I6
