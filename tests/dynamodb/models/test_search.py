"""Queries and scans on DynamoDB Local."""

from __future__ import annotations

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from relay.dynamodb.models import (
    Attribute,
    ConstraintViolation,
    Engine,
    GlobalIndex,
    InvalidSearch,
    InvalidValue,
    LocalIndex,
    Model,
    hash_key,
    range_key,
)
from tests.dynamodb.models.shop import Address, Counter, Euro, Order

pytestmark = pytest.mark.services

Calls = list[tuple[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def customer(engine: Engine) -> str:
    """A customer with ten orders, whose totals go down as their numbers go up."""
    name = uuid.uuid4().hex
    orders = [
        Order(
            customer=name,
            number=number,
            total=Decimal(10 - number),
            price=Euro(Decimal(number % 3)),
            tags={"even" if number % 2 == 0 else "odd"},
            note=f"{name}-{number % 2}",
            address=Address(f"{number} High Street"),
            lines=[{"sku": f"s{number}"}],
        )
        for number in range(10)
    ]
    engine.save(*orders)
    return name


def numbers(search: Any) -> list[int]:
    return [each.number for each in search]


def test_a_query_returns_the_items_of_a_hash_key_in_the_order_of_the_range_key(engine: Engine, customer: str) -> None:
    of = Order.customer == customer
    assert numbers(engine.query(Order, of)) == [*range(10)]
    assert numbers(engine.query(Order, of, forward=False)) == [*reversed(range(10))]
    assert numbers(engine.query(Order, of, consistent=True)) == [*range(10)]
    assert numbers(engine.query(Order, Order.customer == "nobody")) == []


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        (Order.number == 3, [3]),
        (Order.number < 2, [0, 1]),
        (Order.number <= 2, [0, 1, 2]),
        (Order.number > 7, [8, 9]),
        (Order.number >= 7, [7, 8, 9]),
        (Order.number.between(2, 4), [2, 3, 4]),
    ],
)
def test_a_query_may_have_one_condition_of_the_range_key(
    engine: Engine, customer: str, condition: Any, found: list[int]
) -> None:
    assert numbers(engine.query(Order, (Order.customer == customer) & condition)) == found
    assert numbers(engine.query(Order, condition & (Order.customer == customer))) == found


@pytest.mark.parametrize(
    ("filter", "found"),
    [
        (Order.tags.contains("odd"), [1, 3, 5, 7, 9]),
        (Order.note.contains("-1") & (Order.total > Decimal(5)), [1, 3]),
        ((Order.total == Decimal(9)) | (Order.total == Decimal(1)), [1, 9]),
        (~(Order.total < Decimal(9)), [0, 1]),
        (Order.total.in_([Decimal(1), Decimal(2)]), [8, 9]),
        (Order.address["street"].begins_with("4"), [4]),
        (Order.lines[0]["sku"] == "s5", [5]),
        (Order.expires.is_(None) & Order.note.is_not(None), [*range(10)]),
        (Order.price == Euro(Decimal(2)), [2, 5, 8]),
        (Order.total.between(Decimal(2), Decimal(3)), [7, 8]),
        (Order.total != Decimal(5), [0, 1, 2, 3, 4, 6, 7, 8, 9]),
        (Order.address["zip"].is_not(None), []),
    ],
)
def test_a_filter_selects_among_the_items(engine: Engine, customer: str, filter: Any, found: list[int]) -> None:
    search = engine.query(Order, Order.customer == customer, filter=filter)
    assert numbers(search) == found
    assert (search.count, search.scanned) == (len(found), 10)
    assert sorted(numbers(engine.scan(Order, filter=(Order.customer == customer) & filter))) == found


def test_an_index_is_searched_by_its_own_key(engine: Engine, customer: str) -> None:
    of = Order.customer == customer
    assert numbers(engine.query(Order, of & (Order.total <= Decimal(2)), index=Order.by_total)) == [9, 8]
    assert numbers(engine.query(Order, of & (Order.price > Euro(Decimal(1))), index=Order.by_price)) == [2, 5, 8]
    assert sorted(numbers(engine.query(Order, Order.note == f"{customer}-1", index=Order.by_note))) == [1, 3, 5, 7, 9]
    in_index = engine.scan(Order, index=Order.by_note, filter=Order.customer == customer)
    assert sorted(numbers(in_index)) == [*range(10)]


def test_a_filter_of_an_index_tests_the_key_of_the_table(engine: Engine, customer: str) -> None:
    of_note, of_total = Order.note == f"{customer}-1", Order.customer == customer
    assert sorted(numbers(engine.query(Order, of_note, index=Order.by_note, filter=Order.number > 4))) == [5, 7, 9]
    assert numbers(engine.query(Order, of_total, index=Order.by_total, filter=Order.number > 7)) == [9, 8]


