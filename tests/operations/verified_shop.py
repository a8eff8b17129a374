"""A table, a cache of its items and a config, for the tests of ``relay verify``."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3

from relay.cache import (
    ConditionalWrite,
    DynamoDBLoader,
    Entry,
    Invalidator,
    State,
    TokenCache,
    entry_key,
    generation_key,
    open_store,
)
from relay.cache.entry import encode
from tests.cache.sources import create_orders
from tests.command_line import relay


def primary_key(cache_key: str) -> Mapping[str, Any]:
    _, customer, number = cache_key.split(":")
    return {"customer": {"S": customer}, "number": {"N": number}}


@dataclass
class Shop:
    """A table with a stream, and a cache of its items as an application fills it."""

    table: str
    endpoint_url: str
    cache_url: str
    folder: Path

    def __post_init__(self) -> None:
        region, endpoint_url = "us-east-1", self.endpoint_url
        self.client = boto3.client("dynamodb", region_name=region, endpoint_url=endpoint_url)
        self.streams = boto3.client("dynamodbstreams", region_name=region, endpoint_url=endpoint_url)
        stream = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
        description = create_orders(self.client, self.table, StreamSpecification=stream)
        self.stream_arn = description["LatestStreamArn"]
        self.store = open_store(self.cache_url)
        self.cache = TokenCache(self.store, self.table)
        self.invalidator = Invalidator(self.store, self.table)
        self.loader = DynamoDBLoader(self.client, self.table, primary_key)
        self.config = self.folder / "relay.yaml"
        self.configure()

    def configure(self, **more: Any) -> None:
        source = {"name": "orders", "type": "dynamodb", "table": self.table, "region": "us-east-1"}
        keys = {self.table: ["order:{customer}:{number}"]}
        document = {
            "name": "shop",
            "kafka": {"bootstrap_servers": "127.0.0.1:9"},
            "sources": [{**source, "endpoint_url": self.endpoint_url}],
            "cache": {"url": self.cache_url, "namespace": self.table, "keys": keys},
        }
        self.config.write_text(json.dumps(document | more))

    def put(self, number: int, version: int) -> str:
        item = {"customer": {"S": "ada"}, "number": {"N": str(number)}, "version": {"N": str(version)}}
        self.client.put_item(TableName=self.table, Item=item | {"tags": {"SS": ["b", "a"]}})
        return f"order:ada:{number}"

    def plant(self, key: str, value: bytes | None) -> None:
        """Store a value as if a reader had loaded it."""
        name = entry_key(self.table, key)
        (stored,), generation = self.store.read([name], generation_key(self.table))
        meta = encode(Entry(State.VALUE, generation, {}), f"planted-{random.random()}")
        assert not self.store.compare_and_set(
            [ConditionalWrite(name, stored.meta if stored else None, meta, value, 3600.0)]
        )

    def verify(self, *options: str, code: int = 0, within: float = 1.0) -> dict[str, Any]:
        result = relay("verify", self.config, "--within", str(within), "--json", *options)
        assert result.exit_code == code, (result.output, result.exception)
        answer = json.loads(result.stdout)
        assert isinstance(answer, dict)
        assert answer["sampled"] == answer["checked"] + answer["unknown"] + answer["without_value"]
        return answer
