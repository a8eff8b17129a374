"""The config file: its keys, their checks, and errors that name line and column. ``load`` reads one."""

from relay.config.config import INTERNAL, Config, load
from relay.config.hidden import redacted
from relay.config.http import HttpConfig
from relay.config.kafka import KafkaConfig, SchemaRegistryConfig
from relay.config.sinks import CacheConfig, CopyConfig, LogConfig
from relay.config.sources import DynamoDBConfig, SourceConfig
from relay.config.spark import SparkConfig
from relay.config.sql_sources import MySQLConfig, VitessConfig

__all__ = [
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
]
