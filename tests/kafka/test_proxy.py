"""What the proxy does to requests and answers, as a client sees it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.kafka.proxy import Api, Cut, Late, Pass, ProxiedBroker, Verdict, passing
from tests.waiting import wait_until

pytestmark = pytest.mark.services


@pytest.fixture
def topic(broker: ProxiedBroker, unique: str) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(unique, 1, 1)])[unique].result(120)
    return unique


@pytest.fixture
def producer(broker: ProxiedBroker, topic: str) -> Iterator[Producer]:
    client = {"bootstrap.servers": broker.bootstrap_servers, "client.id": topic, "enable.idempotence": True}
    yield Producer({**client, "retry.backoff.ms": 1, "log_level": 0})
    broker.proxy.rule = passing


def read(broker: ProxiedBroker, topic: str, isolation: str = "read_committed") -> list[bytes | None]:
    settings: dict[str, Any] = {"group.id": topic, "isolation.level": isolation, "enable.auto.commit": False}
    reader = Consumer({"bootstrap.servers": broker.bootstrap_servers, **settings})
    try:
        where = TopicPartition(topic, 0, 0)
        reader.assign([where])
        found: list[bytes | None] = []
        while reader.position([where])[0].offset < reader.get_watermark_offsets(where, 60)[1]:
            found += [message.value() for message in reader.consume(100, 0.2)]
        return found
    finally:
        reader.close()


@pytest.mark.parametrize("at", [0, 3, 4, 40, 10_000])
@pytest.mark.parametrize("what", ["request", "answer"])
def test_a_connection_that_is_cut_at_any_byte_is_opened_again(
    broker: ProxiedBroker, producer: Producer, topic: str, what: str, at: int
) -> None:
    cut = Verdict(request=Cut(at)) if what == "request" else Verdict(answer=Cut(at))
    broker.proxy.lose(Api.PRODUCE, verdict=cut, times=1)
    producer.produce(topic, b"1", partition=0)
    assert producer.flush(60) == 0
    assert read(broker, topic) == [b"1"]
    assert [request.api for request in broker.proxy.lost] == [Api.PRODUCE]


@pytest.mark.parametrize("what", ["request", "answer"])
def test_what_is_delayed_on_one_connection_is_overtaken_on_another(
    broker: ProxiedBroker, producer: Producer, topic: str, what: str
) -> None:
    go = threading.Event()
    slow = Verdict(request=Pass(go)) if what == "request" else Verdict(answer=Pass(go))
    broker.proxy.lose(Api.PRODUCE, verdict=slow, times=1)
    producer.produce(topic, b"slow", partition=0)
    producer.poll(0)
    wait_until(lambda: bool(broker.proxy.lost))
    other = Producer({"bootstrap.servers": broker.bootstrap_servers})
    other.produce(topic, b"fast", partition=0)
    assert other.flush(60) == 0
    go.set()
    assert producer.flush(60) == 0
    assert read(broker, topic) == ([b"fast", b"slow"] if what == "request" else [b"slow", b"fast"])


def test_a_rate_delays_a_request_by_its_size(broker: ProxiedBroker, producer: Producer, topic: str) -> None:
    broker.proxy.lose(Api.PRODUCE, verdict=Verdict(request=Pass(rate=100_000)))
    begun = time.monotonic()
    producer.produce(topic, bytes(100_000), partition=0)
    assert producer.flush(60) == 0
    assert time.monotonic() - begun >= 1.0


def test_a_late_request_ends_a_transaction_that_the_client_began_after_its_repetition(
    broker: ProxiedBroker, topic: str
) -> None:
    """The fault of protocols before KIP-890, without which the relay's own defence would have nothing to do."""
    arrival = threading.Event()
    broker.proxy.lose(Api.END_TXN, verdict=Verdict(request=Late(arrival)), times=1)
    client = {"bootstrap.servers": broker.bootstrap_servers, "client.id": topic, "log_level": 0}
    producer = Producer({**client, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"1", partition=0)
    producer.commit_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b"2", partition=0)
    assert producer.flush(60) == 0
    arrival.set()
    wait_until(lambda: b"2" in read(broker, topic))
