"""The sink of both yardsticks of ``dynamodb_read``: fastavro, and confluent-kafka with acks=all.

Its environment does not have the relay, so it must not import it.
"""

from __future__ import annotations

import io
import json
import sys
import threading
from base64 import b64encode
from typing import Any

import boto3
import fastavro
import orjson
from botocore.config import Config
from confluent_kafka import Producer

SETTINGS = {
    "linger.ms": 5,
    "compression.type": "lz4",
    "batch.size": 1 << 20,
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 128 << 10,
    "enable.idempotence": True,
    "acks": "all",
}
SCHEMA = {
    "type": "record",
    "name": "Change",
    "fields": [
        {"name": "operation", "type": "string"},
        {"name": "key", "type": "string"},
        {"name": "old", "type": ["null", "string"]},
        {"name": "new", "type": ["null", "string"]},
        {"name": "shard", "type": "string"},
        {"name": "sequence", "type": "string"},
        {"name": "created", "type": "long"},
    ],
}


class Sink:
    """Publishes records. Thread-safe, because a producer is."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.topic = topic
        self.producer = Producer({"bootstrap.servers": bootstrap_servers, **SETTINGS})
        self.schema = fastavro.parse_schema(SCHEMA)
        self.sent = 0
        self._lock = threading.Lock()

    def send(self, kind: str, shard: str, sequence: str, created: int, keys: Any, old: Any, new: Any) -> None:
        out = io.BytesIO()
        change = {
            "operation": kind,
            "key": _json(keys),
            "old": _json(old) if old is not None else None,
            "new": _json(new) if new is not None else None,
            "shard": shard,
            "sequence": sequence,
            "created": created,
        }
        fastavro.schemaless_writer(out, self.schema, change)
        while True:
            try:
                self.producer.produce(self.topic, out.getvalue(), keys["customer"]["S"])
                break
            except BufferError:
                self.producer.poll(0.1)

    def count(self, records: int) -> int:
        with self._lock:
            self.sent += records
            return self.sent

    def close(self) -> None:
        self.producer.flush()


def client(service: Any, url: str) -> Any:
    settings = Config(max_pool_connections=64)
    return boto3.client(
        service,
        endpoint_url=url,
        region_name="us-east-1",
        config=settings,
        aws_access_key_id="bench",
        aws_secret_access_key="bench",
    )


def arguments() -> tuple[str, str, str, str, int]:
    """Return the URL, stream ARN, bootstrap servers, topic and number of records."""
    url, arn, servers, topic, expected = sys.argv[1:]
    return url, arn, servers, topic, int(expected)


def _json(value: Any) -> str:
    return orjson.dumps(value, default=_base64).decode()


def _base64(value: Any) -> str:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    raise TypeError(json.dumps(str(value)))