def test_a_global_index_returns_what_it_projects_and_a_local_one_everything(engine: Engine, customer: str) -> None:
    found = engine.query(Order, Order.customer == customer, index=Order.by_total).first()
    assert vars(found).keys() == {"customer", "number", "total", "note"}
    local = engine.query(Order, Order.customer == customer, index=Order.by_price, consistent=True).first()
    assert vars(local).keys() >= {"customer", "number", "total", "note", "tags", "lines", "price"}


def test_a_column_that_was_not_projected_cannot_be_read_and_is_not_saved(engine: Engine, customer: str) -> None:
    key = (Order.customer == customer) & (Order.number == 0)
    found = engine.query(Order, key, projection=[Order.note, "total", "note"]).one()
    assert vars(found).keys() == {"customer", "number", "note", "total"}
    for read in (lambda: found.tags, lambda: found.expires):
        with pytest.raises(
            AttributeError, match="was not read: the search that returned this object did not project it"
        ):
            read()
    found.total = Decimal(10)
    engine.save(found, atomic=True)
    whole = Order(customer=customer, number=0)
    engine.load(whole, consistent=True)
    assert whole.tags == {"even"}
    found.tags = {"now"}
    assert found.tags == {"now"}
    engine.load(found, consistent=True)
    assert (found.tags, found.expires) == ({"even"}, None)


def test_a_found_object_is_saved_atomically_only_if_what_was_projected_is_as_it_was(
    engine: Engine, customer: str
) -> None:
    key = (Order.customer == customer) & (Order.number == 4)
    found = engine.query(Order, key, projection=[Order.note]).one()
    other = Order(customer=customer, number=4)
    other.expires = None
    engine.save(other)
    engine.save(found, atomic=True)
    other.note = f"{customer}-0 "
    engine.save(other)
    with pytest.raises(ConstraintViolation):
        engine.save(found, atomic=True)
    other.note = f"{customer}-0"
    engine.save(other)


def test_an_inherited_index_finds_objects_of_the_class_that_is_searched(engine: Engine) -> None:
    class Dated(Model, abstract=True):
        owner: Attribute[str] = hash_key()
        number: Attribute[int] = range_key()
        created: Attribute[datetime]
        by_created = LocalIndex(range="created")

    class Mail(Dated, table="mails"):
        sender: Attribute[str]
        by_sender = GlobalIndex(hash="sender", name="sender-index")

    class Letter(Mail, table="letters"):
        stamp: Attribute[str | None]
        by_sender = GlobalIndex(hash="sender", range="stamp", name="sender-and-stamp")

    engine.bind(Dated)
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    hours = [noon + timedelta(hours=hour) for hour in range(3)]
    for model in (Mail, Letter):
        made = [model(owner="ada", number=at, created=hour, sender="eve") for at, hour in enumerate(hours)]
        engine.save(*made)
        later = engine.query(model, (model.owner == "ada") & (model.created > noon), index=model.by_created)
        assert [(type(each), each.number, each.created) for each in later] == [
            (model, 1, hours[1]),
            (model, 2, hours[2]),
        ]
    assert {type(each) for each in engine.query(Mail, Mail.sender == "eve", index=Mail.by_sender)} == {Mail}
    stamped = Letter(owner="ada", number=9, created=noon, sender="eve", stamp="blue")
    engine.save(stamped)
    of = (Letter.sender == "eve") & Letter.stamp.begins_with("b")
    assert vars(engine.query(Letter, of, index=Letter.by_sender).one()) == vars(stamped)


def test_an_engine_says_how_searches_and_loads_read_where_they_do_not(
    engine: Engine, customer: str, calls: Calls
) -> None:
    strict = Engine(engine.client, table_name=lambda _: engine.table_name(Order), consistent=True, strict=True)
    of = Order.customer == customer
    strict.load(Order(customer=customer, number=1))
    strict.load(Order(customer=customer, number=1), consistent=False)
    found = strict.query(Order, of, index=Order.by_price).first()
    assert vars(found).keys() == {"customer", "number", "price"}
    for search in (
        strict.scan(Order),
        strict.query(Order, of, consistent=False),
        strict.query(Order, of, index=Order.by_total),
    ):
        search.first()
    with pytest.raises(InvalidSearch, match="cannot be read consistently"):
        strict.query(Order, of, index=Order.by_total, consistent=True)
    with pytest.raises(InvalidSearch, match=r"Order\.note cannot be projected: Order\.by_price does not have it"):
        strict.query(Order, of, index=Order.by_price, projection=["note"])
    loads = [each["RequestItems"] for _, each in calls[:2]]
    assert [table["ConsistentRead"] for each in loads for table in each.values()] == [True, False]
    assert [each["ConsistentRead"] for _, each in calls[2:]] == [True, True, False, False]


