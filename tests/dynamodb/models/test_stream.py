"""A stream whose images are objects, on DynamoDB Local."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from relay.dynamodb import Stream
from relay.dynamodb.models import Attribute, ConstraintViolation, Engine, InvalidValue, Model, hash_key
from tests.dynamodb.models.shop import Order
from tests.dynamodb.reading import read

pytestmark = pytest.mark.services


class Keys(Model, table="only-keys", stream="KEYS_ONLY"):
    id: Attribute[str] = hash_key()
    size: Attribute[int | None]


@pytest.fixture
def streams(dynamodb: Any) -> Iterator[Any]:
    client = boto3.client("dynamodbstreams", endpoint_url=dynamodb.endpoint_url, region_name="us-east-1")
    yield client
    client.close()


def arn(engine: Engine, model: type[Model]) -> str:
    found: Any = engine.client.describe_table(TableName=engine.table_name(model))["Table"]
    return str(found["LatestStreamArn"])


def test_images_are_objects_that_have_seen_their_item(fresh: Engine, streams: Any) -> None:
    fresh.bind(Order)
    order = Order(customer="ada", number=1, tags={"a"})
    fresh.save(order)
    order.tags = {"b"}
    fresh.save(order)
    fresh.delete(order)
    inserted, modified, removed = read(Stream(streams, arn(fresh, Order), model=Order))
    assert (inserted["key"], inserted["old"]) == (None, None)
    assert isinstance(inserted["new"], Order)
    assert (modified["old"].tags, modified["new"].tags, modified["new"].note) == ({"a"}, {"b"}, None)
    assert (removed["old"].tags, removed["new"]) == ({"b"}, None)
    with pytest.raises(ConstraintViolation):
        fresh.save(modified["new"], atomic=True)  # it is gone


def test_a_key_is_an_object_of_which_only_the_key_was_read(fresh: Engine, streams: Any) -> None:
    fresh.bind(Keys)
    fresh.save(Keys(id="a", size=1))
    (record,) = read(Stream(streams, arn(fresh, Keys), model=Keys))
    assert (record["key"].id, record["old"], record["new"]) == ("a", None, None)
    with pytest.raises(AttributeError, match=r"Keys\.size was not read"):
        _ = record["key"].size
    fresh.load(record["key"], consistent=True)
    assert record["key"].size == 1


def test_a_record_that_cannot_be_loaded_is_returned_again(fresh: Engine, streams: Any) -> None:
    """I1, I8"""
    fresh.bind(Order)
    item: Any = {"customer": {"S": "ada"}, "number": {"N": "1"}, "lines": {"S": "none"}}
    fresh.client.put_item(TableName=fresh.table_name(Order), Item=item)
    stream = Stream(streams, arn(fresh, Order), model=Order)
    for _ in range(2):
        with pytest.raises(InvalidValue, match=r"Order\.lines"):
            next(stream)


def test_unpack_and_model_are_not_both_given(streams: Any) -> None:
    with pytest.raises(ValueError, match="pass one of `unpack` and `model`"):
        Stream(streams, "arn", unpack=True, model=Order)
