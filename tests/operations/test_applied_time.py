"""Up to which time a consumer has applied what was committed, while changes go on being published."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from confluent_kafka import Consumer, Producer

from relay.config import Config
from relay.kafka.group_offsets import GroupOffsets
from relay.operations.verify_tables import AppliedTime
from relay.stream.watermark_records import OVERALL
from tests.kafka.configs import config as config_of
from tests.kafka.limited_topics import create
from tests.kafka.proxy import Api, Pass, ProxiedBroker, Request, Verdict
from tests.waiting import wait_until

pytestmark = pytest.mark.services


class Awaited(threading.Event):
    """Says when somebody begins to wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_awaited = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.is_awaited.set()
        return super().wait(timeout)


def test_a_change_that_is_published_while_the_ends_are_looked_up_does_not_count_as_applied(
    broker: ProxiedBroker, unique: str
) -> None:
    """The time that counts is from before the ends; else `relay verify` accuses rows that are only late."""
    config = config_of(unique, broker.bootstrap_servers, partitions=1)
    create(broker.bootstrap_servers, config.topic("orders"), 1)
    publish(config)
    with closing(GroupOffsets(config, "log", [config.topic("orders")])) as group:
        group.commit({config.topic("orders"): {"0": 1}}, ids={}, wait=True)
    is_published = Awaited()

    def answer_late(request: Request) -> Verdict:
        if request.api != Api.LIST_OFFSETS or is_published.is_awaited.is_set():
            return Verdict.PASS
        return Verdict(answer=Pass(after=is_published))

    with closing(AppliedTime(config, "log")) as applied, ThreadPoolExecutor(1) as pool:
        broker.proxy.rule = answer_late
        through = pool.submit(applied.through)
        assert is_published.is_awaited.wait(60)  # the broker has answered
        before = time.time()
        publish(config)
        is_published.set()
        # 0, nothing is known to be applied, if the broker was asked for another end after the change.
        assert through.result() <= before


def test_a_stop_of_the_relay_says_nothing_of_what_was_committed_then_once_it_runs_again(
    broker: ProxiedBroker, unique: str
) -> None:
    """I1: until it has published that, a row that differs is only late."""
    config = config_of(unique, broker.bootstrap_servers, partitions=1)
    for topic in (config.topic("orders"), config.internal("watermarks"), config.internal("checkpoints")):
        create(broker.bootstrap_servers, topic, 1)
    publish(config, config.internal("watermarks"), OVERALL, b'{"watermark": 1000}')
    with closing(GroupOffsets(config, "log", [config.topic("orders")])) as group:
        group.commit({config.topic("orders"): {"0": 0}}, ids={}, wait=True)
    relay = Consumer({**config.kafka.client(), "group.id": f"{unique}.relay"})
    with closing(AppliedTime(config, "log")) as applied, closing(relay):
        assert applied.through() > 1000
        assert not applied.is_running
        relay.subscribe([config.internal("checkpoints")])

        def runs() -> bool:
            relay.poll(0.1)
            through.append(applied.through())
            return applied.is_running

        through: list[float] = []
        wait_until(runs)
        assert through[-1] == 1000


def publish(config: Config, topic: str = "", key: bytes | None = None, value: bytes = b"change") -> None:
    producer = Producer(config.kafka.client())
    producer.produce(topic or config.topic("orders"), value, key, partition=0)
    assert producer.flush(30) == 0
