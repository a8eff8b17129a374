"""Loading, saving and deleting objects on DynamoDB Local."""

from __future__ import annotations

import copy
import pickle
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from relay.dynamodb.models import (
    Attribute,
    ConstraintViolation,
    Engine,
    InvalidCondition,
    InvalidModel,
    InvalidValue,
    MissingObjects,
    Model,
    hash_key,
    range_key,
)
from tests.dynamodb.models.shop import Address, Counter, Euro, Mirror, Number, Order, Text

pytestmark = pytest.mark.services

Calls = list[tuple[str, dict[str, Any]]]


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
    return Order(customer=of.customer, number=of.number)


def test_what_was_saved_is_loaded(engine: Engine) -> None:
    saved = order()
    engine.save(saved)
    loaded = again(saved)
    engine.load(loaded, consistent=True)
    assert vars(loaded) == vars(saved)
    assert loaded.address == Address("High Street 1")


def test_numbers_at_the_ends_of_the_range_are_stored_exactly(engine: Engine) -> None:
    """I8"""

    class Extreme(Model, table="extremes"):
        id: Attribute[str] = hash_key()
        most: Attribute[Decimal]
        least: Attribute[Decimal]
        longest: Attribute[int]

    engine.bind(Extreme)
    saved = Extreme(id="a", most=Decimal("9.9999999999999999999999999999999999999E+125"), least=Decimal("1E-130"))
    saved.longest = 10**38 - 1
    engine.save(saved, atomic=True)
    loaded = Extreme(id="a")
    engine.load(loaded, consistent=True)
    assert vars(loaded) == vars(saved)
    engine.save(loaded, atomic=True)


def test_an_absent_optional_column_is_none_a_set_empty_and_any_other_without_a_value(engine: Engine) -> None:
    saved = order()
    engine.save(again(saved))
    loaded = again(saved)
    engine.load(loaded, consistent=True)
    assert (loaded.note, loaded.tags) == (None, set())
    with pytest.raises(AttributeError, match=r"Order\.total has no value: it was not set, and is not in the table"):
        _ = loaded.total


def test_objects_that_share_a_key_are_all_filled_by_one_request_for_it(engine: Engine, calls: Calls) -> None:
    saved = order()
    engine.save(saved)
    first, second = again(saved), again(saved)
    calls.clear()
    engine.load(first, second, first, consistent=True)
    assert vars(first) == vars(second) == vars(saved)
    ((operation, arguments),) = calls
    assert operation == "BatchGetItem"
    assert [len(asked["Keys"]) for asked in arguments["RequestItems"].values()] == [1]
    # What can change in place is not shared.
    first.tags.add("green")
    first.lines.append({})
    first.address.street = "elsewhere"
    assert vars(second) == vars(saved)


def test_objects_of_several_classes_and_tables_are_loaded_together(engine: Engine, calls: Calls) -> None:
    engine.save(Text(id="1", value="text"), Number(id=1, value="number"))
    text, number = Text(id="1"), Number(id=1)
    calls.clear()
    engine.load(text, number, consistent=True)
    assert (text.value, number.value) == ("text", "number")
    assert len(calls) == 1


def test_a_key_of_text_is_not_the_same_number_and_a_key_is_not_its_mirror(engine: Engine) -> None:
    """I8: an index by the sorted values of keys takes (a, b) for (b, a)."""
    engine.save(Mirror(left="a", right="b", size=1), Mirror(left="b", right="a", size=2))
    one, two, none = Mirror(left="a", right="b"), Mirror(left="b", right="a"), Mirror(left="a", right="a")
    with pytest.raises(MissingObjects) as caught:
        engine.load(two, none, one, consistent=True)
    assert (one.size, two.size) == (1, 2)
    assert caught.value.objects == [none]

    class Mixed(Model, table="mirror-of-types"):
        text: Attribute[str] = hash_key()
        number: Attribute[int] = range_key()
        size: Attribute[int]

    engine.bind(Mixed)
    engine.save(Mixed(text="1", number=2, size=12), Mixed(text="2", number=1, size=21))
    objects = [Mixed(text="2", number=1), Mixed(text="1", number=2)]
    engine.load(*objects, consistent=True)
    assert [each.size for each in objects] == [21, 12]


def test_missing_objects_are_raised_and_all_others_loaded(engine: Engine) -> None:
    saved = order()
    engine.save(saved)
    there, missing = again(saved), [order(5), order(6)]
    with pytest.raises(MissingObjects, match=r"2 of 3 objects are not in their tables: Order\(") as caught:
        engine.load(missing[0], there, missing[1], consistent=True)
    assert caught.value.objects == missing
    assert there.note == "gift"


