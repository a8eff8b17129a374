"""Applies invalidations to many entries of a store: read, decide by ``relay.cache.entry``, compare-and-set, retry."""

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from relay.cache.entry import Folded, decode, encode, fold, has_floor, outlived
from relay.cache.floors import MOST_BYTES, announced, decode_floors, shortened
from relay.cache.store import FOREVER, KEEP, READ, ConditionalWrite, Store, entry_key, floors_key, generation_key
from relay.errors import RelayError, StoreFull
from relay.process.seldom import Seldom
from relay.token import EventToken

_log = logging.getLogger(__name__)

_CHUNK = 8192  # pairs applied at once, which bounds the memory of a call of any length (I11)
_ATTEMPTS = 100  # more conflicts in a row are a fault, not contention


@dataclass(slots=True)
class InvalidationCounts:
    """The number of invalidations in a call that were ``applied`` or ``discarded``.

    ``unknown``: the applied ones whose order relative to the entry was unknown. ``retried``: compare-and-sets that were
    repeated because another writer was faster. ``deleted``: entries that were deleted or not created, because the store
    had no room for tombstones.
    """

    applied: int = 0
    discarded: int = 0
    unknown: int = 0
    retried: int = 0
    deleted: int = 0


class Invalidator:
    """Applies invalidations to one namespace. Threads may share it as its store allows. ``tombstone_ttl``: seconds."""

    def __init__(
        self, store: Store, namespace: str, *, tombstone_ttl: float = 3600.0, clock: Callable[[], float] = time.time
    ) -> None:
        if tombstone_ttl <= 0:
            raise ValueError(f"tombstone_ttl must be positive, not {tombstone_ttl}")
        self.store = store
        self.namespace = namespace
        self.tombstone_ttl = tombstone_ttl
        self._clock = clock
        # Any thread sets these two, without a lock: an outdated one costs a round trip. The floors as this process last
        # saw them, and whether most keys of the last call had an entry, so that reading first saves a round trip.
        self._floors: bytes | None = None
        self._mostly_cached = False
        self._warning = Seldom()

    def apply(
        self, pairs: Sequence[tuple[str, EventToken | None]], *, published_since: str | None = None
    ) -> InvalidationCounts:
        """Apply (cache key, token) pairs; pairs with the same key are applied in order. A token of None is unknown.

        ``published_since``: what ``since`` returned before the first of these changes was published, "" if unknown. The
        floors of a namespace (see ``relay.cache.floors``) begin with such changes, and reads from a replica are only
        cached above them. None means that no change is ever applied again after a later one, as a consumer does that
        restarts from an older checkpoint.

        Afterwards, no value that was read before any of these changes is served (I6). Raises ``Unavailable``; some
        invalidations may have been applied then, and repeating all of them does no harm.
        """
        counts = InvalidationCounts()
        for start in range(0, len(pairs), _CHUNK):
            chunk = pairs[start : start + _CHUNK]
            tokens: dict[str, list[EventToken | None]] = {}
            for key, token in chunk:
                tokens.setdefault(entry_key(self.namespace, key), []).append(token)
            # I6: before they are applied; otherwise a tombstone could be gone without any floor to replace it.
            self._announce([token for _, token in chunk], published_since)
            self._apply(tokens, counts)
        return counts

    def since(self) -> str:
        """Return an id of the time since which changes are announced in this namespace, "" if there is none.

        A change published after this call is newer than everything applied before that time.
        """
        key = floors_key(self.namespace)
        (stored,), generation = self.store.read([key], generation_key(self.namespace))
        floors = decode_floors(stored.meta) if stored else None
        return floors.since if floors is not None and floors.generation == generation else ""

    def bump(self, reason: str) -> str:
        """Invalidate the whole namespace by a new generation, and return the generation (I9)."""
        generation = self.store.renew(generation_key(self.namespace))
        _log.warning("cache namespace %s is invalidated (new generation %s): %s", self.namespace, generation, reason)
        return generation

    def delete(self, writes: Sequence[ConditionalWrite], full: StoreFull) -> dict[str, bytes | None]:
        """Delete the entries in ``writes`` that found no room; return all conflicts. Raises ``Unavailable``."""
        self._forget_floors(full)  # I6: first, because no tombstone replaces the invalidations that they know of
        refused = [write._replace(meta=None, value=None) for write in writes if write.key in full.refused]
        return full.conflicts | self.store.compare_and_set(refused)

    def _forget_floors(self, full: StoreFull) -> None:
        """Delete the floors. They start over with later changes."""
        if self._warning.is_due():
            _log.warning(
                "cache namespace %s: invalidations delete entries, and leave no tombstones: %s", self.namespace, full
            )
        key, found = floors_key(self.namespace), self._floors
        while conflicts := self.store.compare_and_set([ConditionalWrite(key, found, None, None, KEEP)]):
            found = conflicts[key]
        self._floors = None

    def _announce(self, tokens: Sequence[EventToken | None], published_since: str | None) -> None:
        tokens = [token for token in tokens if token is None or has_floor(token)]
        if not tokens:
            return
        key = floors_key(self.namespace)
        for _ in range(_ATTEMPTS):
            generation, losses = self.store.generation(generation_key(self.namespace)), self.store.losses()
            floors = announced(
                decode_floors(self._floors),
                tokens,
                generation=generation,
                losses=losses,
                now=self._clock(),
                tombstone_ttl=self.tombstone_ttl,
                published_since=published_since,
                new_since=secrets.token_hex(8),
            )
            text = floors.to_json()
            if len(text) > MOST_BYTES:  # many shards with long positions
                text = shortened(floors, self._clock(), secrets.token_hex(8)).to_json()
            try:
                conflicts = self.store.compare_and_set([ConditionalWrite(key, self._floors, text, None, FOREVER)])
            except StoreFull as full:
                self._forget_floors(full)
                return
            if key not in conflicts:
                self._floors = text
                return
            self._floors = conflicts[key]
        raise RelayError(
            f"the floors of cache namespace {self.namespace} changed during each of {_ATTEMPTS} attempts to raise "
            "them: check whether another program writes to its keys"
        )

    def _apply(self, tokens: dict[str, list[EventToken | None]], counts: InvalidationCounts) -> None:
        # Read before any entry: if it is replaced meanwhile, the tombstones are stricter than needed, never laxer.
        generation = self.store.generation(generation_key(self.namespace))
        # The current meta of each key. Where most keys are not cached, "no entry" is a good guess: one round trip
        # writes their tombstones, and conflicts return the metas of the others.
        current: dict[str, bytes | None] = dict.fromkeys(tokens)
        guessed = not self._mostly_cached
        if not guessed:
            current = self.store.compare_and_set([ConditionalWrite(key, READ, None, None, KEEP) for key in tokens])
            self._mostly_cached = _are_mostly_cached(current, tokens)
        for _ in range(_ATTEMPTS):
            conflicts = self._attempt(current, tokens, generation, counts)
            if guessed:
                self._mostly_cached = _are_mostly_cached(conflicts, tokens)
            else:
                counts.retried += len(conflicts)
            if not conflicts:
                return
            current, guessed = conflicts, False
        raise RelayError(
            f"cache key {next(iter(conflicts))!r} changed during each of {_ATTEMPTS} attempts to invalidate it: "
            "check whether another program writes to it"
        )

    def _attempt(
        self,
        current: dict[str, bytes | None],
        tokens: dict[str, list[EventToken | None]],
        generation: str,
        counts: InvalidationCounts,
    ) -> dict[str, bytes | None]:
        """Invalidate each key, given its current meta; return the conflicts."""
        folded: dict[str, Folded] = {}
        writes: list[ConditionalWrite] = []
        # New in each attempt, and in each process after a fork, so that no two writes share a nonce.
        nonce = secrets.token_hex(8)
        for key, meta in current.items():
            entry = None if meta is None else decode(meta)
            result = fold(entry, tokens[key], generation)
            new = result.entry or (outlived(entry, self._clock()) if entry else None)
            if new is None:
                counts.discarded += result.discarded
                continue
            folded[key] = result
            # An unchanged entry keeps its bytes, so that a fill under its lease still succeeds.
            new_meta = meta if new is entry else encode(new, f"{nonce}{len(writes):x}")
            writes.append(ConditionalWrite(key, meta, new_meta, None, self.tombstone_ttl))
        try:
            conflicts = self.store.compare_and_set(writes) if writes else {}
        except StoreFull as full:
            counts.deleted += len(full.refused)
            conflicts = self.delete(writes, full)
        for key, result in folded.items():
            if key not in conflicts:
                counts.applied += result.applied
                counts.discarded += result.discarded
                counts.unknown += result.unknown
        return conflicts


def _are_mostly_cached(metas: dict[str, bytes | None], tokens: dict[str, list[EventToken | None]]) -> bool:
    return 2 * sum(meta is not None for meta in metas.values()) > len(tokens)
