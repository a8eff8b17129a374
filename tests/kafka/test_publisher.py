"""A transactional producer on a broker."""

from __future__ import annotations

import gc
import logging
import math
import sys
import threading
import time
import weakref
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from relay.errors import NotDrained, RelayError
from relay.kafka.publisher import Abandoned, Aborted, Fenced, Publisher, TooSlow, _unmasked
from tests.kafka.proxy import Api, Cut, Late, Pass, ProxiedBroker, Verdict, passing
from tests.kafka.transactional import create, publish, read_committed
from tests.listening import NOBODY
from tests.waiting import wait_until


def test_a_call_that_no_broker_answers_is_retried_with_their_address_in_the_log(
    unique: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10"""
    monkeypatch.setattr("relay.kafka.publisher._CALL_TIMEOUT", 0.2)
    caplog.set_level("INFO", "relay")
    client = {"bootstrap.servers": NOBODY, "logger": logging.getLogger("librdkafka")}
    with pytest.raises(NotDrained, match=f"no broker at {client['bootstrap.servers']} answers init_transactions"):
        Publisher(client, unique, stop_by=lambda: 0.0 if "retrying" in caplog.text else math.inf)
    assert f"init_transactions failed at {client['bootstrap.servers']}, retrying" in caplog.text


@pytest.mark.services
def test_a_transaction_may_be_longer_than_the_queue_of_the_producer(kafka: Any, unique: str) -> None:
    """I11: it waits for the broker to take records, and takes their delivery reports."""
    client = {"bootstrap.servers": kafka.bootstrap_servers}
    create(client, unique)
    deadline = time.monotonic() + 600
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
def test_a_record_that_the_topic_refused_before_a_checkpoint_is_sent_is_final_too(kafka: Any, unique: str) -> None:
    """I10: the records are acknowledged, or refused, before the checkpoint is sent."""
    client = {"bootstrap.servers": kafka.bootstrap_servers}
    create(client, unique, **{"max.message.bytes": "1000"})
    publisher = Publisher(client, unique)
    publisher.begin()
    publisher.send(unique, bytes(5000), b"", 0)
    publisher.flush()
    with pytest.raises(RelayError, match=r"max\.message\.bytes of a topic was lowered .* restart the relay"):
        publisher.send(unique, b"checkpoint", b"", 0)
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


@pytest.fixture
def client(broker: ProxiedBroker, unique: str) -> dict[str, Any]:
    """Settings of clients whose requests the proxy knows: one that was abandoned in another test goes on asking."""
    return {"bootstrap.servers": broker.bootstrap_servers, "client.id": unique}


@pytest.mark.services
@pytest.mark.parametrize("ends", ["commit", "abort"])
def test_a_request_to_end_a_transaction_that_arrives_late_does_not_end_a_later_one(
    broker: ProxiedBroker, client: dict[str, Any], unique: str, ends: str
) -> None:
    """I1, I3: the client repeats a request whose connection broke, and reports success. The first copy is under way."""
    create(client, unique)
    publisher = Publisher(client, unique)
    arrives = threading.Event()
    publish(publisher, unique, b"1")
    broker.proxy.lose(Api.END_TXN, client=unique, verdict=Verdict(request=Late(arrives)), times=1)
    if ends == "commit":
        publisher.commit_without_offsets()
    else:
        publisher.abort()
    publish(publisher, unique, b"2")
    publisher.flush()
    arrives.set()
    time.sleep(1.0)  # nothing tells when the broker has answered it
    publisher.send(unique, b"3", b"k", 0)
    publisher.commit_without_offsets()
    publisher.close()
    assert read_committed(client, unique) == (["1"] if ends == "commit" else []) + ["2", "3"]


@pytest.mark.services
def test_a_request_to_end_a_transaction_that_timed_out_does_not_end_a_later_one(
    broker: ProxiedBroker, client: dict[str, Any], unique: str
) -> None:
    """I1, I3: the client gives the request up before the call does, and sends it again on another connection."""
    create(client, unique)
    publisher = Publisher({**client, "socket.timeout.ms": 1000}, unique)
    arrives = threading.Event()
    publish(publisher, unique, b"1")
    broker.proxy.lose(Api.END_TXN, client=unique, verdict=Verdict(request=Pass(after=arrives)), times=1)
    publisher.commit_without_offsets()
    publish(publisher, unique, b"2")
    publisher.flush()
    arrives.set()
    time.sleep(1.0)  # nothing tells when the broker has answered it
    publisher.send(unique, b"3", b"k", 0)
    publisher.commit_without_offsets()
    publisher.close()
    assert read_committed(client, unique) == ["1", "2", "3"]


@pytest.mark.services
def test_a_producer_is_spent_once_a_connection_breaks_and_not_because_it_could_not_connect(
    broker: ProxiedBroker, client: dict[str, Any], unique: str
) -> None:
    """I3: a connection that never was has carried no request."""
    client["bootstrap.servers"] = f"{NOBODY},{broker.bootstrap_servers}"
    create(client, unique)
    publisher = Publisher(client, unique)
    publish(publisher, unique, b"1")
    publisher.commit_without_offsets()
    assert [publisher.is_spent] == [False]
    broker.proxy.lose(Api.PRODUCE, client=unique, verdict=Verdict(request=Cut(100)), times=1)
    publish(publisher, unique, b"2")
    publisher.commit_without_offsets()
    assert [publisher.is_spent] == [True]
    publish(publisher, unique, b"3")
    publisher.commit_without_offsets()
    assert [publisher.is_spent] == [False]
    publisher.close()
    assert read_committed(client, unique) == ["1", "2", "3"]


@pytest.mark.services
def test_records_that_do_not_arrive_within_the_transaction_timeout_are_not_sent_on(
    broker: ProxiedBroker, client: dict[str, Any], unique: str
) -> None:
    """I10: they would take the way from the next attempt."""
    client |= {"transaction.timeout.ms": 10_000, "linger.ms": 0}
    create(client, unique)
    publisher = Publisher(client, unique)
    broker.proxy.lose(Api.PRODUCE, client=unique, verdict=Verdict(request=Pass(rate=1000)))
    publish(publisher, unique, *[bytes(4000)] * 10)
    with pytest.raises(TooSlow, match=r"the broker did not acknowledge \d+ records within 8 s"):
        publisher.flush()
    with pytest.raises(Aborted, match=r"did not acknowledge some of its records in time: .*`transaction\.timeout\.ms`"):
        publisher.flush()
    broker.proxy.rule = passing
    publisher.abort()
    publish(publisher, unique, b"2")
    publisher.flush()
    publisher.commit_without_offsets()
    publisher.close()
    assert read_committed(client, unique) == ["2"]


@pytest.mark.services
def test_a_client_whose_call_was_abandoned_is_kept_and_sends_nothing_more(
    broker: ProxiedBroker, client: dict[str, Any], unique: str
) -> None:
    """I3, I10: librdkafka corrupts its memory if such a client is freed. Another client gets through meanwhile."""
    client |= {"transaction.timeout.ms": 10_000}
    create(client, unique)
    group = Consumer({**client, "group.id": unique})
    publisher = Publisher(client, unique)
    publish(publisher, unique, b"1")
    broker.proxy.lose(Api.ADD_OFFSETS_TO_TXN, client=unique)
    with pytest.raises(Abandoned, match=f"no broker at {broker.bootstrap_servers} has answered send_offsets"):
        publisher.commit([TopicPartition(unique, 0, 1)], group.consumer_group_metadata)
    abandoned, thread = publisher._producer, publisher._bounded._thread
    publisher.renew()
    gc.collect()
    # This variable, the argument, a reference that nobody gives back, and the call, if it has not returned yet.
    wait_until(lambda: sys.getrefcount(abandoned) == 3 + thread.is_alive())
    publish(publisher, unique, b"2")
    publisher.commit_without_offsets()
    broker.proxy.rule = passing
    publisher.close()
    group.close()
    assert read_committed(client, unique) == ["2"]


@pytest.mark.services
def test_a_stop_does_not_wait_until_a_call_is_abandoned(
    broker: ProxiedBroker, client: dict[str, Any], unique: str
) -> None:
    """I3: the call ignores its own timeout, and its client is kept."""
    create(client, unique)
    group = Consumer({**client, "group.id": unique})
    stop_by = [math.inf]
    publisher = Publisher({**client, "transaction.timeout.ms": 600_000}, unique, stop_by=lambda: stop_by[0])
    publish(publisher, unique, b"1")
    broker.proxy.lose(Api.ADD_OFFSETS_TO_TXN, client=unique)
    threading.Timer(1.0, lambda: stop_by.__setitem__(0, time.monotonic())).start()
    with pytest.raises(NotDrained, match=r"stopping, but no broker at .* answers send_offsets"):
        publisher.commit([TopicPartition(unique, 0, 1)], group.consumer_group_metadata)
    kept = publisher._producer
    publisher.close()
    group.close()
    gc.collect()
    # This variable, the argument, the call under way, and a reference that nobody gives back.
    assert sys.getrefcount(kept) == 4


@pytest.mark.services
def test_a_producer_that_has_aborted_is_spent(kafka: Any, unique: str) -> None:
    """I3"""
    client = {"bootstrap.servers": kafka.bootstrap_servers}
    create(client, unique)
    publisher = Publisher(client, unique)
    publish(publisher, unique, b"1")
    publisher.abort()
    assert publisher.is_spent
    publish(publisher, unique, b"2")
    publisher.commit_without_offsets()
    publisher.close()
    assert read_committed(client, unique) == ["2"]


@pytest.mark.services
@pytest.mark.parametrize("ends", ["commit", "abort"])
def test_a_client_that_gets_no_answer_is_given_up(
    broker: ProxiedBroker, client: dict[str, Any], unique: str, ends: str
) -> None:
    """I10: librdkafka may lose its coordinator, and then asks in vain while other clients get through."""
    client |= {"transaction.timeout.ms": 10_000}
    create(client, unique)
    publisher = Publisher(client, unique)
    publish(publisher, unique, b"1")
    publisher.flush()
    broker.proxy.lose(Api.END_TXN, client=unique)
    with pytest.raises(Abandoned, match=f"has answered {ends} for 10 s"):
        publisher.commit_without_offsets() if ends == "commit" else publisher.abort()
    publisher.renew()
    broker.proxy.rule = passing
    publish(publisher, unique, b"2")
    publisher.commit_without_offsets()
    publisher.close()
    assert read_committed(client, unique) == ["2"]


@pytest.mark.services
def test_a_fence_beside_connections_that_break_is_a_fence(
    broker: ProxiedBroker, client: dict[str, Any], unique: str
) -> None:
    """I3: librdkafka delivers the line about the connection while the exception about the fence is on its way."""
    client |= {"linger.ms": "0"}
    create(client, unique)
    for _ in range(3):
        publisher = Publisher(client, unique)
        publish(publisher, unique, b"1")
        publisher.flush()
        Publisher(client, unique).close()
        broker.proxy.lose(Api.PRODUCE, client=unique, verdict=Verdict(answer=Cut(100_000)), times=1)
        publisher.send(unique, b"2", b"k", 0)
        with pytest.raises(Fenced):
            publisher.flush()
        broker.proxy.rule = passing
        publisher.close()


def test_an_error_behind_those_of_log_lines_keeps_no_client() -> None:
    """I11: a client that was fenced ends at once, and not when garbage is collected."""

    class Client:
        def flush(self) -> None:
            raise SystemError("a line was logged") from ValueError("fenced")

    client = Client()
    seen = weakref.ref(client)
    gc.disable()
    try:
        with pytest.raises(ValueError, match="fenced"):
            _unmasked(client.flush)
        del client
        assert seen() is None
    finally:
        gc.enable()
