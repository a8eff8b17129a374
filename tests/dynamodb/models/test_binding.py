"""Tables that are created and verified, on DynamoDB Local."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest

from relay.dynamodb.models import (
    Attribute,
    Engine,
    GlobalIndex,
    InvalidModel,
    LocalIndex,
    Model,
    Seconds,
    TableMismatch,
    column,
    hash_key,
    range_key,
)
from relay.errors import Unavailable
from tests.dynamodb.models.shop import Counter, Mirror, Order

pytestmark = pytest.mark.services

Calls = list[tuple[str, dict[str, Any]]]


def test_a_table_is_created_as_it_is_declared(fresh: Engine) -> None:
    fresh.bind(Order)
    name = fresh.table_name(Order)
    table: Any = fresh.client.describe_table(TableName=name)["Table"]
    assert {each["AttributeName"]: each["KeyType"] for each in table["KeySchema"]} == {
        "customer": "HASH",
        "number": "RANGE",
    }
    assert {each["AttributeName"]: each["AttributeType"] for each in table["AttributeDefinitions"]} == {
        "customer": "S",
        "number": "N",
        "total": "N",
        "n": "S",
        "price": "N",
    }
    indexes = {each["IndexName"]: each["Projection"] for each in table["GlobalSecondaryIndexes"]}
    assert indexes == {
        "by_total": {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["n"]},
        "by-note": {"ProjectionType": "KEYS_ONLY"},
    }
    assert [each["IndexName"] for each in table["LocalSecondaryIndexes"]] == ["by_price"]
    assert table["StreamSpecification"] == {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
    assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    ttl = fresh.client.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    assert ttl == {"TimeToLiveStatus": "ENABLED", "AttributeName": "expires"}


def test_all_tables_are_created_before_the_first_is_waited_for(fresh: Engine, calls: Calls) -> None:
    calls.clear()
    fresh.bind(Counter, Mirror)
    operations = [operation for operation, _ in calls]
    assert operations.index("DescribeTable", operations.index("CreateTable")) > 0
    assert operations == ["DescribeTable", "CreateTable"] * 2 + ["DescribeTable"] * 2


def test_what_was_verified_is_remembered_by_class(fresh: Engine, calls: Calls) -> None:
    fresh.bind(Counter)
    calls.clear()
    fresh.bind(Counter)
    assert calls == []
    # Another engine may be of another database.
    Engine(fresh.client, table_name=fresh._table_name).bind(Counter)
    assert [operation for operation, _ in calls] == ["DescribeTable"] * 2


def test_a_base_binds_its_subclasses(fresh: Engine) -> None:
    class Base(Model, abstract=True):
        id: Attribute[str] = hash_key()

    class First(Base, table="first"):
        pass

    class Second(Base, table="second"):
        pass

    fresh.bind(Base)
    fresh.save(First(id="a"), Second(id="a"))


def test_a_class_between_abstract_ones_is_bound_and_they_are_not(fresh: Engine, calls: Calls) -> None:
    class Base(Model, abstract=True):
        id: Attribute[str] = hash_key()

    class Table(Base, table="table"):
        pass

    class Between(Table, abstract=True):
        size: Attribute[int]

    class Below(Between, table="below"):
        pass

    calls.clear()
    fresh.bind(Base)
    created = {arguments["TableName"] for operation, arguments in calls if operation == "CreateTable"}
    assert created == {fresh.table_name(Table), fresh.table_name(Below)}
    calls.clear()
    fresh.bind(Between)
    assert calls == []


@pytest.mark.parametrize("wrong", [object(), int, "Order", Counter(id="a")])
def test_what_is_not_a_class_of_a_table_is_not_bound(fresh: Engine, calls: Calls, wrong: Any) -> None:
    with pytest.raises(InvalidModel, match="declares no table: use a class that extends Model"):
        fresh.bind(Counter, wrong)
    assert calls == []


def test_an_index_may_project_what_it_has_anyway(fresh: Engine) -> None:
    class Overlap(Model, table="overlap"):
        id: Attribute[str] = hash_key()
        at: Attribute[int] = range_key()
        other: Attribute[int]
        more: Attribute[str | None]
        by_other = GlobalIndex(hash="other", projection=["other", "at"])
        by_nothing = LocalIndex(range="other", projection=[])
        by_more = GlobalIndex(hash="other", projection=["id", "more", "more"])

    fresh.bind(Overlap)
    fresh.save(Overlap(id="a", at=1, other=2, more="b"))
    for index, found in ((Overlap.by_other, {"id", "at", "other"}), (Overlap.by_more, {"id", "at", "other", "more"})):
        assert vars(fresh.query(Overlap, Overlap.other == 2, index=index).one()).keys() == found


def test_two_processes_may_bind_at_once(fresh: Engine) -> None:
    """DynamoDB refuses to enable a time to live that is enabled, and to create a table that is there."""
    engines = [Engine(fresh.client, table_name=fresh._table_name) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda engine: engine.bind(Order), engines))
    ttl = fresh.client.describe_time_to_live(TableName=fresh.table_name(Order))["TimeToLiveDescription"]
    assert ttl == {"TimeToLiveStatus": "ENABLED", "AttributeName": "expires"}


def test_a_table_may_have_more_than_is_declared(fresh: Engine) -> None:
    fresh.bind(Order)

    class Part(Model, table="orders", stream="NEW_IMAGE"):
        customer: Attribute[str] = hash_key()
        number: Attribute[int] = range_key()
        note: Attribute[str] = column("n")
        total: Attribute[Decimal]
        by_total = GlobalIndex(hash="customer", range="total", projection="keys")

    fresh.bind(Part)


def test_a_time_to_live_is_enabled_where_there_is_none(fresh: Engine) -> None:
    fresh.bind(Counter)

    class Dated(Model, table="counters", ttl="until"):
        id: Attribute[str] = hash_key()
        until: Attribute[Seconds]

    fresh.bind(Dated)
    name = fresh.table_name(Dated)
    ttl = fresh.client.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    assert ttl == {"TimeToLiveStatus": "ENABLED", "AttributeName": "until"}


def test_every_difference_is_reported_with_its_class_and_column(fresh: Engine) -> None:
    fresh.bind(Order, Counter)

    class Wrong(Model, table="orders", stream="NEW_IMAGE", ttl="until"):
        client: Attribute[str] = hash_key("customer")
        number: Attribute[str] = range_key()
        total: Attribute[int]
        note: Attribute[str] = column("n")
        until: Attribute[Seconds]
        by_total = GlobalIndex(hash="client", range="total", projection="all")
        by_note = GlobalIndex(hash="note", range="total", name="by-note", projection="keys")
        by_price = GlobalIndex(hash="client", projection="keys")
        by_size = GlobalIndex(hash="total")

    class Ranged(Model, table="counters", stream="KEYS_ONLY"):
        key: Attribute[str] = hash_key()
        count: Attribute[int] = range_key()

    with pytest.raises(TableMismatch) as caught:
        fresh.bind(Wrong, Ranged)
    orders, counters = fresh.table_name(Order), fresh.table_name(Counter)
    assert sorted(str(caught.value).splitlines()) == sorted(
        [
            f"Wrong: table {orders}: Wrong.number is of type S, but number is of type N",
            f"Wrong: table {orders}: index by_total lacks until, which Wrong.by_total projects",
            f"Wrong: table {orders}, index by-note has no range key, not Wrong.total",
            f"Wrong: table {orders}: index by_price is local, unlike Wrong.by_price",
            f"Wrong: table {orders}, index by_price has the range key price, which is not declared",
            f"Wrong: table {orders} has no index by_size, which Wrong.by_size declares: create it",
            f"Wrong: table {orders} has the time to live expires, but Wrong.until declares the attribute until",
            f"Ranged: table {counters} has the hash key id, not Ranged.key",
            f"Ranged: table {counters} has no range key, not Ranged.count",
            f"Ranged: table {counters} has no stream, but Ranged declares KEYS_ONLY: set its StreamViewType",
        ]
    )


def test_a_stream_with_fewer_images_is_a_difference(fresh: Engine) -> None:
    class Keys(Model, table="keys", stream="KEYS_ONLY"):
        id: Attribute[str] = hash_key()

    class Images(Model, table="keys", stream="NEW_IMAGE"):
        id: Attribute[str] = hash_key()

    fresh.bind(Keys)
    with pytest.raises(TableMismatch, match="has a stream of KEYS_ONLY, but Images declares NEW_IMAGE"):
        fresh.bind(Images)


def test_a_table_that_does_not_become_active_is_not_waited_for_for_ever(
    fresh: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10"""
    fresh.bind(Counter)
    described = fresh.client.describe_table

    def creating(**arguments: Any) -> Any:
        answer: Any = described(**arguments)
        answer["Table"]["TableStatus"] = "CREATING"
        return answer

    monkeypatch.setattr(fresh.client, "describe_table", creating)
    engine = Engine(fresh.client, table_name=fresh._table_name)
    with pytest.raises(Unavailable, match=r"table .*counters or one of its indexes is CREATING: bind again"):
        engine.bind(Counter, patience=0.0, sleep=lambda seconds: None)
