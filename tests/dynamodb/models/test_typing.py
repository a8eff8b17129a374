"""What a type checker knows about columns: ``make lint`` fails if one of these is no longer so."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, assert_type

import pytest

from relay.dynamodb.models import Attribute, Condition, Engine, InvalidValue, Search
from relay.dynamodb.models.conditions import Placeholders
from tests.dynamodb.models.shop import Euro, Order


def test_a_column_of_an_object_has_the_type_of_its_value_and_that_of_the_class_is_a_column() -> None:
    order = Order(customer="ada", number=1, total=Decimal(1))
    assert_type(order.customer, str)
    assert_type(order.note, str | None)
    assert_type(order.total, Decimal)
    assert_type(Order.total, Attribute[Decimal])
    assert_type(Order.price, Attribute[Euro])
    assert_type(Order.total > Decimal(1), Condition)
    assert_type(Order.note.is_(None), Condition)
    assert (type(Order.total), type(order.total)) == (Attribute, Decimal)


def test_a_value_of_another_type_is_refused_by_a_type_checker_and_when_it_is_used() -> None:
    order = Order(customer="ada", number=1)
    order.total = "free"  # type: ignore[assignment]
    with pytest.raises(InvalidValue, match=r"Order\.total"):
        Order.total.wire(order)
    with pytest.raises(InvalidValue, match=r"Order\.total"):
        (Order.total > "free").render(Placeholders())  # type: ignore[operator]


def results(engine: Engine) -> Any:
    """Nothing calls this: a type checker reads it."""
    search = engine.query(Order, Order.customer == "ada")
    assert_type(search, Search[Order])
    assert_type(search.first(), Order)
    return [assert_type(each.total, Decimal) for each in engine.scan(Order)]
