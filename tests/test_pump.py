"""When a shard counts as polled: I10."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from relay.lineage import Shard
from relay.pump import Pump, Reading
from relay.source import Page

PAGE = Page(Shard("s"), [], None, None, None, begun=0.0)


class Reads:
    """A reader that gives what is put into it."""

    def __init__(self, *pages: Page) -> None:
        self.shard = Shard("s")
        self.pages = iter(pages)

    def read(self) -> Page:
        return next(self.pages)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pump(clock: Clock) -> Iterator[Pump]:
    pump = Pump(clock=clock)
    yield pump
    pump.close()


def take(pump: Pump, reading: Reading) -> None:
    while True:
        for read, _ in pump.take(0.0):
            assert read is reading
            pump.again(reading, 0.0)
            return


def test_only_a_read_that_succeeds_makes_a_shard_polled(pump: Pump, clock: Clock) -> None:
    failed, gone = replace(PAGE, failed="throttled"), replace(PAGE, gone=True)
    reading = pump.open(Reads(failed, gone, PAGE, failed), b"")
    for now, polled, error in (
        (101.0, 100.0, "throttled"),
        (102.0, 100.0, "the source does not know it"),
        (103.0, 103.0, None),
        (104.0, 103.0, "throttled"),
    ):
        clock.now = now
        take(pump, reading)
        assert (reading.polled, reading.error) == (polled, error)
