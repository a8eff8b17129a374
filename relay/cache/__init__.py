"""The cache kept honest: invalidations applied to it, and the half that applications read it with.

Everything an application or a consumer needs is named here; the modules behind may move.
"""

from relay.cache.entry import Entry, Loaded, State, Tokens, fold, invalidated, is_fresher
from relay.cache.invalidator import Counts, Invalidator
from relay.cache.loaders import DynamoDBLoader, QueriesLoader, VitessLoader
from relay.cache.memory_store import MemoryStore
from relay.cache.redis_store import RedisStore
from relay.cache.store import Store, Stored, Write, entry_key, generation_key
from relay.cache.token_cache import Cached, Load, LoadMany, Outcome, TokenCache

__all__ = [
    "Cached",
    "Counts",
    "DynamoDBLoader",
    "Entry",
    "Invalidator",
    "Load",
    "LoadMany",
    "Loaded",
    "MemoryStore",
    "Outcome",
    "QueriesLoader",
    "RedisStore",
    "State",
    "Store",
    "Stored",
    "TokenCache",
    "Tokens",
    "VitessLoader",
    "Write",
    "entry_key",
    "fold",
    "generation_key",
    "invalidated",
    "is_fresher",
]
