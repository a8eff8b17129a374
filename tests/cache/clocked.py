"""A cache whose clock a test moves."""

from __future__ import annotations

from collections.abc import Callable

from relay.cache import Cached, Invalidator, MemoryStore, Outcome, TokenCache, entry_key
from tests.cache.sources import token


class Cache(TokenCache):
    """A cache on a store in memory. Both use one clock, which moves when the cache sleeps."""

    def __init__(self, value_ttl: float | None = None) -> None:
        self.now = 1000.0
        self.memory = MemoryStore(lambda: self.now)
        self.slept: list[Callable[[], object]] = []  # run during the next sleeps
        super().__init__(
            self.memory, "shop", tombstone_ttl=600.0, value_ttl=value_ttl, clock=lambda: self.now, sleep=self._doze
        )
        self.invalidator = Invalidator(self.memory, "shop", tombstone_ttl=600.0)

    def _doze(self, seconds: float) -> None:
        self.now += seconds
        if self.slept:
            self.slept.pop(0)()

    def change(self, sequence: int | None = 5, key: str = "k") -> None:
        self.invalidator.apply([(key, None if sequence is None else token(sequence))])

    def evict(self, key: str = "k") -> None:
        self.memory.lose(entry_key("shop", key))


def hit(value: bytes | None) -> Cached:
    return Cached(value, Outcome.HIT)
