"""A cache that is never served stale: invalidations are applied to it, and applications read through `TokenCache`."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from relay.cache.cached_function import BYTES, JSON, TEXT, AsyncCachedFunction, CachedFunction, Codec, cached
from relay.cache.entry import Entry, LoadedValue, State, Tokens, fold, invalidated, is_fresher
from relay.cache.invalidator import InvalidationCounts, Invalidator
from relay.cache.keys import key_text
from relay.cache.loaders import DynamoDBLoader, KeyspaceLoader, PrimaryLoader, QueriesLoader, VitessLoader
from relay.cache.memcached_store import MemcachedStore
from relay.cache.memory_store import MemoryStore
from relay.cache.reads import Cached, Outcome
from relay.cache.store import ConditionalWrite, Store, StoredEntry, entry_key, generation_key
from relay.cache.token_cache import AsyncLoad, AsyncLoadMany, AsyncTokenCache, Load, LoadMany, TokenCache
from relay.extras import lazily, needs

if TYPE_CHECKING:
    from relay.cache.redis_store import RedisStore

__all__ = [
    "BYTES",
    "JSON",
    "TEXT",
    "AsyncCachedFunction",
    "AsyncLoad",
    "AsyncLoadMany",
    "AsyncTokenCache",
    "Cached",
    "CachedFunction",
    "Codec",
    "ConditionalWrite",
    "DynamoDBLoader",
    "Entry",
    "InvalidationCounts",
    "Invalidator",
    "KeyspaceLoader",
    "Load",
    "LoadMany",
    "LoadedValue",
    "MemcachedStore",
    "MemoryStore",
    "Outcome",
    "PrimaryLoader",
    "QueriesLoader",
    "RedisStore",
    "State",
    "Store",
    "StoredEntry",
    "TokenCache",
    "Tokens",
    "VitessLoader",
    "cached",
    "entry_key",
    "fold",
    "generation_key",
    "invalidated",
    "is_fresher",
    "key_text",
    "open_store",
]

if not TYPE_CHECKING:  # without this check, a type checker would accept any name
    __getattr__ = lazily(__name__, {"relay.cache.redis_store": "RedisStore"}, "redis")


def open_store(url: str, *, timeout: float = 5.0) -> RedisStore | MemcachedStore:
    """Return the store of a URL such as ``cache.url`` in the config. ``timeout``: seconds per answer.

    It connects when it is first used. Raises ``MissingExtra`` for a Redis without its extra.
    """
    if urlsplit(url).scheme in ("memcached", "memcacheds"):
        return MemcachedStore(url, timeout=timeout)
    with needs("redis", "`cache`"):
        from relay.cache.redis_store import RedisStore
    return RedisStore(url, timeout=timeout)
