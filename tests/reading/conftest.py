"""A pool of readers, by a clock that passes only on command."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from relay.reading.reader_pool import ReaderPool
from tests.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def pump(clock: Clock) -> Iterator[ReaderPool]:
    pump = ReaderPool(clock=clock)
    yield pump
    pump.close()
