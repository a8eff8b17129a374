"""Tokens of one position for tests of floors, and what these say about them."""

from __future__ import annotations

from relay.token import EventToken

LEFT, RIGHT = "shop/commerce/-80", "shop/commerce/80-"
SERVER = "8ad8d8b4-0000-11ee-b7b9-0242ac120002"
TTL = 1000.0


def token(last: int, shard: str = LEFT) -> EventToken:
    return EventToken(100, shard, f"MySQL56/{SERVER}:1-{last}")
