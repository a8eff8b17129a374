"""What commands read of a topic."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer

from relay.kafka import topics
from relay.kafka.committed import read_all_committed
from tests.kafka.configs import config


@pytest.mark.services
def test_records_of_an_aborted_transaction_are_not_read(kafka: Any, unique: str) -> None:
    """I3: no consumer gets them."""
    relayed = config(unique, kafka.bootstrap_servers)
    admin = topics.connect(relayed)
    topics.create_missing(admin, relayed, ["orders"])
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": unique})
    producer.init_transactions(30)
    for value in (b"aborted", b"committed"):
        producer.begin_transaction()
        producer.produce(relayed.topic("orders"), value, partition=0)
        producer.flush(30)
        if value == b"aborted":
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    found = read_all_committed(admin, relayed, relayed.topic("orders"))
    assert [message.value() for message in found] == [b"committed"]
