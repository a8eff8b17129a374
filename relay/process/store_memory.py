"""The memory of a server that holds a cache, and what it does when the memory is full."""

from typing import NamedTuple


class ServerMemory(NamedTuple):
    """The bytes ``used`` of a ``limit``, 0 if there is none. ``policy``: what it does when full, as Redis calls it."""

    server: str
    used: int
    limit: int
    policy: str

    @property
    def is_full(self) -> bool:
        """Whether nothing can be cached: it is full, and does not evict."""
        return 0 < self.limit <= self.used and not self.policy.startswith("allkeys-")

    def __str__(self) -> str:
        used = f"{self.used / 1e6:.1f} MB"
        if not self.limit:
            return f"{used}, without a limit: set maxmemory to less than the machine has, and its policy to allkeys-lru"
        text = f"{used} of {self.limit / 1e6:.1f} MB, {self.policy}"
        if not self.policy.startswith("allkeys-"):
            text += ", so while it is full invalidations delete entries, and nothing is cached: allkeys-lru evicts"
        return text
