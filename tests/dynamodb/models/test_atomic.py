"""Atomic saves and deletes on DynamoDB Local: only if the item is as the object last saw it."""

from __future__ import annotations

import copy
import pickle
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.dynamodb.models import Attribute, ConstraintViolation, Engine, Model, hash_key
from tests.dynamodb.models.shop import Order, again, order

pytestmark = pytest.mark.services


def test_a_new_object_is_saved_atomically_only_if_its_item_is_absent(engine: Engine) -> None:
    saved = order()
    engine.save(saved, atomic=True)
    with pytest.raises(ConstraintViolation):
        engine.save(again(saved), atomic=True)
    engine.save(saved, atomic=True)


def test_a_loaded_object_is_saved_atomically_only_if_its_item_is_as_it_was(engine: Engine) -> None:
    saved = order(note=None)
    engine.save(saved)
    first, second = again(saved), again(saved)
    engine.load(first, second, consistent=True)
    first.total = Decimal(1)
    second.total = Decimal(2)
    engine.save(first, atomic=True)
    with pytest.raises(ConstraintViolation):
        engine.save(second, atomic=True)
    engine.load(second, consistent=True)
    assert second.total == 1
    second.total = Decimal(3)
    engine.save(second, atomic=True)


def test_an_attribute_that_was_absent_has_to_be_absent(engine: Engine) -> None:
    saved = order(note=None)
    engine.save(saved)
    other = again(saved)
    other.note = "mine"
    engine.save(other)
    saved.total = Decimal(1)
    with pytest.raises(ConstraintViolation):
        engine.save(saved, atomic=True)


def test_only_columns_that_were_set_or_loaded_are_compared(engine: Engine) -> None:
    saved = order()
    engine.save(saved)
    part = again(saved)
    part.note = "part"
    engine.save(part)
    saved_again = again(saved)
    saved_again.total = Decimal(7)
    engine.save(saved_again)
    part.note = "more"
    engine.save(part, atomic=True)  # the total, which another has changed, it never saw


def test_changes_in_place_are_saved_and_the_snapshot_is_not_changed_by_them(engine: Engine) -> None:
    saved = order()
    engine.save(saved)
    saved.tags.add("green")
    saved.lines[0]["count"] = Decimal(3)
    engine.save(saved, atomic=True)
    loaded = again(saved)
    engine.load(loaded, consistent=True)
    assert (loaded.tags, loaded.lines) == (saved.tags, saved.lines)
    loaded.tags.clear()
    engine.save(loaded, atomic=True)
    engine.save(loaded, atomic=True)


def test_a_failed_save_leaves_the_snapshot_and_the_changes(engine: Engine) -> None:
    saved = order()
    engine.save(saved)
    saved.note = "later"
    with pytest.raises(ConstraintViolation):
        engine.save(saved, condition=Order.total > Decimal(100))
    engine.save(saved, atomic=True)
    loaded = again(saved)
    engine.load(loaded, consistent=True)
    assert loaded.note == "later"


def test_an_atomic_delete_wants_the_item_as_it_was_seen_and_after_it_the_object_is_new(engine: Engine) -> None:
    saved = order()
    engine.save(saved)
    other = again(saved)
    other.note = "other"
    engine.save(other)
    with pytest.raises(ConstraintViolation):
        engine.delete(saved, atomic=True)
    engine.load(saved, consistent=True)
    engine.delete(saved, atomic=True)
    engine.save(saved, atomic=True)
    loaded = again(saved)
    engine.load(loaded, consistent=True)
    assert vars(loaded) == vars(saved)


def test_a_condition_and_the_snapshot_both_have_to_hold(engine: Engine) -> None:
    saved = order()
    engine.save(saved)
    with pytest.raises(ConstraintViolation):
        engine.save(saved, atomic=True, condition=Order.total > Decimal(20))
    either = (Order.total > Decimal(20)) | (Order.total < Decimal(20))
    engine.save(saved, atomic=True, condition=either)
    stale = again(saved)
    with pytest.raises(ConstraintViolation):
        engine.save(stale, atomic=True, condition=either)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copy_is_a_new_object_whose_columns_were_all_set(engine: Engine, how: Any) -> None:
    saved = order()
    engine.save(saved)
    vars(saved)["remark"] = "no column"
    copied = how(saved)
    with pytest.raises(ConstraintViolation):
        engine.save(copied, atomic=True)
    engine.delete(saved)
    engine.save(copied, atomic=True)
    loaded = again(saved)
    engine.load(loaded, consistent=True)
    assert vars(loaded) | {"remark": "no column"} == vars(saved)