def test_loading_nothing_asks_for_nothing(engine: Engine, calls: Calls) -> None:
    engine.load()
    assert calls == []


def test_an_object_without_its_key_is_refused_before_any_request(engine: Engine, calls: Calls) -> None:
    for call in (engine.load, engine.save, engine.delete):
        with pytest.raises(InvalidValue, match=r"Order\.number has no value, but is part of the key"):
            call(Order(customer="ada"))
    assert calls == []


def test_a_wrong_value_is_refused_before_any_request(engine: Engine, calls: Calls) -> None:
    """I8"""
    wrong: Any = order()
    wrong.total = 1.5
    with pytest.raises(InvalidValue, match=r"Order\.total: '1.5' \(float\) is not a Decimal"):
        engine.save(wrong)
    wrong.total = None
    with pytest.raises(InvalidValue, match=r"Order\.total: 'None' \(NoneType\) is not a Decimal"):
        engine.save(wrong)
    assert calls == []


def test_an_attribute_of_another_type_is_refused_with_its_column(engine: Engine, table_client: Any) -> None:
    """I8"""
    key = {"id": {"S": uuid.uuid4().hex}}
    table_client.put_item(TableName=engine.table_name(Counter), Item={**key, "count": {"S": "many"}})
    with pytest.raises(InvalidValue, match=r"Counter\.count \(attribute count\): the item has .*many.*declared type"):
        engine.load(Counter(id=key["id"]["S"]))


def test_a_null_of_another_application_is_none(engine: Engine, table_client: Any) -> None:
    name = uuid.uuid4().hex
    table_client.put_item(TableName=engine.table_name(Counter), Item={"id": {"S": name}, "by": {"NULL": True}})
    counter = Counter(id=name)
    engine.load(counter, consistent=True)
    assert counter.by is None
    engine.save(counter, atomic=True)  # it was seen as it is


def test_a_save_leaves_columns_alone_that_were_never_set(engine: Engine) -> None:
    saved = order()
    engine.save(saved)
    changed = again(saved)
    changed.note = "changed"
    engine.save(changed)
    loaded = again(saved)
    engine.load(loaded, consistent=True)
    assert vars(loaded) == vars(saved) | {"note": "changed"}


def test_none_and_del_remove_an_attribute_also_if_it_was_not_loaded(engine: Engine, table_client: Any) -> None:
    saved = order()
    engine.save(saved)
    changed = again(saved)
    changed.note = None
    del changed.total
    changed.tags = set()
    engine.save(changed)
    key = {"customer": {"S": saved.customer}, "number": {"N": "1"}}
    item = table_client.get_item(TableName=engine.table_name(Order), Key=key)["Item"]
    assert item.keys() == {"customer", "number", "price", "address", "lines", "expires"}


def test_attributes_that_are_not_declared_survive_a_save(engine: Engine, table_client: Any) -> None:
    name = uuid.uuid4().hex
    item = {"id": {"S": name}, "count": {"N": "1"}, "other": {"S": "kept"}}
    table_client.put_item(TableName=engine.table_name(Counter), Item=item)
    counter = Counter(id=name)
    engine.load(counter, consistent=True)
    counter.count = 2
    engine.save(counter, atomic=True)
    found = table_client.get_item(TableName=engine.table_name(Counter), Key={"id": {"S": name}})["Item"]
    assert found == {**item, "count": {"N": "2"}}


def test_a_delete_removes_the_item_and_may_be_repeated(engine: Engine) -> None:
    saved = order()
    engine.save(saved)
    engine.delete(saved)
    engine.delete(saved)
    with pytest.raises(MissingObjects):
        engine.load(again(saved), consistent=True)


@pytest.mark.parametrize("operation", ["save", "delete"])
def test_a_condition_decides_whether_an_item_is_written(engine: Engine, operation: str) -> None:
    saved = order()
    engine.save(saved)
    write = getattr(engine, operation)
    with pytest.raises(ConstraintViolation, match=r"Order .*: the item is not as the condition wants it"):
        write(saved, condition=Order.total > Decimal(20))
    write(saved, condition=(Order.total < Decimal(20)) & Order.tags.contains("red"))


def test_what_is_not_a_condition_is_refused(engine: Engine) -> None:
    with pytest.raises(InvalidCondition, match="True is not a condition: compare a column of Order"):
        engine.save(order(), condition=True)  # type: ignore[arg-type]


def test_what_is_not_a_table_is_refused(engine: Engine) -> None:
    with pytest.raises(InvalidModel, match="Address declares no table"):
        engine.load(Address("a"))  # type: ignore[arg-type]


# -- atomic saves ---------------------------------------------------------------------------------------------


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
