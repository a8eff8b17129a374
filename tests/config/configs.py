"""A valid config, and helpers that change one part of it and load the result."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from relay.config import Config, DynamoDBConfig, load
from relay.errors import ConfigError

GOOD = """\
    name: shop
    kafka: {bootstrap_servers: "127.0.0.1:9092", partitions: 6, producer: {}}
    schema_registry: {url: "http://127.0.0.1:8080/apis/ccompat/v7"}
    topics: "{name}.{table}"
    sources:
      - name: orders
        type: dynamodb
        table: orders
        region: us-east-1
        endpoint_url: "http://127.0.0.1:8000"
        start: trim_horizon
        snapshot: none
        key: hash
        on_gap: fail
    cache: {url: "redis://127.0.0.1:6379/0", namespace: shop, keys: {orders: ["order:{order_id}"]}, tombstone_ttl: 1h}
    log: {path: "file:///var/lib/relay/log"}
    copy: {url: "delta:///var/lib/relay/copy"}
    spark: {master: "spark://spark:7077", conf: {spark.executor.memory: 2g, spark.cores.max: 4}, shared_folders: true}
    http: "127.0.0.1:9400"
"""

ONE_TABLE = "set exactly one of `table`, `stream_arn`, `tables` and `tags`"
ARN = "arn:aws:dynamodb:eu-west-1:123456789012:table/orders/stream/2026-11-21T06:00:00.000"


def read(file: Path, text: str) -> Config:
    file.write_text(dedent(text), encoding="utf-8")
    return load(file)


def refused(file: Path, text: str) -> list[str]:
    """Return the errors about a file, each without the file's name."""
    with pytest.raises(ConfigError) as caught:
        read(file, text)
    assert caught.value.exit_code == 2
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{file}:") for line in lines)
    return [line.removeprefix(f"{file}:") for line in lines]


def change(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def two_sources(second: str) -> str:
    return change("    cache:", f"      - {second}\n    cache:")


def only(config: Config) -> DynamoDBConfig:
    (source,) = config.sources
    assert isinstance(source, DynamoDBConfig)
    return source
