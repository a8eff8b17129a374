"""A store in memory that has no room for writes to some keys, and deletes them all the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relay.cache import ConditionalWrite, MemoryStore
from relay.errors import StoreFull


class TightStore(MemoryStore):
    """``refused``: the keys that it has no room for."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.refused: set[str] = set()

    def compare_and_set(self, writes: Sequence[ConditionalWrite]) -> dict[str, bytes | None]:
        refused = [write.key for write in writes if write.meta is not None and write.key in self.refused]
        conflicts = super().compare_and_set([write for write in writes if write.key not in refused])
        if refused:
            raise StoreFull("the store of a test has no room", refused, conflicts)
        return conflicts
