from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import boto3
import orjson
import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber

from relay.cache import DynamoDBLoader, Invalidator, MemoryStore, Outcome, PrimaryLoader, TokenCache, VitessLoader
from relay.errors import RelayError, Unavailable
from tests.cache.sources import create_orders

if TYPE_CHECKING:
    from types_boto3_dynamodb.client import DynamoDBClient


def primary_key(key: str) -> Mapping[str, Any]:
    """``order:<customer>:<number>``."""
    _, customer, number = key.split(":")
    return {"customer": {"S": customer}, "number": {"N": number}}


def item(customer: str, number: str, **more: Any) -> dict[str, Any]:
    return {"customer": {"S": customer}, "number": {"N": number}, **more}


@pytest.fixture
def client() -> DynamoDBClient:
    return boto3.client("dynamodb", region_name="us-east-1")


@pytest.fixture
def stub(client: DynamoDBClient) -> Iterator[Stubber]:
    with Stubber(client) as stub:
        yield stub
        stub.assert_no_pending_responses()


def batch(keys: list[dict[str, Any]]) -> dict[str, Any]:
    return {"RequestItems": {"orders": {"Keys": keys, "ConsistentRead": True}}}


def answer(items: list[dict[str, Any]], unprocessed: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    left = {"orders": {"Keys": unprocessed, "ConsistentRead": True}} if unprocessed else {}
    return {"Responses": {"orders": items}, "UnprocessedKeys": left}


def test_one_key_is_read_consistently_and_is_always_fresher(client: DynamoDBClient, stub: Stubber) -> None:
    """I6: this lets a fill replace a tombstone."""
    expected = {"TableName": "orders", "Key": primary_key("order:ann:7"), "ConsistentRead": True}
    stub.add_response("get_item", {"Item": item("ann", "7", total={"N": "1.50"})}, expected)
    loaded = DynamoDBLoader(client, "orders", primary_key).load("order:ann:7", None)
    assert loaded.value == b'{"customer":{"S":"ann"},"number":{"N":"7"},"total":{"N":"1.50"}}'
    assert loaded.tokens == {}
    assert loaded.fresher


def test_a_missing_item_is_a_value_of_none(client: DynamoDBClient, stub: Stubber) -> None:
    stub.add_response("get_item", {})
    assert DynamoDBLoader(client, "orders", primary_key).load("order:ann:7", None).value is None


def test_keys_are_loaded_in_batches_of_a_hundred_and_each_once(client: DynamoDBClient, stub: Stubber) -> None:
    keys = [f"order:ann:{number}" for number in range(150)]
    asked = [dict(primary_key(key)) for key in keys]
    stub.add_response("batch_get_item", answer([item("ann", "0"), item("ann", "99")]), batch(asked[:100]))
    stub.add_response("batch_get_item", answer([item("ann", "149")]), batch(asked[100:]))
    # The same number in another notation is the same item, and DynamoDB refuses a batch that names it twice.
    wanted = dict.fromkeys([*keys, "order:ann:1.490E+2"])
    loaded = DynamoDBLoader(client, "orders", primary_key).load_many(wanted)
    found = [key for key, value in loaded.items() if value.value is not None]
    assert list(loaded) == list(wanted)
    assert found == ["order:ann:0", "order:ann:99", "order:ann:149", "order:ann:1.490E+2"]
    assert [key for key, value in loaded.items() if not value.canonical] == ["order:ann:1.490E+2"]
    assert all(value.fresher and not value.tokens for value in loaded.values())


@pytest.mark.parametrize("found", [True, False])
@pytest.mark.parametrize(
    ("key", "is_canonical"),
    [("order:ann:7", True), ("order:ann:007", False), ("order:ann:7.0", False), ("order:ann:+7", False)],
)
def test_an_item_is_stored_under_the_key_that_it_renders_and_under_no_other_spelling(
    client: DynamoDBClient, stub: Stubber, key: str, is_canonical: bool, found: bool
) -> None:
    """I6: neither the item, nor that there is none, however the application makes a number of the text."""

    def of_number(key: str) -> Mapping[str, Any]:
        return {"customer": {"S": "ann"}, "number": {"N": str(int(float(key.split(":")[2])))}}

    for loader in (
        DynamoDBLoader(client, "orders", primary_key),
        DynamoDBLoader(client, "orders", of_number, key="order:{customer}:{number}"),
    ):
        stub.add_response("get_item", {"Item": item("ann", "7")} if found else {})
        loaded = loader.load(key, None)
        assert (loaded.value is not None, loaded.canonical) == (found, is_canonical)


@pytest.mark.parametrize(
    ("key", "primary_key", "is_canonical"),
    [
        ("order:7", {"id": {"N": "7"}}, True),
        ("order-7", {"id": {"N": "7.0"}}, True),
        ("order:007", {"id": {"N": "7"}}, False),
        ("order:7.0", {"id": {"N": "7"}}, False),
        ("order:7.", {"id": {"N": "7"}}, False),
        ("order:+7", {"id": {"N": "7"}}, False),
        ("order: 7", {"id": {"N": "7"}}, False),
        ("order:0_7", {"id": {"N": "7"}}, False),
        ("order:0.0", {"id": {"N": "0"}}, False),
        ("order:-0", {"id": {"N": "0"}}, False),
        ("order:0e-0", {"id": {"N": "0"}}, False),
        ("order:7:007", {"customer": {"S": "7"}, "id": {"N": "7"}}, False),
        ("order:7:7", {"customer": {"S": "7"}, "id": {"N": "7"}}, True),
        ("order:a:b:a", {"customer": {"S": "a"}, "id": {"S": "a:b"}}, True),
        ("user:Ada", {"name": {"S": "ada"}}, False),
        ("file:QQ==", {"id": {"B": b"A"}}, True),
        ("file:QR==", {"id": {"B": b"A"}}, False),
        ("file:QQ", {"id": {"B": b"A"}}, False),
    ],
)
def test_without_a_template_an_item_is_stored_only_where_the_key_shows_its_primary_key(
    client: DynamoDBClient, stub: Stubber, key: str, primary_key: Mapping[str, Any], is_canonical: bool
) -> None:
    """I6: ``int`` has made 7 of 007, and base64 has many texts for some bytes."""
    stub.add_response("get_item", {})
    assert DynamoDBLoader(client, "orders", lambda _: primary_key).load(key, None).canonical is is_canonical


def test_an_item_of_which_another_attribute_is_in_the_key_is_stored_by_what_it_shows(
    client: DynamoDBClient, stub: Stubber
) -> None:
    """I6: the key of an item that is not there is not known then."""
    loader = DynamoDBLoader(client, "users", lambda key: {"id": {"S": "u-1"}}, key="mail:{mail}")
    for found in ({"mail": {"S": "ann@x"}}, {"mail": {"S": "Ann@x"}}, None):
        stub.add_response("get_item", {"Item": {"id": {"S": "u-1"}, **found}} if found else {})
    assert [loader.load("mail:ann@x", None).canonical for _ in range(3)] == [True, False, False]


def test_keys_of_other_attributes_or_types_than_the_first_are_refused(client: DynamoDBClient, stub: Stubber) -> None:
    """I8: N 1 and S 1 are two items, of two tables."""

    def typed(key: str) -> Mapping[str, Any]:
        kind, value = key.split(":")
        return {"id": {kind: value}}

    with pytest.raises(ValueError, match=r"must have the attributes of the first key: id \(S\)"):
        DynamoDBLoader(client, "orders", typed).load_many(dict.fromkeys(["S:1", "N:1"]))


def test_unprocessed_keys_are_requested_again_after_a_pause(client: DynamoDBClient, stub: Stubber) -> None:
    keys = ["order:ann:1", "order:ann:2"]
    asked = [dict(primary_key(key)) for key in keys]
    stub.add_response("batch_get_item", answer([item("ann", "1")], asked[1:]), batch(asked))
    stub.add_response("batch_get_item", answer([], asked[1:]), batch(asked[1:]))
    stub.add_response("batch_get_item", answer([item("ann", "2")]), batch(asked[1:]))
    pauses: list[float] = []
    loader = DynamoDBLoader(client, "orders", primary_key, sleep=pauses.append)
    assert all(loaded.value for loaded in loader.load_many(dict.fromkeys(keys)).values())
    assert len(pauses) == 2


def test_a_table_that_keeps_throttling_is_unavailable(client: DynamoDBClient, stub: Stubber) -> None:
    """I8: a key that could not be read is not a missing item."""
    asked = [dict(primary_key("order:ann:1"))]
    for _ in range(10):
        stub.add_response("batch_get_item", answer([], asked))
    loader = DynamoDBLoader(client, "orders", primary_key, sleep=lambda _: None)
    with pytest.raises(Unavailable, match=r"no key of orders in 10 requests in a row, 1 keys are left"):
        loader.load_many({"order:ann:1": None})


def test_errors_of_dynamodb_reach_the_caller(client: DynamoDBClient, stub: Stubber) -> None:
    stub.add_client_error("get_item", "ResourceNotFoundException")
    with pytest.raises(ClientError):
        DynamoDBLoader(client, "orders", primary_key).load("order:ann:1", None)


class Driver:
    """A connection, and its cursor, of a MySQL driver, which keeps the statements. ``answer``: the row of a query."""

    def __init__(self, *answer: object) -> None:
        self.statements: list[str] = []
        self.answer = answer

    def cursor(self) -> Driver:
        return self

    def execute(self, statement: str) -> None:
        self.statements.append(statement)

    def fetchone(self) -> tuple[object, ...]:
        return self.answer

    def close(self) -> None:
        pass


def test_a_connection_to_vitess_reads_the_primary_and_each_time_in_a_transaction_that_locks() -> None:
    """I6: a replica lags, and may have a change before the primary shows it; a transaction keeps its first view."""
    driver = Driver()

    def read(cursor: Driver, keys: Sequence[str]) -> Sequence[Any]:
        cursor.execute("SELECT")
        return ()

    loader = VitessLoader(lambda: driver, "commerce", read, key="{k}")
    loader.load("k", None)
    loader.load("k", None)
    first = ["USE `commerce@primary`", "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE"]
    assert driver.statements == [*first, "BEGIN", "SELECT", "COMMIT", "BEGIN", "SELECT", "COMMIT"]


@pytest.mark.parametrize("value", [0, "OFF", "off", b"OFF"])
def test_a_server_that_says_in_any_form_that_it_accepts_writes_is_read_as_the_primary(value: object) -> None:
    """MariaDB 12 says it in a text, and earlier servers in a number."""
    loader = PrimaryLoader(lambda: Driver(value), lambda cursor, keys: [({"id": 7}, b"row")], key="{id}")
    loaded = loader.load("7", None)
    assert (loaded.value, loaded.fresher) == (b"row", True)


@pytest.mark.parametrize("value", [1, "ON", "NO_LOCK", "NO_LOCK_NO_ADMIN", b"ON", b"NO_LOCK"])
def test_a_server_that_is_read_only_in_any_form_is_not_read_as_the_primary(value: object) -> None:
    """I6: it may lag."""
    loader = PrimaryLoader(lambda: Driver(value), lambda cursor, keys: [({"id": 7}, b"row")], key="{id}")
    with pytest.raises(RelayError, match="is read-only: connect to the one that accepts writes"):
        loader.load("7", None)


def test_a_row_has_the_key_that_it_renders_however_it_was_asked_for() -> None:
    """I6: a database finds the row `Ann` by `ann`, and its changes invalidate the key of `Ann`."""

    def read(cursor: Driver, keys: Sequence[str]) -> Any:
        return [({"name": "Ann", "id": 7}, b"row"), ({"name": None}, b"none")]

    loader = VitessLoader(Driver, "commerce", read, key="user:{name}")
    loaded = loader.load_many(dict.fromkeys(["user:Ann", "user:ann"]))
    assert {key: each.value for key, each in loaded.items()} == {"user:Ann": b"row", "user:ann": None}


def test_a_row_without_a_column_of_the_template_is_refused() -> None:
    """I6: it would be cached that there is no such row. One in which the column is null has no key."""
    loader = VitessLoader(Driver, "commerce", lambda cursor, keys: [({"customer": "ada"}, b"row")], key="order:{id}")
    with pytest.raises(ValueError, match="`id`"):
        loader.load("order:7", None)
    loader = VitessLoader(Driver, "commerce", lambda cursor, keys: [({"id": None}, b"row")], key="order:{id}")
    assert loader.load("order:7", None).value is None


def test_values_that_are_not_of_rows_are_refused_where_the_loader_renders_the_keys() -> None:
    """I6: a reader that returns what was asked for would fill any spelling."""
    read: Any = lambda cursor, keys: dict.fromkeys(keys, b"row")  # noqa: E731
    loader = VitessLoader(Driver, "commerce", read, key="user:{name}")
    with pytest.raises(ValueError, match="unpack"):
        loader.load("user:ann", None)


@pytest.mark.services
def test_a_cache_loads_from_a_real_table(dynamodb: Any, unique: str) -> None:
    client = boto3.client("dynamodb", region_name="us-east-1", endpoint_url=dynamodb.endpoint_url)
    create_orders(client, unique)
    store = MemoryStore()
    cache, invalidator = TokenCache(store, "shop"), Invalidator(store, "shop")
    loader = DynamoDBLoader(client, unique, primary_key)
    assert cache.get_or_load("order:ann:1", loader.load).value is None
    client.put_item(TableName=unique, Item=item("ann", "1", note={"B": b"\xff"}))
    assert cache.get_or_load("order:ann:1", loader.load).outcome is Outcome.HIT
    invalidator.apply([("order:ann:1", None)])
    expected = b'{"note":{"B":"/w=="},"number":{"N":"1"},"customer":{"S":"ann"}}'
    several = cache.get_many(["order:ann:1", "order:ann:2"], loader.load_many)
    assert several["order:ann:2"].value is None
    assert orjson.loads(several["order:ann:1"].value or b"") == orjson.loads(expected)
    client.delete_table(TableName=unique)
