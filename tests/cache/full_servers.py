"""Servers of a test's own that have no room for more, and get some again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Protocol

from relay.cache import ConditionalWrite, MemcachedStore
from relay.errors import StoreFull
from relay.services.memcached import MemcachedServer
from relay.services.redis import RedisServer
from tests.cache.redis_groups import Cluster, RedisSentinel, cluster, command


class Fillable(Protocol):
    url: str

    def fill(self) -> None: ...

    def free(self) -> None: ...


class OneRedis:
    def __init__(self, server: RedisServer) -> None:
        self.server, self.url = server, server.url

    def fill(self) -> None:
        """As if others on the server had taken all."""
        command(self.server, "CONFIG", "SET", "maxmemory", 1)

    def free(self) -> None:
        command(self.server, "CONFIG", "SET", "maxmemory", 0)


class OneOfACluster(OneRedis):
    """The first server is full, with a third of the keys; the others have room."""

    def __init__(self, servers: Cluster) -> None:
        super().__init__(servers.primaries[0])
        self.url = servers.url


class BehindSentinel(OneRedis):
    def __init__(self, server: RedisServer, sentinel: RedisSentinel) -> None:
        super().__init__(server)
        self.url = f"redis+sentinel://{sentinel.address}/cache"


class OneMemcached:
    """Evicts nothing. Its items are of many sizes, each of which has memory of its own."""

    def __init__(self, server: MemcachedServer) -> None:
        self.url = server.url

    def fill(self) -> None:
        with MemcachedStore(self.url) as store:
            for size in range(32, 1200, 24):
                numbers = count()
                with suppress(StoreFull):
                    while True:
                        keys = [f"others:{size}:{next(numbers)}" for _ in range(1000)]
                        store.compare_and_set([ConditionalWrite(key, None, b"x" * size, None, 0.0) for key in keys])

    def free(self) -> None:
        with MemcachedStore(self.url) as store, store._servers[0].connections.lent() as connection:
            connection._socket.sendall(b"flush_all\r\n")
            assert connection._line() == b"OK"


@contextmanager
def fillable(kind: str) -> Iterator[Fillable]:
    """Start a server: ``memcached``, ``sentinel``, ``cluster``, or a Redis with a policy."""
    if kind == "memcached":
        with MemcachedServer(options={"memory-limit": "2", "disable-evictions": ""}) as memcached:
            yield OneMemcached(memcached)
    elif kind == "sentinel":
        with RedisServer() as primary, RedisSentinel(primary) as sentinel:
            yield BehindSentinel(primary, sentinel)
    elif kind == "cluster":
        with cluster(node_timeout=60.0) as servers:
            yield OneOfACluster(servers)
    else:
        with RedisServer(options={"maxmemory-policy": kind}) as server:
            yield OneRedis(server)
