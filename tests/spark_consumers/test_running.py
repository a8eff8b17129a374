"""Waits of consumers, which a signal ends."""

from __future__ import annotations

import itertools
import time

from spark_consumers.running import pause


def test_a_wait_ends_once_the_consumer_is_to_stop() -> None:
    """A wait of an hour that nothing ends would hang this test."""
    asked = itertools.count()
    assert pause(3600.0, lambda: next(asked) >= 3)
    assert next(asked) >= 4


def test_a_wait_without_a_stop_takes_its_time() -> None:
    begun = time.monotonic()
    assert not pause(0.05, lambda: False)
    assert time.monotonic() - begun >= 0.05
