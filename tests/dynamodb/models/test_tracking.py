"""What is known of objects beside their values goes with them."""

from __future__ import annotations

import copy
import pickle

import pytest

from relay.dynamodb.models import Attribute, Model, hash_key, tracking
from relay.dynamodb.models.declaration import declaration_of
from tests.dynamodb.models.shop import Counter, Order


def test_setting_and_deleting_mark_a_column() -> None:
    order = Order(customer="ada", number=1)
    assert tracking.known_of(order).marked == {"customer", "number"}
    order.note = "a"
    del order.total
    assert tracking.known_of(order).marked == {"customer", "number", "note", "total"}
    assert tracking.known_of(order).seen is None


def test_a_loaded_object_has_all_columns_marked_and_a_found_one_those_that_were_projected() -> None:
    declared = declaration_of(Counter)
    item = {"id": {"S": "a"}, "count": {"N": "1"}, "undeclared": {"S": "b"}}
    whole = declared.made(item, declared.names)
    assert tracking.known_of(whole).marked == {"id", "count", "by"}
    assert tracking.known_of(whole).seen == {"id": {"S": "a"}, "count": {"N": "1"}, "by": None}
    part = declared.made(item, frozenset(["id", "count"]))
    assert tracking.known_of(part).marked == {"id", "count"}
    assert tracking.known_of(part).seen == {"id": {"S": "a"}, "count": {"N": "1"}}
    assert tracking.known_of(part).left_out == {"by"}


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


def test_a_copy_or_a_pickled_object_is_new_and_all_of_its_columns_were_set() -> None:
    declared = declaration_of(Counter)
    found = declared.made({"id": {"S": "a"}, "count": {"N": "1"}}, frozenset(["id", "count"]))
    for other in (copy.copy(found), copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert vars(other) == vars(found) == {"id": "a", "count": 1}
        assert tracking.known_of(other).marked == {"id", "count"}
        assert (tracking.known_of(other).seen, tracking.known_of(other).left_out) == (None, frozenset())
    assert tracking.known_of(found).left_out == {"by"}


def test_a_class_with_hooks_of_its_own_is_tracked_beside_them() -> None:
    class Hooked(Model):
        id: Attribute[str] = hash_key()
        note: Attribute[str | None]

        def __getattr__(self, name: str) -> str:
            if name == "__setstate__":
                raise AttributeError(name)
            return f"no {name}"

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, f"{value}!" if name == "note" else value)

        def __del__(self) -> None:
            self.note = f"last words of {self.note}"

    copied = copy.copy(Hooked(id="a"))
    assert tracking.known_of(copied).marked == {"id"}
    copied.note = "b"
    assert (copied.note, tracking.known_of(copied).marked) == ("b!", frozenset(["id", "note"]))


def test_a_class_may_have_other_bases_beside() -> None:
    class Named:
        def name(self) -> str:
            return f"{self} is called so"

    class Both(Named, Counter):
        pass

    assert tracking.known_of(Both(id="a")).marked == {"id"}
    assert Both(id="a").name() == "Both(id='a') is called so"


def test_objects_with_the_same_columns_set_share_what_is_known_of_them() -> None:
    """Python's garbage collector looks at every container again and again, so one for each object costs all of them."""
    first, second = Order(customer="ada", number=1), Order(customer="bob", number=2)
    for each in (first, second):
        each.note = "a"
        del each.total
    assert tracking.known_of(first).marked is tracking.known_of(second).marked
