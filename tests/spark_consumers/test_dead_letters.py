"""The dead letters of a consumer."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from relay.config import Config
from relay.errors import Unavailable
from spark_consumers import dead_letters
from spark_consumers.dead_letters import DeadLetterTopic, NonChangeRecord
from spark_consumers.records import DecodeStatus
from spark_consumers.table_consumer import in_parts
from tests.spark_consumers.topic import NoSchemas


class FullProducer:
    """A producer whose queue holds two records. ``poll`` and ``flush`` deliver them."""

    def __init__(self, settings: dict[str, Any], logger: Any) -> None:
        self.queued: list[bytes] = []
        self.delivered: list[bytes] = []

    def produce(self, topic: str, *, key: bytes, **record: Any) -> None:
        if len(self.queued) == 2:
            raise BufferError
        self.queued.append(key)

    def poll(self, timeout: float) -> None:
        if timeout:
            self.flush(timeout)

    def flush(self, timeout: float) -> int:
        self.delivered += self.queued
        self.queued.clear()
        return 0


class FatalProducer(FullProducer):
    """A producer that has failed for good, and says so where ``says`` is called."""

    says = "flush"

    def produce(self, topic: str, *, key: bytes, **record: Any) -> None:
        if self.says == "produce":
            raise KafkaException(KafkaError(KafkaError._FATAL))
        super().produce(topic, key=key, **record)

    def flush(self, timeout: float) -> int:
        return len(self.queued)

    def purge(self) -> None:
        self.queued.clear()


def open_topic() -> DeadLetterTopic:
    config = {
        "name": "shop",
        "kafka": {"bootstrap_servers": "127.0.0.1:9"},
        "sources": [{"name": "orders", "type": "dynamodb", "table": "orders"}],
    }
    return DeadLetterTopic(Config.model_validate(config), "log", NoSchemas())


@pytest.mark.parametrize("says", ["flush", "produce"])
def test_after_a_failure_a_new_producer_sends_what_comes_next(says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: one that has failed for good sends nothing any more."""
    monkeypatch.setattr(FatalProducer, "says", says)
    monkeypatch.setattr(dead_letters, "Producer", FatalProducer)
    topic = open_topic()
    monkeypatch.setattr(dead_letters, "Producer", FullProducer)
    with pytest.raises(Unavailable, match="cannot write dead letters"):
        topic.send([NonChangeRecord(DecodeStatus.FRAMING, "t", 0, 1, b"")])
    assert topic.send([NonChangeRecord(DecodeStatus.FRAMING, "t", 0, 2, b"")]) == 1
    producer: Any = topic._producer
    assert producer.delivered == [b"t/0/2/log"]


def test_a_full_queue_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """I11, I1: librdkafka takes no more records than its queue holds."""
    monkeypatch.setattr(dead_letters, "Producer", FullProducer)
    topic = open_topic()
    assert topic.send(NonChangeRecord(DecodeStatus.FRAMING, "t", 0, n, b"") for n in range(7)) == 7
    producer: Any = topic._producer
    assert producer.delivered == [b"t/0/%d/log" % n for n in range(7)]


def test_damaged_values_come_to_the_driver_in_parts() -> None:
    """I11: a batch may have thousands of them, each as large as its topic takes."""
    sized = [(NonChangeRecord(DecodeStatus.DAMAGED, "t", 0, n, b""), size) for n, size in enumerate([4, 4, 3, 20, 1])]
    parts = [[record.offset for record in part] for part in in_parts(sized, 10)]
    assert parts == [[0, 1], [2], [3], [4]]
    assert list(in_parts([], 10)) == []
