"""Prints each change on a topic with a Kafka client and an Avro library, and none of our code: copy it anywhere.

python own_client.py BROKERS TOPIC SCHEMAS GROUP [REGISTRY_URL [COUNT]]

SCHEMAS is the topic ``<name>.schemas``; REGISTRY_URL is the ``url`` of ``schema_registry:``, if the config has one.
TOPIC may be in Debezium's envelope. The program ends once it has printed COUNT changes.
"""

import io
import json
import sys
import time
import urllib.request
from typing import Any

import fastavro
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

PATIENCE = 60.0  # seconds for a schema, which is on its topic before the first change that has it


class SchemaReader:
    """The schemas by the header of the values that they wrote."""

    def __init__(self, brokers: str, topic: str, registry: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": brokers, "group.id": "unused", "enable.auto.commit": False})
        if topic not in self._consumer.list_topics(timeout=PATIENCE).topics:
            raise LookupError(f"no topic {topic} at {brokers}: pass <name>.schemas, with the relay's `name`")
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        self._known: dict[bytes, Any] = {}
        self._registry = registry

    def decode(self, value: bytes) -> Any:
        """Decode a value. Without its schema, Avro would return a row of wrong values and no error."""
        length = 5 if value[:1] == b"\x00" else 10  # 00 and a registry's id, or C3 01 and a fingerprint
        header = value[:length]
        if length == 5 and self._registry and header not in self._known:
            with urllib.request.urlopen(f"{self._registry}/schemas/ids/{int.from_bytes(header, 'big')}") as answer:
                self._known[header] = fastavro.parse_schema(json.loads(json.load(answer)["schema"]))
        deadline = time.monotonic() + PATIENCE
        while header not in self._known:
            if value[:2] != b"\xc3\x01" or time.monotonic() > deadline:
                raise LookupError(f"no schema of a value that begins with {header.hex()}")
            message = self._consumer.poll(1.0)
            if message is not None and message.error() is None:
                name = b"\xc3\x01" + bytes.fromhex((message.key() or b"").decode())
                self._known[name] = fastavro.parse_schema(json.loads(message.value() or b""))
        return fastavro.schemaless_reader(io.BytesIO(value[length:]), self._known[header], None)


def main(brokers: str, topic: str, schemas_topic: str, group: str, registry: str = "", count: str = "inf") -> None:
    schemas = SchemaReader(brokers, schemas_topic, registry)
    settings = {"bootstrap.servers": brokers, "group.id": group, "enable.auto.commit": False}
    # Clients in Java, and Spark, need isolation.level=read_committed. It is the default here.
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    left = float(count)
    while left > 0:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            raise RuntimeError(message.error())
        if (value := message.value()) is not None:  # null: for log compaction, and for Debezium's sinks
            change = schemas.decode(value)
            read = [change.get("operation"), change.get("key"), change.get("new")]
            if "op" in change:  # Debezium's envelope, whose key is in the key of the record; a truncation has none
                read = [change["op"], (key := message.key()) and schemas.decode(key), change["after"]]
            print(json.dumps(read, default=str), flush=True)
            left -= 1
        consumer.commit(message=message, asynchronous=False)  # what was printed is not printed again
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
