"""A store in a dictionary, for the tests of applications that use the cache. It keeps the full contract of ``Store``.

``lose`` and ``lose_all`` drop entries as a server does under memory pressure and in a restart.
"""

import secrets
import threading
import time
from collections.abc import Callable, Sequence

from relay.cache.store import FOREVER, KEEP, ConditionalWrite, Store, StoredEntry, random_keys


class MemoryStore(Store):
    """A ``Store`` in this process, shared by threads. ``clock``: seconds, for the times to live."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards everything below
        self._entries: dict[str, tuple[StoredEntry, float | None]] = {}  # and when each of them expires
        self._generations: dict[str, str] = {}
        self._lost = 0

    def read(self, keys: Sequence[str], generation_key: str) -> tuple[list[StoredEntry | None], str]:
        with self._lock:
            return [self._live(key) for key in keys], self._generation(generation_key)

    def compare_and_set(self, writes: Sequence[ConditionalWrite]) -> dict[str, bytes | None]:
        with self._lock:
            conflicts: dict[str, bytes | None] = {}
            for write in writes:
                stored = self._live(write.key)
                meta = stored.meta if stored else None
                if meta == write.expected:
                    self._set(write)
                else:
                    conflicts[write.key] = meta
            return conflicts

    def renew(self, generation_key: str) -> str:
        with self._lock:
            self._generations.pop(generation_key, None)
            return self._generation(generation_key)

    def sample(self, prefix: str, count: int) -> list[str]:
        with self._lock:
            return random_keys([key for key in [*self._entries] if key.startswith(prefix) and self._live(key)], count)

    def lose(self, key: str) -> None:
        """Forget one entry or generation, by its key in the store."""
        with self._lock:
            self._entries.pop(key, None)
            self._generations.pop(key, None)
            self._lost += 1

    def lose_all(self) -> None:
        """Forget everything, including the generations."""
        with self._lock:
            self._entries.clear()
            self._generations.clear()
            self._lost += 1

    def losses(self) -> str:
        with self._lock:
            return str(self._lost)

    def _live(self, key: str) -> StoredEntry | None:
        stored, expires = self._entries.get(key, (None, None))
        if expires is not None and expires <= self._clock():
            del self._entries[key]
            return None
        return stored

    def _set(self, write: ConditionalWrite) -> None:
        if write.meta is None:
            self._entries.pop(write.key, None)
            return
        if write.ttl == KEEP:
            _, expires = self._entries.get(write.key, (None, None))
        else:
            expires = None if write.ttl == FOREVER else self._clock() + write.ttl
        self._entries[write.key] = StoredEntry(write.meta, write.value), expires

    def _generation(self, generation_key: str) -> str:
        return self._generations.setdefault(generation_key, secrets.token_hex(8))