def test_a_search_is_iterated_any_number_of_times_also_beside_each_other(engine: Engine, customer: str) -> None:
    prepared = engine.query(Order, Order.customer == customer)
    assert next(prepared).number == 0
    first, second = prepared.again(), prepared.again()
    assert [next(first).number, next(first).number, next(second).number, next(prepared).number] == [0, 1, 0, 1]
    assert (numbers(second), numbers(first), numbers(prepared)) == ([*range(1, 10)], [*range(2, 10)], [*range(2, 10)])
    assert numbers(prepared.again()) == numbers(second.again()) == [*range(10)]


def test_a_count_returns_no_objects(engine: Engine, customer: str) -> None:
    search = engine.query(Order, Order.customer == customer, filter=Order.total > Decimal(5), projection="count")
    assert list(search) == []
    assert (search.count, search.scanned) == (5, 10)


def test_a_search_is_requested_as_it_is_needed_page_by_page(engine: Engine, calls: Calls) -> None:
    class Big(Model, table="big-items"):
        id: Attribute[str] = hash_key()
        body: Attribute[str]

    engine.bind(Big)
    engine.save(*(Big(id=str(number), body="x" * 390_000) for number in range(6)))
    calls.clear()
    search = engine.scan(Big)
    assert (search.count, search.exhausted, calls) == (0, False, [])
    assert next(search).body == "x" * 390_000
    assert len(calls) == 1
    assert (search.count, search.exhausted) == (search.scanned, False)
    assert len([*search]) == 5
    assert (search.count, search.scanned, search.exhausted, len(calls)) == (6, 6, True, 2)
    assert list(search) == []
    search.reset()
    assert (search.count, search.scanned, search.exhausted) == (0, 0, False)
    assert len([*search]) == 6
    with ThreadPoolExecutor(3) as threads:
        parts = list(threads.map(lambda part: [*engine.scan(Big, parallel=(part, 3), consistent=True)], range(3)))
    assert sorted(each.id for part in parts for each in part) == [*"012345"]
    # Pages of which a filter leaves nothing are passed over.
    assert engine.scan(Big, filter=Big.id == "5", consistent=True).one().id == "5"


@pytest.mark.parametrize("index", [None, Order.by_total, Order.by_price])
@pytest.mark.parametrize("projection", ["all", [Order.note]])
def test_a_search_goes_on_in_another_process_after_the_last_result(
    engine: Engine, customer: str, index: Any, projection: Any
) -> None:
    def search() -> Any:
        return engine.query(Order, Order.customer == customer, index=index, projection=projection)

    all_numbers = numbers(search())
    begun = search()
    assert begun.token is None
    for number in range(4):
        next(begun)
        token = json.loads(json.dumps(begun.token))
        resumed = search()
        resumed.move_to(token)
        assert resumed.token == token
        assert numbers(resumed) == all_numbers[number + 1 :]
    begun.move_to(None)
    assert (begun.token, begun.count) == (None, 0)
    assert numbers(begun) == all_numbers
    last = search()
    last.move_to(begun.token)
    assert (numbers(last), last.exhausted) == ([], True)
    last.reset()
    assert numbers(last) == all_numbers


def test_a_scan_goes_on_after_the_last_result(engine: Engine, customer: str) -> None:
    of: dict[str, Any] = {"index": Order.by_note, "filter": Order.customer == customer}
    expected = numbers(engine.scan(Order, **of))
    begun = engine.scan(Order, **of)
    found = [next(begun).number for _ in range(3)]
    resumed = engine.scan(Order, **of)
    resumed.move_to(begun.token)
    assert found + numbers(resumed) == expected


def test_first_and_one_begin_again_and_want_a_result(engine: Engine, customer: str) -> None:
    search = engine.query(Order, Order.customer == customer)
    assert [next(search).number, next(search).number, search.first().number, next(search).number] == [0, 1, 0, 1]
    with pytest.raises(ConstraintViolation, match="Order: the search has more than one result"):
        search.one()
    nothing = engine.query(Order, Order.customer == "nobody")
    for call in (nothing.first, nothing.one):
        with pytest.raises(ConstraintViolation, match="Order: the search has no result"):
            call()
    assert engine.query(Order, (Order.customer == customer) & (Order.number == 3)).one().number == 3


def test_an_item_that_cannot_be_loaded_is_not_skipped(engine: Engine, table_client: Any) -> None:
    """I8"""
    name = uuid.uuid4().hex
    table_client.put_item(TableName=engine.table_name(Counter), Item={"id": {"S": name}, "count": {"S": "?"}})
    search = engine.query(Counter, Counter.id == name)
    for _ in range(2):
        with pytest.raises(InvalidValue, match=r"Counter\.count"):
            next(search)
