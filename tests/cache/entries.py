"""Entries and tokens as the tests of the rules write them."""

from __future__ import annotations

from relay.cache.entry import Entry, State, Tokens
from relay.token import EventToken

G = "generation"
PARENT, LEFT, RIGHT = "shop/commerce/-", "shop/commerce/-80", "shop/commerce/80-"
UUID = "8ad8d8b4-0000-11ee-b7b9-0242ac120002"


def dynamo(sequence: int, shard: str = "orders/stream/1", timestamp: int = 100) -> EventToken:
    return EventToken(timestamp, shard, f"DynamoDB/{sequence}")


def mysql(last: int, shard: str, timestamp: int = 100) -> EventToken:
    return EventToken(timestamp, shard, f"MySQL56/{UUID}:1-{last}")


def value(*tokens: EventToken) -> Entry:
    return Entry(State.VALUE, G, {token.shard: token for token in tokens})


def tombstone(tokens: Tokens) -> Entry:
    return Entry(State.TOMBSTONE, G, tokens)


def by_shard(*tokens: EventToken) -> dict[str, EventToken]:
    return {token.shard: token for token in tokens}
