"""From the URL of a store to the store."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from relay.extras import needs

if TYPE_CHECKING:
    from relay.cache.memcached_store import MemcachedStore
    from relay.cache.redis_store import RedisStore


def open_store(url: str, *, timeout: float = 5.0) -> RedisStore | MemcachedStore:
    """Return the store of a URL, as ``cache.url`` of the config names it. ``timeout``: seconds per answer.

    It connects when it is first used. Raises ``MissingExtra`` for a Redis without its extra.
    """
    if urlsplit(url).scheme in ("memcached", "memcacheds"):
        from relay.cache.memcached_store import MemcachedStore

        return MemcachedStore(url, timeout=timeout)
    with needs("redis", "`cache`"):
        from relay.cache.redis_store import RedisStore
    return RedisStore(url, timeout=timeout)
