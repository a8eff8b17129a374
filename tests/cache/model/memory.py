"""What the model's store holds, as plain data, and what a store does to it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from relay.cache.entry import Entry, decode
from relay.cache.store import FOREVER, KEEP, ConditionalWrite, StoredEntry
from tests.cache.model.scenario import ENTRY, FLOORS


class Memory(NamedTuple):
    """What a store holds: by key, an entry and when it expires, None for never. ``born``: generations so far."""

    items: tuple[tuple[str, StoredEntry, float | None], ...]
    generation: int | None
    born: int
    lost: int


def find(memory: Memory, key: str) -> StoredEntry | None:
    return next((stored for name, stored, _ in memory.items if name == key), None)


def written(memory: Memory, writes: Sequence[ConditionalWrite], now: float) -> tuple[Memory, Any]:
    items = {key: (stored, expires) for key, stored, expires in memory.items}
    conflicts = []
    for write in writes:
        stored, expires = items.get(write.key, (None, None))
        meta = stored.meta if stored else None
        if meta != write.expected:
            conflicts.append((write.key, meta))
        elif write.meta is None:
            items.pop(write.key, None)
        else:
            ends = expires if write.ttl == KEEP else None if write.ttl == FOREVER else now + write.ttl
            items[write.key] = StoredEntry(write.meta, write.value), ends
    return memory._replace(items=tuple((key, *items[key]) for key in sorted(items))), tuple(conflicts)


def alive(memory: Memory, now: float) -> Memory:
    return memory._replace(items=tuple(item for item in memory.items if item[2] is None or now < item[2]))


def without(memory: Memory, what: str) -> Memory:
    """Return what a store holds that has lost an entry, the floors, the generation, or everything."""
    gone = {"entry": (ENTRY,), "floors": (FLOORS,), "everything": (ENTRY, FLOORS)}.get(what, ())
    items = tuple(item for item in memory.items if item[0] not in gone)
    generation = None if what in ("generation", "everything") else memory.generation
    return memory._replace(items=items, generation=generation, lost=memory.lost + 1)


@lru_cache(1 << 16)
def decoded(meta: bytes) -> Entry:
    return decode(meta)


@lru_cache(1 << 16)
def nonce_of(meta: bytes) -> str:
    return str(orjson.loads(meta)["n"])
