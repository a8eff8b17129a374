"""The config file: its keys, their checks, and errors that name line and column. ``load`` reads one."""

from __future__ import annotations

from relay.config.config import INTERNAL, Cache, Config, Copy, Log, load
from relay.config.fields import redacted
from relay.config.kafka import Kafka, SchemaRegistry
from relay.config.sources import DynamoDBSource, MySQLSource, Source, VitessSource

__all__ = [
    "INTERNAL",
    "Cache",
    "Config",
    "Copy",
    "DynamoDBSource",
    "Kafka",
    "Log",
    "MySQLSource",
    "SchemaRegistry",
    "Source",
    "VitessSource",
    "load",
    "redacted",
]
