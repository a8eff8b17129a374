"""Declared tables that the tests share."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any

from relay.dynamodb.models import (
    Attribute,
    GlobalIndex,
    LocalIndex,
    Model,
    Seconds,
    column,
    hash_key,
    range_key,
    stored_as,
)


@dataclass
class Address:
    street: str
    zip: str | None = None


@dataclass(frozen=True)
class Euro:
    amount: Decimal


Money = Annotated[Euro, stored_as(Decimal, dump=lambda euro: euro.amount, load=Euro)]


class Order(
    Model, table="orders", stream="NEW_AND_OLD_IMAGES", ttl="expires", cache_keys=["order:{customer}:{number}"]
):
    customer: Attribute[str] = hash_key()
    number: Attribute[int] = range_key()
    total: Attribute[Decimal]
    price: Attribute[Money]
    tags: Attribute[set[str]]
    note: Attribute[str | None] = column("n")
    address: Attribute[Address]
    lines: Attribute[list[dict[str, Any]]]
    expires: Attribute[Seconds | None]

    by_total = GlobalIndex(hash="customer", range="total", projection=["note"])
    by_note = GlobalIndex(hash="note", projection="keys", name="by-note")
    by_price = LocalIndex(range="price", projection="keys")


class Counter(Model, table="counters", cache_keys=["counter:{id}"]):
    id: Attribute[str] = hash_key()
    count: Attribute[int]
    by: Attribute[str | None]


class Mirror(Model, table="mirror"):
    """Its keys tell (a, b) from (b, a)."""

    left: Attribute[str] = hash_key()
    right: Attribute[str] = range_key()
    size: Attribute[int | None]


class Text(Model, table="ids-text"):
    id: Attribute[str] = hash_key()
    value: Attribute[str]


class Number(Model, table="ids-number"):
    id: Attribute[int] = hash_key()
    value: Attribute[str]


def order(number: int = 1, **values: Any) -> Order:
    """Return an order of a customer of its own."""
    return Order(
        customer=uuid.uuid4().hex,
        number=number,
        **{
            "total": Decimal("19.90"),
            "price": Euro(Decimal("9.95")),
            "tags": {"red", "blue"},
            "note": "gift",
            "address": Address("High Street 1"),
            "lines": [{"sku": "a", "count": Decimal(2), "blob": b"\x00"}],
            "expires": datetime(2030, 1, 1, tzinfo=UTC),
        }
        | values,
    )


def again(of: Order) -> Order:
    """Return an order with the same key, and nothing else."""
    return Order(customer=of.customer, number=of.number)
