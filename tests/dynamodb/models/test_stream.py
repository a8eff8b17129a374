"""A stream whose images are objects, on DynamoDB Local."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Annotated, Any

import boto3
import pytest

from relay.dynamodb import InvalidStream, Stream
from relay.dynamodb.models import (
    Attribute,
    ConstraintViolation,
    Engine,
    InvalidValue,
    Model,
    current_engine,
    hash_key,
    stored_as,
)
from tests.dynamodb.models.shop import Counter, Order
from tests.dynamodb.reading import read

pytestmark = pytest.mark.services


class Keys(Model, table="only-keys", stream="KEYS_ONLY"):
    id: Attribute[str] = hash_key()
    size: Attribute[int | None]


SEEN: list[tuple[str, object]] = []


def noted(of: str) -> Callable[[str], str]:
    def note(value: str) -> str:
        SEEN.append((of, current_engine()))
        return value

    return note


class Noted(Model, table="noted", stream="NEW_AND_OLD_IMAGES"):
    id: Attribute[str] = hash_key()
    text: Attribute[Annotated[str, stored_as(str, dump=noted("dump"), load=noted("load"))]]


@pytest.fixture
def streams(dynamodb: Any) -> Iterator[Any]:
    client = boto3.client("dynamodbstreams", endpoint_url=dynamodb.endpoint_url, region_name="us-east-1")
    yield client
    client.close()


@pytest.fixture
def fresh(table_client: Any, streams: Any) -> Engine:
    prefix = uuid.uuid4().hex[:8]
    return Engine(table_client, streams, table_name=lambda table: f"{prefix}-{table}")


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


def test_an_engine_reads_the_stream_of_a_class_from_any_position(fresh: Engine) -> None:
    """Bloop, "Streams" (Create a Stream, Pausing and Resuming, Moving Around)"""
    fresh.bind(Order)
    latest = fresh.stream(Order, "latest")
    fresh.save(Order(customer="ada", number=1))
    stream = fresh.stream(Order)
    assert [each["new"].number for each in read(stream)] == [1]
    fresh.save(Order(customer="ada", number=2))
    resumed = fresh.stream(Order, json.loads(json.dumps(stream.token)))
    assert [each["new"].number for each in read(resumed)] == [2]
    hours_ago = datetime.now() - timedelta(hours=12)
    arrow: Any = SimpleNamespace(datetime=hours_ago.astimezone(UTC))  # has its time as `datetime`
    for position in ("trim_horizon", hours_ago, arrow):
        assert [each["new"].number for each in read(fresh.stream(Order, position))] == [1, 2]
    assert [each["new"].number for each in read(latest)] == [1, 2]
    latest.move_to(hours_ago)
    assert [each["new"].number for each in read(latest)] == [1, 2]


def test_a_stream_that_an_engine_cannot_read_is_refused_by_class(fresh: Engine) -> None:
    fresh.bind(Counter)
    with pytest.raises(InvalidStream, match=r"table .*-counters of Counter has no stream: enable one"):
        fresh.stream(Counter)
    with pytest.raises(InvalidStream, match=r"the stream of Counter: use Engine\(client, boto3\.client"):
        Engine(fresh.client).stream(Counter)


def test_a_type_knows_the_engine_that_uses_it(fresh: Engine) -> None:
    """Bloop, "Internals" (Engine Binding): a type's context has the engine."""

    def uses(*wanted: str) -> bool:
        found, SEEN[:] = [*SEEN], []
        return found == [(each, fresh) for each in wanted]

    fresh.bind(Noted)
    one = Noted(id="a", text="x")
    fresh.save(one, condition=Noted.text.is_(None) | (Noted.text == "y"))
    assert uses("dump", "dump")
    fresh.load(one)
    assert uses("load")
    search = fresh.query(Noted, Noted.id == "a", filter=Noted.text == "x")
    assert uses("dump")
    next(search)
    assert uses("load")
    list(fresh.scan(Noted))
    assert uses("load")
    next(fresh.stream(Noted))
    assert uses("load")
    fresh.delete(one, condition=Noted.text == "x")
    assert uses("dump")
    assert current_engine() is None


def test_unpack_and_model_are_not_both_given(streams: Any) -> None:
    with pytest.raises(ValueError, match="pass only one of `unpack` and `model`"):
        Stream(streams, "arn", unpack=True, model=Order)