def test_two_objects_that_are_equal_are_tracked_apart(engine: Engine) -> None:
    class Same(Model, table="same-hash"):
        id: Attribute[str] = hash_key()
        value: Attribute[int]

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 1

    engine.bind(Same)
    first, second = Same(id="a", value=1), Same(id="b")
    engine.save(first, second)
    loaded = Same(id="b")
    engine.load(loaded, consistent=True)
    assert "value" not in vars(loaded)


def test_what_a_projection_left_out_may_be_set_or_deleted_and_all_else_stays(engine: Engine) -> None:
    saved = order(note=uuid.uuid4().hex)
    engine.save(saved)
    found = engine.query(Order, Order.note == saved.note, index=Order.by_note).one()
    assert vars(found).keys() == {"customer", "number", "note"}
    found.tags = {"new"}
    del found.expires
    engine.save(found, atomic=True)  # of the others it has seen nothing
    loaded = again(saved)
    engine.load(loaded, consistent=True)
    assert vars(loaded) == {name: v for name, v in vars(saved).items() if name != "expires"} | {"tags": {"new"}}
    # Now it has seen them, too.
    other = again(saved)
    other.tags = {"other"}
    engine.save(other)
    with pytest.raises(ConstraintViolation):
        engine.save(found, atomic=True)


def test_an_object_that_was_given_another_key_is_not_saved_atomically_over_another_item(engine: Engine) -> None:
    first, second = order(1), order(2)
    second.customer = first.customer
    engine.save(first)
    engine.load(first, consistent=True)
    first.number = 2
    for there in (False, True):
        if there:
            engine.save(second)
        with pytest.raises(ConstraintViolation):
            engine.save(first, atomic=True)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "text": st.sampled_from(["", "a", "\u00e9", "\U0001f600", "\x00"]),
            "raw": st.sampled_from([b"", b"\x00\xff"]),
            "number": st.sampled_from([0, -1, 10**37, 10**38 - 1, -(10**38) + 1]),
            "exact": st.sampled_from([Decimal(text) for text in ("0", "-0", "1E-130", "9.9E+125", "0.10", "1E+3")]),
            "ratio": st.sampled_from([0.0, -0.0, 0.1, 1e-100, 1.7976931348623157e100]),
            "flags": st.lists(st.none() | st.booleans(), max_size=2),
            "words": st.sets(st.sampled_from(["", "a", "b"]), max_size=2),
            "sizes": st.sets(st.sampled_from([0, 1, 10**38 - 1]), max_size=2),
            "blobs": st.sets(st.sampled_from([b"", b"a", b"\xff"]), max_size=2),
            "any": st.sampled_from([None, "", [], {}, [[{}]], {" ": {"a"}}, {Decimal(1), Decimal(2)}, b"", True]),
        },
    )
)
@settings(max_examples=60, deadline=None)
def test_whatever_is_stored_can_be_saved_atomically_again(engine: Engine, values: dict[str, Any]) -> None:
    """I8: DynamoDB finds equal to what it returned whatever a column can hold."""
    engine.bind(Every)
    saved = Every(id=uuid.uuid4().hex, **values)
    engine.save(saved, atomic=True)
    engine.save(saved, atomic=True)
    loaded = Every(id=saved.id)
    engine.load(loaded, consistent=True)
    empty: dict[str, Any] = {"words": set(), "sizes": set(), "blobs": set()}
    given = {name: value for name, value in values.items() if value is not None}
    assert vars(loaded) == {"id": saved.id} | empty | given
    engine.save(loaded, atomic=True)
    found = engine.query(Every, Every.id == saved.id, projection=["any", "number", "words"], consistent=True).one()
    engine.save(found, atomic=True)
    engine.delete(loaded, atomic=True)


class Every(Model, table="every"):
    """A column of each type."""

    id: Attribute[str] = hash_key()
    text: Attribute[str]
    raw: Attribute[bytes]
    number: Attribute[int]
    exact: Attribute[Decimal]
    ratio: Attribute[float]
    flags: Attribute[list[bool | None]]
    words: Attribute[set[str]]
    sizes: Attribute[frozenset[int]]
    blobs: Attribute[set[bytes]]
    any: Attribute[Any]
