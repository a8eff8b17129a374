"""The sizes of records and batches, against what a real broker takes."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from relay.kafka.limits import Limits, record_size
from relay.kafka.topics import LARGEST_MESSAGE, FoundTopic, Topic

LIMIT = 20_000


def found(name: str, limit: int) -> FoundTopic:
    return FoundTopic(Topic(name, 1, ""), exists=True, largest_message=limit)


def test_the_least_of_topic_and_producer_is_the_limit_and_of_all_topics_that_of_a_batch() -> None:
    topics = [found("a", 1000), found("b", LARGEST_MESSAGE * 2)]
    limits = Limits.of(topics, {})
    assert limits == Limits({"a": 1000, "b": LARGEST_MESSAGE}, 1000)
    assert limits.producer({"batch.size": 500}) == {"batch.size": 500}
    assert limits.producer({"batch.size": "5000"}) == {"batch.size": 1000}
    assert Limits.of(topics, {"message.max.bytes": "2000"}).records == {"a": 1000, "b": 2000}


@pytest.mark.services
class TestOnABroker:
    @pytest.fixture
    def topic(self, kafka: Any) -> str:
        name = f"limits-{uuid.uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.create_topics([NewTopic(name, 1, config={"max.message.bytes": str(LIMIT)})])[name].result(30)
        return name

    def refused(self, kafka: Any, topic: str, records: list[Any], **settings: Any) -> list[KafkaError]:
        errors: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                errors.append(error)

        limits = Limits.of([found(topic, LIMIT)], settings)
        producer = Producer(
            {
                "bootstrap.servers": kafka.bootstrap_servers,
                "enable.idempotence": True,
                **limits.producer({"batch.size": 1 << 20, "linger.ms": 50, **settings}),
            }
        )
        for value, key, headers in records:
            producer.produce(topic, value, key, 0, on_delivery=delivered, headers=headers)
        assert producer.flush(30) == 0
        return errors

    @pytest.mark.parametrize("compression", ["none", "lz4"])
    def test_what_fits_is_never_refused_alone_or_among_others(self, kafka: Any, topic: str, compression: str) -> None:
        """I10: a refused batch would be sent again for ever."""
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

    def test_what_is_much_larger_is_refused(self, kafka: Any, topic: str) -> None:
        """So that the test above would notice."""
        (error,) = self.refused(kafka, topic, [(bytes(LIMIT), b"", [])])
        assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE
