"""Calls with a deadline."""

from __future__ import annotations

import threading

import pytest

from relay.kafka.bounded_call import BoundedCaller, CallTimedOut


def test_results_and_errors_reach_the_caller() -> None:
    caller = BoundedCaller("test")
    assert caller(lambda: 7, 5.0) == 7
    with pytest.raises(ZeroDivisionError):
        caller(lambda: 1 // 0, 5.0)
    assert caller(lambda: None, 5.0) is None
    caller.close()


def test_a_call_that_does_not_return_times_out() -> None:
    """I10"""
    done = threading.Event()
    caller = BoundedCaller("test")
    with pytest.raises(CallTimedOut, match="test did not answer within"):
        caller(lambda: done.wait(60), 0.05)
    done.set()
    caller.close()
