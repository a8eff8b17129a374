"""What is known of objects beside their values goes with them."""

from __future__ import annotations

import gc

from relay.dynamodb.models import tracking
from relay.dynamodb.models.declaration import declaration_of
from tests.dynamodb.models.shop import Counter, Order


def test_setting_and_deleting_mark_a_column() -> None:
    order = Order(customer="ada", number=1)
    assert tracking.tracked(order).marked == {"customer", "number"}
    order.note = "a"
    del order.total
    assert tracking.tracked(order).marked == {"customer", "number", "note", "total"}
    assert tracking.tracked(order).seen is None


def test_a_loaded_object_has_all_columns_marked_and_a_found_one_those_that_were_projected() -> None:
    declared = declaration_of(Counter)
    item = {"id": {"S": "a"}, "count": {"N": "1"}, "undeclared": {"S": "b"}}
    whole = declared.made(item, declared.names)
    assert tracking.tracked(whole).marked == {"id", "count", "by"}
    assert tracking.tracked(whole).seen == {"id": {"S": "a"}, "count": {"N": "1"}, "by": None}
    part = declared.made(item, frozenset(["id", "count"]))
    assert tracking.tracked(part).marked == {"id", "count"}
    assert tracking.tracked(part).seen == {"id": {"S": "a"}, "count": {"N": "1"}}
    assert tracking.tracked(part).left_out == {"by"}


def test_a_million_objects_leave_nothing_behind() -> None:
    gc.collect()
    before = tracking.count()
    kept = []
    for number in range(1_000_000):
        counter = Counter(id=str(number), count=number)
        if number % 250_000 == 0:
            kept.append(counter)
            assert tracking.count() - before <= len(kept) + 1
    del counter
    assert tracking.count() - before == 4
    kept.clear()
    assert tracking.count() == before


def test_objects_in_a_cycle_leave_nothing_behind() -> None:
    gc.collect()
    before = tracking.count()
    for _ in range(100):
        first, second = Counter(id="a"), Counter(id="b")
        vars(first)["other"], vars(second)["other"] = second, first
    del first, second
    gc.collect()
    assert tracking.count() == before
