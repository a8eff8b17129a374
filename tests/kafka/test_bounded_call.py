"""Calls with a deadline."""

from __future__ import annotations

import threading

import pytest

from relay.kafka.bounded_call import BoundedCaller, CallTimedOut
from tests import interrupted


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


def test_a_call_times_out_although_a_signal_handler_outlasts_its_deadline() -> None:
    """I10"""
    done = threading.Event()
    caller = BoundedCaller("test")
    with interrupted.by_a_slow_handler() as handled, pytest.raises(CallTimedOut):
        caller(lambda: done.wait(60), 0.1)
    assert handled
    done.set()
    caller.close()
