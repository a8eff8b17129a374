"""Relay database changes to Kafka exactly once, and keep caches and copies honest.

The names that most programs need are here and load on first use; ``relay.cache``, ``relay.dynamodb``, ``relay.mysql``,
``relay.vitess`` and ``relay.avro`` have the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.extras import lazily

if TYPE_CHECKING:
    from relay.change import Change, Operation
    from relay.errors import ConfigError, MissingExtra, RelayError, Unavailable
    from relay.gtid import GtidError, GtidSet
    from relay.kafka.changes import ReceivedChange, changes
    from relay.token import EventToken, Order, OriginToken, compare
    from relay.types.items import item_values

__version__ = "0.1.0"

__all__ = [
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
    "item_values",
]

if not TYPE_CHECKING:  # or a type checker would take any name
    __getattr__ = lazily(
        __name__,
        {
            "relay.change": "Change Operation",
            "relay.errors": "ConfigError MissingExtra RelayError Unavailable",
            "relay.gtid": "GtidError GtidSet",
            "relay.kafka.changes": "ReceivedChange changes",
            "relay.token": "EventToken Order OriginToken compare",
            "relay.types.items": "item_values",
        },
    )
