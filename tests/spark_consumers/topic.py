"""Changes on real topics, written as the relay writes them, for consumers to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import orjson
from confluent_kafka import Consumer, Producer, TopicPartition

from relay.avro.encode import ChangeEncoder
from relay.avro.registry import open_schemas
from relay.avro.rows import KeyColumn, TableSchema, change_schema
from relay.change import Change, Images, Operation
from relay.config import Config
from relay.kafka import topics
from relay.kafka.keys import KeyCodec, partition
from relay.token import EventToken

TABLE = "orders"
KEY = (KeyColumn("customer", "S"), KeyColumn("order_id", "N"))
NOON = 1_790_000_000  # seconds


def config(name: str, bootstrap_servers: str, folder: Path, **more: Any) -> Config:
    """A config with one table, and a log and a copy in ``folder``."""
    given: dict[str, Any] = {
        "name": name,
        "kafka": {"bootstrap_servers": bootstrap_servers, "partitions": 3},
        "sources": [{"name": "shop", "type": "dynamodb", "table": TABLE}],
        "log": {"path": f"file://{folder}/log"},
        "copy": {"url": f"delta://{folder}/copy"},
    }
    return Config.model_validate(given | more)


def change(item: int, version: int, **more: Any) -> Change:
    """Version ``version`` of an item: version 1 inserts it."""
    fields: dict[str, Any] = {
        "event_id": f"{item}-{version}",
        "operation": Operation.INSERT if version == 1 else Operation.UPDATE,
        "source": "shop",
        "table": TABLE,
        "key": {"customer": f"c{item}", "order_id": str(item)},
        "old": image(item, version - 1) if version > 1 else None,
        "new": image(item, version),
        "images": Images.NEW_AND_OLD,
        "token": token(version),
        "committed_at": (NOON + version) * 1_000_000,
        "relayed_at": (NOON + version) * 1_000_000 + 5,
        "attributes": {"event_version": "1.1"},
    }
    fields |= more
    if fields["operation"] is Operation.DELETE:
        fields["new"] = None
    return Change(**fields)


def image(item: int, version: int) -> str:
    return orjson.dumps(
        {"customer": {"S": f"c{item}"}, "order_id": {"N": str(item)}, "version": {"N": str(version)}}
    ).decode()


def token(version: int, shard: str = "shop/stream/shard-0") -> EventToken:
    return EventToken(NOON + version, shard, f"DynamoDB/{10**20 + version}")


class Topic:
    """The topics of a config, created; one table's changes are published as the relay would."""

    def __init__(self, config: Config, key: Sequence[KeyColumn] = KEY, table: str = TABLE) -> None:
        self.config = config
        self.name = config.topic(table)
        topics.ensure(topics.connect(config), config, [source.table_name for source in config.sources])
        self.schema = TableSchema("shop", table, tuple(key), 1)
        self._codec = KeyCodec(self.schema, "hash")
        self._schemas = open_schemas(config)
        avro = change_schema(self.schema)
        self.encoder = ChangeEncoder(avro, self._schemas.register(self.name, avro))
        self._producer = Producer(
            {**config.kafka.client(), "transactional.id": f"{config.name}-{table}-test", "message.max.bytes": 8 << 20}
        )
        self._producer.init_transactions(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._schemas.close()

    def publish(self, changes: Iterable[Change]) -> None:
        """Publish changes in one transaction."""
        self._producer.begin_transaction()
        for each in changes:
            self.send(self.encoder.encode(each), self._partition(each))
        self._producer.commit_transaction(30)

    def publish_values(self, values: Iterable[bytes | None], number: int = 0) -> None:
        """Publish bytes as they are, in one transaction, to one partition."""
        self._producer.begin_transaction()
        for value in values:
            self.send(value, number)
        self._producer.commit_transaction(30)

    def abort(self, changes: Iterable[Change]) -> None:
        """Publish changes in a transaction that is aborted: no reader may see them."""
        self._producer.begin_transaction()
        for each in changes:
            self.send(self.encoder.encode(each), self._partition(each))
        self._producer.flush(30)
        self._producer.abort_transaction(30)

    def send(self, value: bytes | None, number: int, topic: str | None = None) -> None:
        while True:
            try:
                self._producer.produce(topic or self.name, value=value, partition=number)
                break
            except BufferError:
                self._producer.poll(0.1)
        self._producer.poll(0)

    def publish_gap(self, gap: Mapping[str, Any]) -> None:
        self._producer.begin_transaction()
        self.send(orjson.dumps(gap), 0, self.config.internal("gaps"))
        self._producer.commit_transaction(30)

    def _partition(self, each: Change) -> int:
        if each.key is None:
            return 0
        return partition(self._codec.hash_bytes(each.key), self.config.kafka.partitions)


def dead_letters(config: Config) -> list[tuple[str, bytes, dict[str, str]]]:
    """Return the dead letters in order: key, value, headers."""
    consumer = Consumer(
        {
            **config.kafka.client(),
            "group.id": f"{config.name}.test",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    topic = config.internal("dead_letters")
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = []
        while end > 0:
            message = consumer.poll(10)
            assert message is not None
            assert message.error() is None
            headers = {name: bytes(value).decode() for name, value in cast(Any, message.headers() or [])}
            found.append(((message.key() or b"").decode(), message.value() or b"", headers))
            if message.offset() == end - 1:
                break
        return found
    finally:
        consumer.close()
