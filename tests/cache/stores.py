"""Stores on real servers, for tests that run on each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pytest

from relay.cache import MemcachedStore, RedisStore, open_store
from relay.cache.memcached_store import item_key
from relay.cache.redis_servers import Script, ScriptCall

KINDS = [
    pytest.param(name, marks=pytest.mark.services)
    for name in ("redis", "redis_cluster", "memcached", "several_memcached")
]


_DELETE = Script("return redis.call('DEL', KEYS[1])")


@dataclass
class OnServers:
    """A store that loses what it is told to lose."""

    store: RedisStore | MemcachedStore

    def lose(self, key: str) -> None:
        if isinstance(self.store, RedisStore):
            self.store._servers.run(_DELETE, [ScriptCall([key])])
        else:
            with self.store._server_of(item_key(key)).connections.lent() as connection:
                connection.write([b"md %b\r\n" % item_key(key)])


@contextmanager
def opened(kind: str, request: pytest.FixtureRequest) -> Iterator[RedisStore | MemcachedStore]:
    """Open a store of one of the kinds, on the server of the session."""
    with closing(open_store(request.getfixturevalue(f"{kind}_server").url)) as store:
        yield store
