"""Stores in memory and on real servers, for tests that run on each of them, and what makes them lose entries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Protocol

import pytest

from relay.cache import ConditionalWrite, MemcachedStore, MemoryStore, RedisStore, Store, open_store
from relay.cache.memcached_store import item_key
from relay.cache.redis_servers import Script, ScriptCall
from relay.cache.store import KEEP, READ
from relay.errors import StoreFull
from tests.cache.steps import WrappedStore

NAMES = ("redis", "redis_cluster", "memcached", "several_memcached")
KINDS = [pytest.param(name, marks=pytest.mark.services) for name in NAMES]


_SET = Script("return redis.call('SET', KEYS[1], 'text')")
_DELETE = Script("return redis.call('DEL', KEYS[1])")


class Backend(Protocol):
    """A store that loses what it is told to lose."""

    @property
    def store(self) -> Store: ...

    def lose(self, key: str) -> None: ...


class LosingStore(WrappedStore):
    """The store of a backend, which also counts what a test makes it lose: servers count only what they evict.

    ``is_full``: it has no room for any write, and deletes all the same.
    """

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend.store)
        self._backend = backend
        self._lost = 0
        self.is_full = False

    def lose(self, key: str) -> None:
        self._backend.lose(key)
        self._lost += 1

    def losses(self) -> str:
        return f"{super().losses()} {self._lost}"

    def compare_and_set(self, writes: Sequence[ConditionalWrite]) -> dict[str, bytes | None]:
        new = [write for write in writes if self.is_full and write.meta is not None]
        conflicts = super().compare_and_set([write for write in writes if write not in new])
        current = super().compare_and_set([ConditionalWrite(write.key, READ, None, None, KEEP) for write in new])
        conflicts |= {write.key: current[write.key] for write in new if current[write.key] != write.expected}
        if refused := [write.key for write in new if write.key not in conflicts]:
            raise StoreFull("the store of a test is full", refused, conflicts)
        return conflicts


@dataclass
class InMemory:
    store: MemoryStore

    def lose(self, key: str) -> None:
        self.store.lose(key)


@dataclass
class OnServers:
    """Redis or memcached."""

    store: RedisStore | MemcachedStore

    def lose(self, key: str) -> None:
        if isinstance(self.store, RedisStore):
            self.store._servers.run(_DELETE, [ScriptCall([key])])
        else:
            with self.store._server_of(item_key(key)).connections.lent() as connection:
                connection.write([b"md %b\r\n" % item_key(key)])


def write_foreign(store: RedisStore | MemcachedStore, key: str) -> None:
    """Write to a key of the store as another program does."""
    if isinstance(store, RedisStore):
        store._servers.run(_SET, [ScriptCall([key])])
    else:
        with store._server_of(item_key(key)).connections.lent() as connection:
            connection.write([b"ms %b 4 T600\r\ntext\r\n" % item_key(key)])


@contextmanager
def opened(kind: str, request: pytest.FixtureRequest) -> Iterator[RedisStore | MemcachedStore]:
    """Open a store of one of the kinds, on the server of the session."""
    with closing(open_store(request.getfixturevalue(f"{kind}_server").url)) as store:
        yield store
