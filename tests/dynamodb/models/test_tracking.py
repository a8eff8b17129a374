"""What is known of objects beside their values goes with them."""

from __future__ import annotations

import copy
import gc
from concurrent.futures import ThreadPoolExecutor

import pytest

from relay.dynamodb.models import Attribute, Model, hash_key, tracking
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


def test_a_column_that_was_deleted_or_set_is_no_longer_one_that_was_not_read() -> None:
    declared = declaration_of(Order)
    found = declared.made({"customer": {"S": "ada"}, "number": {"N": "1"}}, declared.key_names())
    del found.note, found.total
    found.expires = None
    assert (found.note, found.expires) == (None, None)
    with pytest.raises(AttributeError, match=r"Order\.total has no value"):
        _ = found.total
    with pytest.raises(AttributeError, match=r"Order\.tags was not read"):
        _ = found.tags


def test_an_object_that_is_read_while_it_goes_leaves_nothing_behind() -> None:
    """Its place in memory may be the next object's, which must not be taken for it."""

    class Last(Model):
        id: Attribute[str] = hash_key()
        note: Attribute[str | None]

        def __del__(self) -> None:
            self.note = f"last words of {self.note}"

    gc.collect()
    before = len(tracking._tracked)
    for number in range(100):
        alone, first, second = Last(id="a"), Last(id="b"), Last(id=str(number))
        vars(first)["other"], vars(second)["other"] = second, first
    del alone, first, second
    gc.collect()
    assert len(tracking._tracked) == before
    copies = [copy.copy(Last(id="a", note="b")) for _ in range(100)]
    assert {tracking.tracked(each).marked for each in copies} == {frozenset(["id", "note"])}


def test_objects_of_many_threads_are_tracked_apart_and_leave_nothing_behind() -> None:
    gc.collect()
    before = len(tracking._tracked)

    def work(name: str) -> list[Counter]:
        kept = []
        for number in range(5_000):
            counter = Counter(id=name)
            if number % 2:
                counter.count = number
            if number % 1_000 < 2:
                kept.append(counter)
        return kept

    with ThreadPoolExecutor(8) as threads:
        kept = [each for found in threads.map(work, "abcdefgh") for each in found]
    gc.collect()
    assert len(tracking._tracked) - before == len(kept) == 80
    assert [tracking.tracked(each).marked for each in kept] == [{"id"}, {"id", "count"}] * 40
    kept.clear()
    assert len(tracking._tracked) == before


def test_objects_with_the_same_columns_set_share_what_is_known_of_them() -> None:
    """Python's garbage collector looks at every container again and again, so one for each object costs all of them."""
    first, second = Order(customer="ada", number=1), Order(customer="bob", number=2)
    for each in (first, second):
        each.note = "a"
        del each.total
    assert tracking.tracked(first).marked is tracking.tracked(second).marked


def test_a_hundred_thousand_objects_leave_nothing_behind() -> None:
    gc.collect()
    before = len(tracking._tracked)
    kept = []
    for number in range(100_000):
        counter = Counter(id=str(number), count=number)
        if number % 25_000 == 0:
            kept.append(counter)
            assert len(tracking._tracked) - before <= len(kept) + 1
    del counter
    assert len(tracking._tracked) - before == 4
    kept.clear()
    assert len(tracking._tracked) == before


def test_objects_in_a_cycle_leave_nothing_behind() -> None:
    gc.collect()
    before = len(tracking._tracked)
    for _ in range(100):
        first, second = Counter(id="a"), Counter(id="b")
        vars(first)["other"], vars(second)["other"] = second, first
    del first, second
    gc.collect()
    assert len(tracking._tracked) == before
