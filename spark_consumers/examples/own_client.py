"""Prints each change on a topic with a Kafka client and an Avro library, and none of our code: copy it anywhere.

python own_client.py BROKERS TOPIC SCHEMAS GROUP [COUNT]

SCHEMAS is the topic ``<name>.schemas``: the config has no `schema_registry:`. With COUNT it ends after so many changes.
"""

import io
import json
import sys
import time
from typing import Any

import fastavro
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

PATIENCE = 60.0  # seconds for a schema, which is on its topic before the first change that has it


class SchemaReader:
    """The schemas by the header of the values that they wrote."""

    def __init__(self, brokers: str, topic: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": brokers, "group.id": "unused", "enable.auto.commit": False})
        if topic not in self._consumer.list_topics(timeout=PATIENCE).topics:
            raise LookupError(f"there is no topic {topic} at {brokers}: it is called as in the config, <name>.schemas")
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        self._known: dict[bytes, Any] = {}

    def of(self, value: bytes) -> Any:
        """Return the schema of a value. Without it, Avro would return a row of wrong values and no error."""
        deadline = time.monotonic() + PATIENCE
        while value[:10] not in self._known:
            if value[:2] != b"\xc3\x01" or time.monotonic() > deadline:
                raise LookupError(f"no schema of a value that begins with {value[:10].hex()}")
            message = self._consumer.poll(1.0)
            if message is not None and message.error() is None:
                header = b"\xc3\x01" + bytes.fromhex((message.key() or b"").decode())
                self._known[header] = fastavro.parse_schema(json.loads(message.value() or b""))
        return self._known[value[:10]]


def main(brokers: str, topic: str, schemas_topic: str, group: str, count: str = "inf") -> None:
    schemas = SchemaReader(brokers, schemas_topic)
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
        if (value := message.value()) is not None:  # null: for log compaction, with `tombstones: true`
            change: Any = fastavro.schemaless_reader(io.BytesIO(value[10:]), schemas.of(value))
            print(json.dumps([change["operation"], change["key"], change["new"]], default=str), flush=True)
            left -= 1
        consumer.commit(message=message, asynchronous=False)  # what was printed is not printed again
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
