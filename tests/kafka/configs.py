"""A config with one source, for tests of its topics."""

from __future__ import annotations

from typing import Any

from relay.config import Config


def config(name: str, bootstrap_servers: str, *, key: str = "hash", **kafka: Any) -> Config:
    return Config.model_validate(
        {
            "name": name,
            "kafka": {"bootstrap_servers": bootstrap_servers, "partitions": 3, **kafka},
            "sources": [{"name": "orders", "type": "dynamodb", "table": "orders", "key": key}],
        }
    )
