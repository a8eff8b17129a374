"""The demo's table in DynamoDB, declared as a class: created, written, loaded into the cache, and read back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import boto3

from relay.cache import DynamoDBLoader, Load
from relay.demo.orders import TABLE, Orders
from relay.demo.workload import CACHE_KEY, HASH_KEY, RANGE_KEY, Item, Planned, Workload, Writer
from relay.dynamodb.models import Attribute, Engine, Model, hash_key, item_key, range_key
from relay.services.dynamodb import DynamoDBLocal

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient


class CustomerOrder(Model, table=TABLE, stream="NEW_AND_OLD_IMAGES", cache_keys=[CACHE_KEY]):
    customer: Attribute[str] = hash_key()
    order_id: Attribute[int] = range_key()
    version: Attribute[int]
    amount: Attribute[Decimal]
    tags: Attribute[set[str]]
    payload: Attribute[str]


class DynamoDBOrders(Orders):
    title = "DynamoDB"
    on_its_times = "(DynamoDB Local reports times in whole minutes, so a lag of up to a minute means nothing)"
    jars = ("dynamodb",)
    environment: ClassVar[Mapping[str, str]] = {
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_DEFAULT_REGION": "us-east-1",
    }

    def start(self, stack: ExitStack) -> None:
        self._server = stack.enter_context(DynamoDBLocal())
        self._client: DynamoDBClient = boto3.client("dynamodb", endpoint_url=self._server.endpoint_url)
        stack.callback(self._client.close)
        create_table(self._client, TABLE)

    @property
    def address(self) -> str:
        return self._server.endpoint_url

    def source(self) -> dict[str, Any]:
        return {
            "name": "orders",
            "type": "dynamodb",
            "table": TABLE,
            "region": "us-east-1",
            "endpoint_url": self._server.endpoint_url,
            "start": "trim_horizon",
        }

    def workload(self, *, pause: float) -> Workload:
        return workload(self._client, TABLE, pause=pause)

    def load(self) -> Load:
        return DynamoDBLoader(self._client, TABLE, item_key(CustomerOrder, CACHE_KEY)).load

    def versions(self) -> dict[Item, int]:
        orders = Engine(self._client).scan(CustomerOrder, consistent=True)
        return {(each.customer, str(each.order_id)): each.version for each in orders}


def workload(client: DynamoDBClient, table: str, **options: Any) -> Workload:
    return Workload(partial(DynamoDBWriter, client, table), **options)


def create_table(client: DynamoDBClient, table: str) -> None:
    """Create ``table`` with a hash and a range key and a stream of both images, and wait until it exists."""
    Engine(client, table_name=lambda _: table).bind(CustomerOrder)


class DynamoDBWriter(Writer):
    def __init__(self, client: DynamoDBClient, table: str, number: int, **options: Any) -> None:
        super().__init__(number, **options)
        self.client = client
        self.table = table

    def store(self, planned: Planned, *, in_transaction: bool = False) -> None:
        started = time.time()
        if in_transaction:
            requests = self._requests(planned, "Put", "Delete", TableName=self.table)
            self.client.transact_write_items(TransactItems=requests)
        else:
            left: dict[str, Any] = {self.table: self._requests(planned, "PutRequest", "DeleteRequest")}
            while left:
                left = dict(self.client.batch_write_item(RequestItems=left).get("UnprocessedItems") or {})
        self.record(started, *planned)

    def _requests(self, planned: Planned, put: str, delete: str, **more: str) -> list[Any]:
        """Return a request for each item, to ``put`` its next version or to ``delete`` it."""
        return [
            {delete: {"Key": _key(item), **more}}
            if version is None
            else {put: {"Item": self._image(item, version), **more}}
            for item, version in planned
        ]

    def _image(self, item: Item, version: int) -> dict[str, Any]:
        amount, tags, payload = self.columns().values()
        values = {"version": {"N": str(version)}, "amount": {"N": amount}, "tags": {"SS": tags}}
        return {**_key(item), **values, "payload": {"S": payload}}


def _key(item: Item) -> dict[str, Any]:
    return {HASH_KEY: {"S": item[0]}, RANGE_KEY: {"N": item[1]}}
