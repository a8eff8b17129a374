"""A loader for the tests of caches: it returns what a test sets, and records what it was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from relay.cache import LoadedValue, Tokens, is_fresher
from relay.token import EventToken

SHARD = "orders/stream/1"


def token(sequence: int, shard: str = SHARD) -> EventToken:
    return EventToken(100, shard, f"DynamoDB/{sequence}")


def create_orders(client: Any, table: str, **options: Any) -> dict[str, Any]:
    """Create a DynamoDB table of orders by customer and number; return its description."""
    created = client.create_table(
        TableName=table,
        AttributeDefinitions=[
            {"AttributeName": "customer", "AttributeType": "S"},
            {"AttributeName": "number", "AttributeType": "N"},
        ],
        KeySchema=[{"AttributeName": "customer", "KeyType": "HASH"}, {"AttributeName": "number", "KeyType": "RANGE"}],
        BillingMode="PAY_PER_REQUEST",
        **options,
    )
    description: dict[str, Any] = created["TableDescription"]
    return description


@dataclass
class Source:
    """A loader that records its calls. ``meanwhile`` runs after its read, before it returns."""

    value: bytes | None = b"one"
    tokens: Mapping[str, EventToken] = field(default_factory=dict)
    fresher: bool | None = True  # None: by its tokens
    meanwhile: Callable[[], object] = lambda: None
    asked: list[tuple[str, Tokens | None]] = field(default_factory=list)

    def load(self, key: str, compare: Tokens | None) -> LoadedValue:
        self.asked.append((key, compare))
        fresher = is_fresher(self.tokens, compare) if self.fresher is None else self.fresher
        loaded = LoadedValue(self.value, self.tokens, fresher)
        self.meanwhile()
        return loaded

    def load_many(self, wanted: Mapping[str, Tokens | None]) -> dict[str, LoadedValue]:
        return {key: self.load(key, compare) for key, compare in wanted.items()}
