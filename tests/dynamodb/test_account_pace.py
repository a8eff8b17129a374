"""The pace of listings: one for all streams of an account in a region, slower while AWS throttles them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from relay.config import DynamoDBConfig
from relay.dynamodb.account_pace import Pace, pace_of
from relay.dynamodb.describe import TableCalls
from relay.dynamodb.source import DynamoDBSource
from tests.clock import Clock
from tests.dynamodb.answering_server import Refused
from tests.dynamodb.endpoint import ARN, TABLE, ScriptedStream, arn

_MINUTE = 60.0


class Paced:
    """A pace whose clock passes by its waits."""

    def __init__(self) -> None:
        self.clock = Clock(0.0)
        self.pace = Pace(sleep=self._pass, clock=self.clock)

    def _pass(self, seconds: float) -> None:
        self.clock.now += seconds

    def calls_in(self, seconds: float, *, fail: bool) -> int:
        """Make calls for ``seconds``, each of which takes 10 ms."""
        end, calls = self.clock.now + seconds, 0
        while True:
            begun = self.pace.wait()
            if self.clock.now >= end:
                return calls
            calls += 1
            self.clock.now += 0.01
            self.pace.failed(begun) if fail else self.pace.succeeded()


def test_while_calls_fail_there_are_few_and_fewer() -> None:
    paced = Paced()
    assert paced.calls_in(_MINUTE, fail=True) <= 11
    assert paced.calls_in(10 * _MINUTE, fail=True) <= 20


def test_once_calls_succeed_again_they_soon_have_no_pauses() -> None:
    """I10: an outage of hours does not slow listings down for long."""
    paced = Paced()
    paced.calls_in(60 * _MINUTE, fail=True)
    paced.calls_in(6 * _MINUTE, fail=False)
    assert paced.calls_in(1.0, fail=False) == 100


def test_calls_that_fail_together_slow_the_pace_down_once() -> None:
    """Otherwise a hundred sources that start at the same time would wait for minutes."""
    paced = Paced()
    for begun in [paced.pace.wait() for _ in range(100)]:
        paced.pace.failed(begun)
    before = paced.clock.now
    paced.pace.wait()
    assert paced.clock.now - before <= 0.2


def test_threads_that_wait_take_turns() -> None:
    """The budget is one, however many sources there are."""
    clock, alone = Clock(0.0), threading.Lock()
    waits: list[float] = []
    at_once: list[float] = []

    def sleep(seconds: float) -> None:
        if not alone.acquire(blocking=False):
            at_once.append(seconds)
            return
        time.sleep(0.05)  # the others try meanwhile
        waits.append(seconds)
        clock.now += seconds
        alone.release()

    pace = Pace(sleep=sleep, clock=clock)
    pace.failed(pace.wait())
    threads = [threading.Thread(target=pace.wait) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert at_once == []
    assert len(waits) == 5
    assert all(seconds >= 0.09 for seconds in waits)


@pytest.fixture
def throttling() -> Iterator[ScriptedStream]:
    with ScriptedStream() as stream:
        stream.shard("s")
        yield stream


def config(stream: ScriptedStream) -> DynamoDBConfig:
    return DynamoDBConfig(name="orders", type="dynamodb", table=TABLE, region="us-east-1", endpoint_url=stream.url)


def test_a_listing_that_is_throttled_is_repeated_by_its_pace_alone(throttling: ScriptedStream) -> None:
    """botocore repeated it as well, up to 24 times in all."""
    source = DynamoDBSource(config(throttling))
    source.connect()
    left = iter(range(2))

    def throttle(operation: str) -> None:
        if operation == "DescribeStream" and next(left, None) is not None:
            raise Refused("ThrottlingException")

    throttling.before = throttle
    throttling.calls.clear()
    assert len(source.shards()) == 1
    assert throttling.calls == ["DescribeStream"] * 3
    source.close()


def test_a_source_connects_although_it_is_throttled_at_first(throttling: ScriptedStream) -> None:
    left = iter(range(2))

    def throttle(operation: str) -> None:
        if operation == "DescribeStream" and next(left, None) is not None:
            raise Refused("ThrottlingException")

    throttling.before = throttle
    source = DynamoDBSource(config(throttling))
    source.connect()
    assert throttling.calls.count("DescribeStream") == 3
    source.close()


def test_sources_of_one_account_and_region_share_a_pace(throttling: ScriptedStream) -> None:
    calls = [TableCalls(config(throttling)) for _ in range(2)]
    one, another = (each.streams for each in calls)
    assert pace_of(one, ARN) is pace_of(another, arn("another-table"))
    assert pace_of(one, ARN) is not pace_of(one, ARN.replace(":000000000000:", ":111111111111:"))
    for each in calls:
        each.close()
