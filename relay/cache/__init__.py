"""A cache that is never served stale: invalidations are applied to it, and applications read through `TokenCache`."""

from relay.cache.entry import Entry, LoadedValue, State, Tokens, fold, invalidated, is_fresher
from relay.cache.invalidator import InvalidationCounts, Invalidator
from relay.cache.loaders import DynamoDBLoader, QueriesLoader, VitessLoader
from relay.cache.memory_store import MemoryStore
from relay.cache.redis_store import RedisStore
from relay.cache.store import ConditionalWrite, Store, StoredEntry, entry_key, generation_key
from relay.cache.token_cache import Cached, Load, LoadMany, Outcome, TokenCache

__all__ = [
    "Cached",
    "ConditionalWrite",
    "DynamoDBLoader",
    "Entry",
    "InvalidationCounts",
    "Invalidator",
    "Load",
    "LoadMany",
    "LoadedValue",
    "MemoryStore",
    "Outcome",
    "QueriesLoader",
    "RedisStore",
    "State",
    "Store",
    "StoredEntry",
    "TokenCache",
    "Tokens",
    "VitessLoader",
    "entry_key",
    "fold",
    "generation_key",
    "invalidated",
    "is_fresher",
]
