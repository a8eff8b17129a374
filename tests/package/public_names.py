"""The public names of the packages: a literal list, so that a removal is noticed."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]

PUBLIC = {
    "relay": [
        "Change",
        "ConfigError",
        "EventToken",
        "GtidError",
        "GtidSet",
        "MissingExtra",
        "Operation",
        "Order",
        "OriginToken",
        "ReceivedChange",
        "RelayError",
        "Unavailable",
        "__version__",
        "changes",
        "compare",
    ],
    "relay.cache": [
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
    ],
    "relay.config": [
        "INTERNAL",
        "CacheConfig",
        "Config",
        "CopyConfig",
        "DynamoDBConfig",
        "HttpConfig",
        "KafkaConfig",
        "LogConfig",
        "MySQLConfig",
        "SchemaRegistryConfig",
        "SourceConfig",
        "SparkConfig",
        "VitessConfig",
        "load",
        "redacted",
    ],
    "relay.dynamodb": [
        "InvalidPosition",
        "InvalidStream",
        "IteratorExpired",
        "Loaded",
        "Record",
        "Stream",
        "StreamToken",
        "batch_load",
    ],
    "relay.mysql": ["ReplicationWatcher", "TokenQueries"],
    "relay.vitess": [
        "KeyRange",
        "NoKeyspaceId",
        "UncomputableVindex",
        "VindexError",
        "keyspace_id",
        "shards_covering",
    ],
    "relay.vitess.keyrange": ["KeyRange", "shards_covering"],
    "spark_consumers": [
        "ChangeStream",
        "apply_in_order",
        "changes",
        "close_session",
        "log_views",
        "open_session",
        "read_changes",
        "run",
    ],
}
"""Add a name here when it becomes public. Taking one away breaks programs: it needs a new major version."""

BY_MODULE = {
    "relay.token": ["EventToken", "OriginToken", "Order", "compare"],
    "relay.gtid": ["GtidError", "GtidSet", "parse"],
    "relay.vitess.vindex": ["keyspace_id"],
    "relay.mysql.queries": ["TokenQueries"],
    "relay.mysql.watcher": ["ReplicationWatcher"],
}
"""Public names of modules that have no ``__all__``."""

NEEDS_SPARK = [name for name in PUBLIC["spark_consumers"] if name != "run"]
"""The names that load PySpark when they are first used."""

CORE = ["relay", "relay.config", "relay.gtid", "relay.token", "relay.vitess.keyrange", "spark_consumers"]
"""The modules whose public names need no extra."""
