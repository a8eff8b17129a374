"""Relay database changes to Kafka exactly once, and keep caches and copies honest.

The names that most programs need are here and load on first use; ``relay.cache``, ``relay.dynamodb``, ``relay.mysql``,
``relay.vitess`` and ``relay.avro`` have the others.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing it takes most of the time until `relay run` handles signals

if TYPE_CHECKING:
    from typing import Any

    from relay.change import Change, Operation
    from relay.errors import ConfigError, MissingExtra, RelayError, Unavailable
    from relay.gtid import GtidError, GtidSet
    from relay.kafka.changes import ReceivedChange, changes
    from relay.token import EventToken, Order, OriginToken, compare
    from relay.types.items import item_values

__version__ = "0.1.0"

__all__ = [
    "Change", "ConfigError", "EventToken", "GtidError", "GtidSet", "MissingExtra", "Operation", "Order", "OriginToken",
    "ReceivedChange", "RelayError", "Unavailable", "__version__", "changes", "compare", "item_values"
]  # fmt: skip

if not TYPE_CHECKING:  # without this check, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        from relay.extras import lazily

        homes = {
            "relay.change": "Change Operation",
            "relay.errors": "ConfigError MissingExtra RelayError Unavailable",
            "relay.gtid": "GtidError GtidSet",
            "relay.kafka.changes": "ReceivedChange changes",
            "relay.token": "EventToken Order OriginToken compare",
            "relay.types.items": "item_values",
        }
        return lazily(__name__, homes)(name)
