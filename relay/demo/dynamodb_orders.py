"""The demo's table in DynamoDB: created, written, loaded into the cache, and read back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import boto3

from relay.cache import DynamoDBLoader, Load
from relay.demo.orders import TABLE, Incident, Orders
from relay.demo.workload import HASH_KEY, RANGE_KEY, Item, Planned, Workload, Writer, item_of
from relay.services.dynamodb import DynamoDBLocal

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient


class DynamoDBOrders(Orders):
    """The table in a DynamoDB Local."""

    title = "DynamoDB"
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

    def workload(self, pause: float) -> Workload:
        return workload(self._client, TABLE, pause=pause)

    def load(self) -> Load:
        return DynamoDBLoader(self._client, TABLE, primary_key).load

    def incidents(self) -> list[Incident]:
        return []

    def versions(self) -> dict[Item, int]:
        pages = self._client.get_paginator("scan").paginate(TableName=TABLE, ConsistentRead=True)
        return {
            (item[HASH_KEY]["S"], item[RANGE_KEY]["N"]): int(item["version"]["N"])
            for page in pages
            for item in page["Items"]
        }


def workload(client: DynamoDBClient, table: str, **options: Any) -> Workload:
    """Return a workload on ``table``; the options are those of ``Workload``."""
    return Workload(partial(DynamoDBWriter, client, table), **options)


def create_table(client: DynamoDBClient, table: str) -> None:
    """Create ``table`` with a hash and a range key and a stream of both images, and wait until it exists."""
    client.create_table(
        TableName=table,
        KeySchema=[
            {"AttributeName": HASH_KEY, "KeyType": "HASH"},
            {"AttributeName": RANGE_KEY, "KeyType": "RANGE"},
        ],
        AttributeDefinitions=[
            {"AttributeName": HASH_KEY, "AttributeType": "S"},
            {"AttributeName": RANGE_KEY, "AttributeType": "N"},
        ],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    )
    client.get_waiter("table_exists").wait(TableName=table, WaiterConfig={"Delay": 1})


class DynamoDBWriter(Writer):
    """Writes by put, update, delete, batch-write and transact-write."""

    def __init__(self, client: DynamoDBClient, table: str, number: int, **options: Any) -> None:
        super().__init__(number, **options)
        self.client = client
        self.table = table

    def write_first(self, item: Item) -> None:
        self._write_item("put", item)

    def write_once(self) -> None:
        kind = self.random.choices(("put", "update", "delete", "batch", "transact"), (40, 30, 12, 10, 8))[0]
        if kind == "batch":
            self._batch_write(self.plan(self.choose_items(10)))
        elif kind == "transact":
            self._transact_write(self.plan(self.choose_items(5)))
        else:
            self._write_item(kind, self.random.choice(self.items))

    def _write_item(self, kind: str, item: Item) -> None:
        started = time.time()
        if kind == "delete" and self.exists(item):
            self.client.delete_item(TableName=self.table, Key=_key(item))
            self.record(started, (item, None))
            return
        version = self.version(item)
        if kind == "put":
            self.client.put_item(TableName=self.table, Item=self._image(item, version))
        else:
            image = self._image(item, version)
            self.client.update_item(
                TableName=self.table,
                Key=_key(item),
                UpdateExpression="SET version = :v, payload = :p, amount = :t, tags = :g",
                ExpressionAttributeValues={
                    ":v": image["version"],
                    ":p": image["payload"],
                    ":t": image["amount"],
                    ":g": image["tags"],
                },
            )
        self.record(started, (item, version))

    def _batch_write(self, planned: Planned) -> None:
        requests: list[Any] = [
            {"DeleteRequest": {"Key": _key(item)}}
            if version is None
            else {"PutRequest": {"Item": self._image(item, version)}}
            for item, version in planned
        ]
        started = time.time()
        unprocessed: dict[str, Any] = {self.table: requests}
        while unprocessed:
            unprocessed = dict(self.client.batch_write_item(RequestItems=unprocessed).get("UnprocessedItems") or {})
        self.record(started, *planned)

    def _transact_write(self, planned: Planned) -> None:
        actions: list[Any] = [
            {"Delete": {"TableName": self.table, "Key": _key(item)}}
            if version is None
            else {"Put": {"TableName": self.table, "Item": self._image(item, version)}}
            for item, version in planned
        ]
        started = time.time()
        self.client.transact_write_items(TransactItems=actions)
        self.record(started, *planned)

    def _image(self, item: Item, version: int) -> dict[str, Any]:
        columns = self.columns()
        return {
            **_key(item),
            "version": {"N": str(version)},
            "amount": {"N": columns["amount"]},
            "tags": {"SS": columns["tags"]},
            "payload": {"S": columns["payload"]},
        }


def primary_key(key: str) -> Mapping[str, Any]:
    """Return the primary key of a cache key's item."""
    return _key(item_of(key))


def _key(item: Item) -> dict[str, Any]:
    return {HASH_KEY: {"S": item[0]}, RANGE_KEY: {"N": item[1]}}
