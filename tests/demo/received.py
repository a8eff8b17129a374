"""A change of an order, as a reader of the topic receives it."""

from __future__ import annotations

from relay.change import Images, Operation
from relay.demo.workload import HASH_KEY, RANGE_KEY, Item
from relay.kafka.changes import ReceivedChange
from relay.token import EventToken


def received(
    item: Item, version: int | None, operation: str, old: int | None = None, *, partition: int = 0, shard: str = "s"
) -> ReceivedChange:
    return ReceivedChange(
        f"{item}{version}{operation}",
        Operation(operation),
        "orders",
        "orders",
        {HASH_KEY: item[0], RANGE_KEY: item[1]},
        None if old is None else {"version": old},
        None if version is None else {"version": version},
        Images.NEW_AND_OLD,
        EventToken(1, shard, "DynamoDB/1"),
        0,
        topic="shop.orders",
        partition=partition,
        offset=0,
    )
