"""Loading, saving and deleting objects on DynamoDB Local."""

from __future__ import annotations

import uuid
from decimal import Decimal
from typing import Any

import pytest

from relay.dynamodb.models import (
    Attribute,
    Condition,
    ConstraintViolation,
    Engine,
    InvalidCondition,
    InvalidModel,
    InvalidValue,
    MissingObjects,
    Model,
    column,
    hash_key,
    range_key,
)
from tests.dynamodb.models.shop import Address, Counter, Mirror, Number, Order, Text, again, order

pytestmark = pytest.mark.services

Calls = list[tuple[str, dict[str, Any]]]


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
    with pytest.raises(ConstraintViolation, match=r"Order .*: the item does not meet the condition"):
        write(saved, condition=Order.total > Decimal(20))
    write(saved, condition=(Order.total < Decimal(20)) & Order.tags.contains("red"))


def test_what_is_not_a_condition_is_refused(engine: Engine) -> None:
    with pytest.raises(InvalidCondition, match="True is not a condition: compare a column of Order"):
        engine.save(order(), condition=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("operation", ["save", "delete"])
@pytest.mark.parametrize(
    "condition", [Counter.by.is_(None), (Order.number == 1) & ~(Counter.count > 1), Order.customer != Mirror.left]
)
def test_a_condition_on_a_column_of_another_class_is_refused(
    engine: Engine, calls: Calls, operation: str, condition: Condition
) -> None:
    """The item has no such attribute, so it would not guard anything."""
    with pytest.raises(InvalidCondition, match=r"(Counter|Mirror)\.\w+ cannot be tested: Order does not have it"):
        getattr(engine, operation)(order(), condition=condition)
    assert calls == []


def test_what_is_not_a_table_is_refused(engine: Engine) -> None:
    with pytest.raises(InvalidModel, match="Address declares no table"):
        engine.load(Address("a"))  # type: ignore[arg-type]


def test_a_save_of_a_key_alone_makes_the_item(engine: Engine) -> None:
    counter = Counter(id=uuid.uuid4().hex)
    engine.save(counter, condition=Counter.id.is_(None))
    engine.load(counter, consistent=True)
    with pytest.raises(ConstraintViolation):
        engine.save(Counter(id=counter.id), condition=Counter.id.is_(None))


@pytest.mark.parametrize("operation", ["save", "delete"])
def test_a_condition_is_of_each_object_and_the_first_failure_ends_the_call(engine: Engine, operation: str) -> None:
    objects = [Counter(id=uuid.uuid4().hex, count=count) for count in (1, 5, 1)]
    engine.save(*objects)
    for each in objects:
        each.count += 10
    with pytest.raises(ConstraintViolation, match=objects[1].id):
        getattr(engine, operation)(*objects, condition=Counter.count == 1)
    left = [[found.count for found in engine.query(Counter, Counter.id == each.id)] for each in objects]
    assert left == [[11] if operation == "save" else [], [5], [1]]


def test_two_classes_may_share_a_table_and_each_loads_its_own_columns(engine: Engine) -> None:
    class Raw(Model, table="counters"):
        key: Attribute[str] = hash_key("id")
        number: Attribute[Decimal] = column("count")
        other: Attribute[str | None]

    name = uuid.uuid4().hex
    engine.save(Counter(id=name, count=3, by="ada"))
    counter, raw = Counter(id=name), Raw(key=name)
    engine.load(counter, raw, consistent=True)
    assert vars(counter) == {"id": name, "count": 3, "by": "ada"}
    assert (vars(raw), raw.other) == ({"key": name, "number": Decimal(3)}, None)
    raw.other = "new"
    engine.save(raw, atomic=True)
    with pytest.raises(MissingObjects):
        engine.load(counter, Raw(key="nobody"), consistent=True)
    engine.save(counter, atomic=True)  # the other class' columns are not its own


def test_two_classes_that_disagree_on_the_key_of_their_table_are_not_loaded_together(
    engine: Engine, calls: Calls
) -> None:
    """I8"""

    class Wrong(Model, table="ids-text"):
        id: Attribute[int] = hash_key()

    for objects in ([Text(id="1"), Wrong(id=1)], [Wrong(id=1), Text(id="1")]):
        with pytest.raises(InvalidModel, match=r"(Text|Wrong) and (Text|Wrong) declare different keys for .*ids-text"):
            engine.load(*objects)
    assert calls == []


def test_a_load_replaces_every_value_that_the_object_has(engine: Engine) -> None:
    class Preset(Model, table="counters"):
        id: Attribute[str] = hash_key(default=lambda: uuid.uuid4().hex)
        count: Attribute[int] = column(default=7)
        by: Attribute[str | None] = column(default="nobody")

    preset = Preset()
    assert (preset.count, preset.by) == (7, "nobody")
    engine.save(Counter(id=preset.id, count=3))
    engine.load(preset, consistent=True)
    assert (preset.count, preset.by) == (3, None)
    engine.save(Counter(id=preset.id, by="ada"))
    vars(preset)["remark"] = "no column"
    engine.delete(Counter(id=preset.id))
    engine.save(Counter(id=preset.id, by="eve"))
    engine.load(preset, consistent=True)
    assert vars(preset) == {"id": preset.id, "by": "eve", "remark": "no column"}


def test_keys_that_dynamodb_leaves_are_asked_again(engine: Engine, calls: Calls) -> None:
    """60 items of 390 KB are more than the 16 MB of one answer (AWS, "BatchGetItem")."""
    texts = [Text(id=f"large-{number}", value=str(number % 10) * 390_000) for number in range(60)]
    engine.save(*texts)
    found = [Text(id=each.id) for each in texts for _ in range(2)]
    calls.clear()
    engine.load(*found, consistent=True)
    assert [each.value[:1] for each in found] == [str(number % 10) for number in range(60) for _ in range(2)]
    asked = [len(each["Keys"]) for _, arguments in calls for each in arguments["RequestItems"].values()]
    assert asked[0] == 60
    assert len(asked) > 1
    engine.delete(*texts)


@pytest.mark.parametrize("operation", ["load", "save", "delete", "scan", "table_name"])
def test_an_abstract_class_has_no_items(engine: Engine, calls: Calls, operation: str) -> None:
    class Base(Model, abstract=True):
        id: Attribute[str] = hash_key()

    of = Base if operation in ("scan", "table_name") else object.__new__(Base)
    with pytest.raises(InvalidModel, match="Base declares no table"):
        getattr(engine, operation)(of)
    with pytest.raises(InvalidModel, match="Base declares no table"):
        engine.query(Base, Base.id == "a")
    assert calls == []
