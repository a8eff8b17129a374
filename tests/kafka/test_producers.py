"""The producers of a worker: they take turns, and one that is spent takes a new epoch while the other goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from relay.errors import Unavailable
from relay.kafka import producers as opened_producers
from relay.kafka.producers import Producers
from relay.kafka.publisher import Aborted, Fenced, Publisher
from relay.kafka.settings import KafkaSettings
from tests.kafka.configs import config
from tests.kafka.proxy import Api, Cut, Pass, ProxiedBroker, Verdict, passing
from tests.kafka.transactional import create, publish, read_committed
from tests.listening import NOBODY


@pytest.fixture
def producers(broker: ProxiedBroker, unique: str) -> Iterator[Producers]:
    opened = Producers(KafkaSettings.from_config(config(unique, broker.bootstrap_servers)))
    opened.open()
    yield opened
    opened.close()
    opened.release()


def commit(publisher: Publisher, topic: str, value: bytes) -> str:
    publish(publisher, topic, value)
    publisher.commit_without_offsets()
    return publisher.transactional_id


@pytest.mark.services
def test_while_a_spent_producer_takes_a_new_epoch_the_other_goes_on(
    broker: ProxiedBroker, producers: Producers, unique: str
) -> None:
    """I3, I10: with the broker away from those that begin, the spent one is not ready, and is not used."""
    client: dict[str, Any] = {"bootstrap.servers": broker.bootstrap_servers}
    create(client, unique)
    first, second = (commit(next(producers), unique, value) for value in (b"1", b"2"))
    assert first != second
    broker.proxy.lose(Api.END_TXN, verdict=Verdict(answer=Cut(2)), times=1)
    assert commit(next(producers), unique, b"3") == first
    broker.proxy.lose(Api.INIT_PRODUCER_ID, verdict=Verdict(request=Pass(after=1.0)))
    assert [commit(next(producers), unique, value) for value in (b"4", b"5")] == [second, second]
    broker.proxy.rule = passing
    used = second
    for number in range(6, 1000):
        if used == first:
            break
        used = commit(next(producers), unique, b"%d" % number)
    assert used == first
    assert read_committed(client, unique) == [str(each) for each in range(1, number)]


@pytest.mark.services
def test_all_that_is_open_is_aborted_when_the_producers_start_over(
    broker: ProxiedBroker, producers: Producers, unique: str
) -> None:
    """I3"""
    client: dict[str, Any] = {"bootstrap.servers": broker.bootstrap_servers}
    create(client, unique)
    name = producers.name
    publish(next(producers), unique, b"1")
    producers.start_over(under_a_new_name=False)
    assert producers.name == name
    commit(next(producers), unique, b"2")
    producers.start_over(under_a_new_name=True)
    assert producers.name != name
    commit(next(producers), unique, b"3")
    assert read_committed(client, unique) == ["2", "3"]


@pytest.mark.services
def test_producers_that_cannot_take_a_new_epoch_are_replaced(
    broker: ProxiedBroker, producers: Producers, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10: with nothing left to take a turn, the worker ended with an IndexError."""
    client: dict[str, Any] = {"bootstrap.servers": broker.bootstrap_servers}
    create(client, unique)
    for value in (b"1", b"2"):
        publisher = next(producers)
        publish(publisher, unique, value)
        publisher.abort()  # so that it is spent

    def fail(publisher: Publisher) -> Publisher:
        raise Aborted("init_transactions: concurrent transactions")

    with monkeypatch.context() as patched:
        patched.setattr(Publisher, "renew", fail)
        for _ in range(2):
            with pytest.raises(Fenced, match="cannot take a new epoch: init_transactions: concurrent transactions"):
                next(producers)
    producers.start_over(under_a_new_name=True)
    commit(next(producers), unique, b"3")
    assert read_committed(client, unique) == ["3"]


def test_a_worker_gives_up_if_no_client_of_several_gets_an_answer(
    unique: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """I10"""
    caplog.set_level("INFO", "relay")
    monkeypatch.setattr("relay.kafka.publisher._CALL_TIMEOUT", 0.2)
    monkeypatch.setattr(opened_producers, "_GIVE_UP_AFTER", 3.0)  # several times what one client takes
    settings = KafkaSettings.from_config(config(unique, NOBODY))
    settings = replace(settings, producer={**settings.producer, "transaction.timeout.ms": 1000})
    told: list[str] = []
    producers = Producers(settings)
    producers.tell = told.append
    with pytest.raises(Unavailable, match=r"init_transactions for 1 s: .*; other clients got no answer for 3 s either"):
        producers.open()
    assert "trying with another client" in caplog.text
    assert "init_transactions for 1 s" in told[0]
