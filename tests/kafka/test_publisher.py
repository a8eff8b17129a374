"""A transactional producer on a broker."""

from __future__ import annotations

import logging
import math
import time
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from relay.errors import NotDrained, RelayError
from relay.kafka.publisher import Aborted, Fenced, Publisher
from relay.process.managed import free_port


def create(client: dict[str, Any], name: str, **settings: str) -> None:
    admin = AdminClient(client)
    admin.create_topics([NewTopic(name, 1, 1, config=settings)])[name].result(30)


def test_a_call_that_no_broker_answers_is_retried_with_their_address_in_the_log(
    unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I10"""
    caplog.set_level("INFO", "relay")
    client = {"bootstrap.servers": f"127.0.0.1:{free_port()}", "logger": logging.getLogger("librdkafka")}
    with pytest.raises(NotDrained, match=f"no broker at {client['bootstrap.servers']} answers init_transactions"):
        Publisher(client, unique, stop_by=lambda: 0.0 if "retrying" in caplog.text else math.inf)
    assert f"init_transactions failed at {client['bootstrap.servers']}, retrying" in caplog.text


@pytest.mark.services
def test_a_transaction_may_be_longer_than_the_queue_of_the_producer(kafka: Any, unique: str) -> None:
    """I11: it waits for the broker to take records, and takes their delivery reports."""
    client = {"bootstrap.servers": kafka.bootstrap_servers}
    create(client, unique)
    deadline = time.monotonic() + 120
    publisher = Publisher({**client, "queue.buffering.max.messages": 10}, unique, stop_by=lambda: deadline)
    publisher.begin()
    for number in range(100):
        publisher.send(unique, b"%d" % number, b"", 0)
    publisher.commit_without_offsets()
    publisher.close()


@pytest.mark.services
def test_a_record_that_the_topic_refuses_is_final_and_says_what_to_do(kafka: Any, unique: str) -> None:
    """I10: an aborted transaction would be published again, and refused again, for ever."""
    client = {"bootstrap.servers": kafka.bootstrap_servers}
    create(client, unique, **{"max.message.bytes": "1000"})
    publisher = Publisher(client, unique)
    publisher.begin()
    publisher.send(unique, bytes(5000), b"", 0)
    with pytest.raises(RelayError, match=r"max\.message\.bytes of a topic was lowered .* restart the relay"):
        publisher.commit_without_offsets()
    publisher.close()


@pytest.mark.services
def test_a_fence_that_shows_before_any_call_is_a_fence(kafka: Any, unique: str) -> None:
    """I3: librdkafka then raises it wherever it is polled."""
    client = {"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": "0"}
    create(client, unique)
    publisher = Publisher(client, unique)
    publisher.begin()
    publisher.send(unique, b"1", b"", 0)
    successor = Publisher(client, unique)
    with suppress(Aborted):  # the first record may have met the fence already
        publisher.send(unique, b"2", b"", 0)
    time.sleep(2.0)  # for the broker's answer to that record
    with pytest.raises(Fenced):
        publisher.commit_without_offsets()
    publisher.close()
    successor.close()
