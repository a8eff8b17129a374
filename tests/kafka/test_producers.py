"""The producers of a worker: they take turns, and one that is spent takes a new epoch while the other goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest

from relay.errors import NoAnswer, Unavailable
from relay.kafka import producers as opened_producers
from relay.kafka.producers import Producers
from relay.kafka.publisher import Aborted, Fenced, Publisher
from relay.kafka.settings import KafkaSettings
from relay.process.slow_call import SlowCall
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


def test_while_all_producers_take_a_new_epoch_the_worker_says_what_it_waits_for(
    unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10: the main loop waits there."""
    monkeypatch.setattr(opened_producers, "_TELL_EVERY", 0.05)
    producers, told, renewed = Producers(KafkaSettings.from_config(config(unique, NOBODY))), list[str](), Event()

    def tell(why: str) -> None:
        told.append(why)
        renewed.set()

    def renew() -> Publisher:
        assert renewed.wait(10)
        return cast(Publisher, SimpleNamespace(is_spent=False, close=lambda: None))

    producers.tell = tell
    producers._opening.append(SlowCall("renew", renew))
    next(producers)
    assert f"{producers.name}: no broker has given its producers a new epoch yet" in told
    producers.close()
    producers.release()


def test_producers_that_are_closed_while_one_is_opened_wait_for_its_present_attempt_only(
    unique: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """I10: after that, a worker that starts over opens them again, and is as patient once more."""
    caplog.set_level("INFO", "relay")
    monkeypatch.setattr(opened_producers, "_GIVE_UP_AFTER", 2.0)
    producers = Producers(KafkaSettings.from_config(config(unique, NOBODY)))

    def connect() -> Publisher:
        time.sleep(0.05)
        raise NoAnswer("nobody answers")

    producers._opening.append(SlowCall("open", partial(producers._patiently, connect)))
    producers.close()
    assert f"{producers.name}: another producer was not opened: nobody answers" in caplog.messages
    with pytest.raises(Unavailable, match="other clients got no answer for 2 s either"):
        producers._patiently(connect)
    producers.release()


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
