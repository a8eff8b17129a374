"""The sizes of records and batches, compared with what a real broker accepts."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from relay.kafka.limits import largest_records, record_size, with_batches
from relay.kafka.topics import LARGEST_MESSAGE, FoundTopic, RequiredTopic

LIMIT = 20_000


def found(name: str, limit: int) -> FoundTopic:
    return FoundTopic(RequiredTopic(name, 1, ""), exists=True, largest_message=limit)


def test_a_record_is_limited_by_topic_and_producer_and_a_batch_by_the_smallest_topic() -> None:
    topics = [found("a", 1000), found("b", LARGEST_MESSAGE * 2)]
    limits = largest_records(topics, {})
    assert limits == {"a": 1000, "b": LARGEST_MESSAGE}
    assert with_batches({"batch.size": 500}, limits) == {"batch.size": 500}
    assert with_batches({"batch.size": "5000"}, limits) == {"batch.size": 1000}
    assert largest_records(topics, {"message.max.bytes": "2000"}) == {"a": 1000, "b": 2000}


@pytest.mark.services
class TestOnABroker:
    @pytest.fixture
    def topic(self, kafka: Any) -> str:
        name = f"limits-{uuid.uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.create_topics([NewTopic(name, 1, config={"max.message.bytes": str(LIMIT)})])[name].result(120)
        return name

    def refused(self, kafka: Any, topic: str, records: list[Any], **settings: Any) -> list[KafkaError]:
        errors: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                errors.append(error)

        limits = largest_records([found(topic, LIMIT)], settings)
        producer = Producer(
            {
                "bootstrap.servers": kafka.bootstrap_servers,
                "enable.idempotence": True,
                **with_batches({"batch.size": 1 << 20, "linger.ms": 50, **settings}, limits),
            }
        )
        for value, key, headers in records:
            producer.produce(topic, value, key, 0, on_delivery=delivered, headers=headers)
        assert producer.flush(30) == 0
        return errors

    @pytest.mark.parametrize("compression", ["none", "lz4"])
    def test_a_record_that_fits_is_never_refused_alone_or_in_a_batch(
        self, kafka: Any, topic: str, compression: str
    ) -> None:
        """I10: a refused batch would be retried for ever."""
        chance = random.Random(1)
        records = []
        for number in range(300):
            key = chance.randbytes(chance.randint(0, 300))
            headers: list[tuple[str, str | bytes | None]] = [
                ("token", chance.randbytes(chance.randint(0, 300))) for _ in range(chance.randint(0, 5))
            ]
            room = LIMIT - record_size(b"", key, headers)
            size = room if number % 3 == 0 else chance.randint(0, room // 4)
            records.append((chance.randbytes(size), key, headers))
        assert self.refused(kafka, topic, records, **{"compression.type": compression}) == []

    def test_a_much_larger_record_is_refused(self, kafka: Any, topic: str) -> None:
        """Proves that the test above can fail."""
        (error,) = self.refused(kafka, topic, [(bytes(LIMIT), b"", [])])
        assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE
