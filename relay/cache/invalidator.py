"""Invalidations applied to a store: read, decide, compare-and-set, and again where another was faster.

Seed 004, "Cache Invalidation". What decides is ``relay.cache.entry``; here is only how it is done for many
keys at once. Knows no topic: it is given cache keys and tokens.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from relay.cache.entry import Folded, decode, encode, fold
from relay.cache.store import KEEP, READ, ConditionalWrite, Store, entry_key, generation_key
from relay.errors import RelayError
from relay.token import EventToken

_log = logging.getLogger(__name__)

_SLICE = 8192  # pairs in flight: bounds the memory of a call of any length (I11)
_ROUNDS = 100  # a key that changes under as many attempts in a row is no contention but a fault


@dataclass(slots=True)
class InvalidationCounts:
    """What became of the invalidations of a call: each was ``applied`` or ``discarded``.

    ``unknown``: those of ``applied`` that were because no order was known. ``retried``: compare-and-sets
    lost to another writer and made again.
    """

    applied: int = 0
    discarded: int = 0
    unknown: int = 0
    retried: int = 0


class Invalidator:
    """Applies invalidations to one namespace; any number may do so at once. ``tombstone_ttl``: seconds."""

    def __init__(self, store: Store, namespace: str, *, tombstone_ttl: float = 3600.0) -> None:
        if tombstone_ttl <= 0:
            raise ValueError(f"tombstone_ttl has to be positive, not {tombstone_ttl}")
        self.store = store
        self.namespace = namespace
        self.tombstone_ttl = tombstone_ttl
        # Whether most keys of the last call had an entry: where to begin is guessed from it, nothing else.
        self._mostly_cached = False

    def __repr__(self) -> str:
        return f"<Invalidator[{self.namespace}]>"

    def apply(self, pairs: Sequence[tuple[str, EventToken | None]]) -> InvalidationCounts:
        """Apply (cache key, token) pairs, those of one key in their order; a token of None is unknown.

        When it returns, no value that was read before any of them is served (I6). Raises ``Unavailable``;
        some may have been applied then, and applying all of them again does no harm.
        """
        counts = InvalidationCounts()
        for start in range(0, len(pairs), _SLICE):
            tokens: dict[str, list[EventToken | None]] = {}
            for key, token in pairs[start : start + _SLICE]:
                tokens.setdefault(entry_key(self.namespace, key), []).append(token)
            self._apply(tokens, counts)
        return counts

    def bump(self, reason: str) -> str:
        """Begin a new generation, so that nothing cached until now is served; return it (I9)."""
        generation = self.store.renew(generation_key(self.namespace))
        _log.warning("cache namespace %s: new generation %s: %s", self.namespace, generation, reason)
        return generation

    def _apply(self, tokens: dict[str, list[EventToken | None]], counts: InvalidationCounts) -> None:
        # Read before any entry: a generation replaced meanwhile makes the tombstones stricter, never laxer.
        generation = self.store.generation(generation_key(self.namespace))
        # What stands under each key. Where most keys are not cached, that is guessed to be nothing: one
        # round trip writes their tombstones, and the refusals are the read of the others.
        standing: dict[str, bytes | None] = dict.fromkeys(tokens)
        guessed = not self._mostly_cached
        if not guessed:
            standing = self.store.compare_and_set([ConditionalWrite(key, READ, None, None, KEEP) for key in tokens])
            self._mostly_cached = _mostly(standing, tokens)
        for _ in range(_ROUNDS):
            lost = self._attempt(standing, tokens, generation, counts)
            if guessed:
                self._mostly_cached = _mostly(lost, tokens)
            else:
                counts.retried += len(lost)
            if not lost:
                return
            standing, guessed = lost, False
        raise RelayError(f"cache key {next(iter(lost))!r} changed under {_ROUNDS} attempts to invalidate it")

    def _attempt(
        self,
        standing: dict[str, bytes | None],
        tokens: dict[str, list[EventToken | None]],
        generation: str,
        counts: InvalidationCounts,
    ) -> dict[str, bytes | None]:
        """Invalidate each key, given the meta that stands there; return those where another one does."""
        folded: dict[str, Folded] = {}
        writes: list[ConditionalWrite] = []
        # Made new in each attempt and in each process after a fork: no two writes share a nonce.
        stem = secrets.token_hex(8)
        for key, meta in standing.items():
            result = fold(None if meta is None else decode(meta), tokens[key], generation)
            if result.entry is None:
                counts.discarded += result.discarded
                continue
            folded[key] = result
            fresh = encode(result.entry, f"{stem}{len(writes):x}")
            writes.append(ConditionalWrite(key, meta, fresh, None, self.tombstone_ttl))
        lost = self.store.compare_and_set(writes) if writes else {}
        for key, result in folded.items():
            if key not in lost:
                counts.applied += result.applied
                counts.discarded += result.discarded
                counts.unknown += result.unknown
        return lost


def _mostly(standing: dict[str, bytes | None], tokens: dict[str, list[EventToken | None]]) -> bool:
    return 2 * sum(meta is not None for meta in standing.values()) > len(tokens)
