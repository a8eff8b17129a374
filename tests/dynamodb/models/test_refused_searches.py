"""Searches that their table or index cannot answer."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from relay.dynamodb.models import Engine, GlobalIndex, InvalidSearch
from tests.dynamodb.models.shop import Counter, Mirror, Order

pytestmark = pytest.mark.services

Calls = list[tuple[str, dict[str, Any]]]


def test_an_index_that_nothing_needs_is_not_declared_to_be_searched(engine: Engine) -> None:
    with pytest.raises(InvalidSearch, match=r"<GlobalIndex\[other\]> is not an index of Order"):
        engine.scan(Order, index=GlobalIndex(hash="note", name="other"))


@pytest.mark.parametrize(
    ("search", "message"),
    [
        (lambda e: e.query(Order, Order.number == 1), r"Order: .* is not a key: .* Order\.customer == a value, and"),
        (lambda e: e.query(Order, Order.customer > "a"), "is not a key"),
        (lambda e: e.query(Order, (Order.customer == "a") | (Order.number == 1)), "is not a key"),
        (lambda e: e.query(Order, (Order.customer == "a") & (Order.total == Decimal(1))), r"is not a key.*`filter=`"),
        (lambda e: e.query(Order, (Order.customer == "a") & (Order.number != 1)), "is not a key"),
        (lambda e: e.query(Order, Order.customer.is_(None)), "is not a key"),
        (lambda e: e.query(Order, (Order.customer == "a") & (Order.customer == "a")), "is not a key"),
        (lambda e: e.query(Order, (Order.number == 1) & (Order.number == 1)), "is not a key"),
        (lambda e: e.query(Order, Order.customer.between("a", "b") & (Order.number == 1)), "is not a key"),
        (lambda e: e.query(Order, Order.customer.begins_with("a")), "is not a key"),
        (lambda e: e.query(Order, ~(Order.customer == "a")), "is not a key"),
        (lambda e: e.query(Order, Order.customer.in_(["a"])), "is not a key"),
        (lambda e: e.query(Order, Order.customer == Mirror.left), "is not a key"),
        (lambda e: e.query(Order, (Order.customer == "a") & (Order.number >= Order.total)), "is not a key"),  # type: ignore
        (lambda e: e.query(Order, (Order.customer == "a") & Order.number.in_([1])), "is not a key"),
        (lambda e: e.query(Order, (Order.customer == "a") & ~(Order.number == 1)), "is not a key"),
        (
            lambda e: e.query(Order, (Order.customer == "a") & (Order.number > 1) & (Order.number < 5)),
            r"is not a key: .* at most one of",
        ),
        (lambda e: e.query(Order, True), "Order: True is not a key"),
        (lambda e: e.query(Counter, (Counter.id == "a") & (Counter.count == 1)), r"Counter.* == a value; use"),
        (
            lambda e: e.query(Order, Order.customer == "a", index=Order.by_note),
            r"Order\.by_note: .*Order\.note == a value",
        ),
        (
            lambda e: e.query(Order, Order.note == "a", index=Order.by_note, consistent=True),
            "cannot be read consistently",
        ),
        (lambda e: e.scan(Order, filter=True), "Order: True is not a condition"),
        (
            lambda e: e.query(Order, Order.customer == "a", filter=~(Order.number == 1)),
            r"Order\.number belongs to the key of Order, which the filter of a query cannot test: test it in the key",
        ),
        (
            lambda e: e.query(Order, Order.note == "a", index=Order.by_note, filter=Order.note.contains("b")),
            r"Order\.note belongs to the key of Order\.by_note",
        ),
        (
            lambda e: e.query(Order, Order.note == "a", index=Order.by_note, filter=Order.address["zip"].is_(None)),
            r"Order\.address\['zip'\] cannot be tested: Order\.by_note does not have it",
        ),
        (
            lambda e: e.scan(Order, index=Order.by_total, filter=(Order.total > Decimal(1)) | Order.tags.contains("a")),
            r"Order\.tags cannot be tested: Order\.by_total does not have it",
        ),
        (
            lambda e: e.query(Order, Order.customer == "a", index=Order.by_price, filter=Order.expires.is_(None)),
            r"Order\.expires cannot be tested: Order\.by_price does not have it",
        ),
        (
            lambda e: e.scan(Order, index=Order.by_note, filter=Order.note == Order.address["street"]),
            r"Order\.address\['street'\] cannot be tested: Order\.by_note does not have it",
        ),
        (
            lambda e: e.scan(Order, filter=Counter.count == 1),
            r"Counter\.count cannot be tested: Order does not have it",
        ),
        (
            lambda e: e.scan(Order, projection=["totl"]),
            "Order: 'totl' cannot be projected: it is not a column of Order",
        ),
        (lambda e: e.scan(Order, projection=[Counter.count]), r"Counter\.count cannot be projected"),
        (lambda e: e.scan(Order, index=Order.by_note, projection=["total"]), r"Order\.total .*Order\.by_note does not"),
        (lambda e: e.scan(Order, parallel=(2, 2)), r"parallel=\(2, 2\): the number of the part must be from 0 to 1"),
    ],
)
def test_a_search_that_cannot_be_answered_is_refused_before_it_is_sent(
    engine: Engine, calls: Calls, search: Any, message: str
) -> None:
    with pytest.raises(InvalidSearch, match=message):
        search(engine)
    assert calls == []
