"""What the cache asks of a store: four calls, which Redis and a dictionary implement.

Bytes in, bytes out: a store knows no tokens and no rules. Whoever adds one runs
``tests/cache/test_interleavings.py`` against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

KEEP = -1.0
"""As a time to live: the one the key has."""

FOREVER = 0.0
"""As a time to live: none."""

READ = b"?"
"""As an expected meta: one that never stands anywhere, so that the write is a read of the meta."""


class StoredEntry(NamedTuple):
    """An entry as a store holds it: the entry's JSON, and the value's bytes, None where it has none."""

    meta: bytes
    value: bytes | None


class ConditionalWrite(NamedTuple):
    """One compare-and-set.

    ``expected``: the meta that has to stand there, None for nothing. ``meta``: what takes its place, None
    to delete. ``value`` None leaves no value. ``ttl``: seconds, or ``KEEP``, or ``FOREVER``.
    """

    key: str
    expected: bytes | None
    meta: bytes | None
    value: bytes | None
    ttl: float


class Store(Protocol):
    """A key-value store with an atomic compare-and-set per key.

    It may lose any entry at any time. It must never bring back one that was replaced or lost: a store
    that can (from a snapshot, in a failover) has to replace every generation when it does (I6).
    Calls raise ``relay.errors.Unavailable`` when the store cannot be reached; whether a write was made
    is then not known, and making it again does no harm.
    """

    def read(self, keys: Sequence[str], generation_key: str) -> tuple[list[StoredEntry | None], str]:
        """Return the entries, and the generation as it was read *after* the last of them."""

    def compare_and_set(self, writes: Sequence[ConditionalWrite]) -> dict[str, bytes | None]:
        """Make each write whose key stands as expected; the keys are distinct.

        Return the others by key, each with the meta that stands there instead (None: nothing).
        """

    def generation(self, generation_key: str) -> str:
        """Return the generation; where there is none, begin one with a fresh random id."""

    def renew(self, generation_key: str) -> str:
        """Begin a new generation and return it. Everything cached until now is not served any more."""


def entry_key(namespace: str, key: str) -> str:
    """Return the store's key of a cache key."""
    return f"{namespace}:{key}"


def generation_key(namespace: str) -> str:
    """Return the store's key of the generation. Without a colon in front: no cache key can name it."""
    return f"{namespace}{{generation}}"
