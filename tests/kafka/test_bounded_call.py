"""Calls with a deadline."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from relay.kafka.bounded_call import BoundedCaller, CallTimedOut
from tests import interrupted
from tests.waiting import wait_until


def test_results_and_errors_reach_the_caller() -> None:
    caller = BoundedCaller("test")
    assert caller(lambda: 7, 5.0) == 7
    with pytest.raises(ZeroDivisionError):
        caller(lambda: 1 // 0, 5.0)
    assert caller(lambda: None, 5.0) is None
    caller.close()


def test_an_error_keeps_no_client() -> None:
    """I11: a client that was fenced ends at once, and not when garbage is collected."""

    class Client:
        def send(self) -> None:
            raise ValueError("fenced")

    client = Client()
    seen = weakref.ref(client)
    gc.disable()
    try:
        caller = BoundedCaller("test")
        with pytest.raises(ValueError, match="fenced"):
            caller(client.send, 5.0)
        caller.close()
        del client
        wait_until(lambda: seen() is None, 5)
    finally:
        gc.enable()


def test_a_thread_that_waits_for_its_next_call_keeps_no_client() -> None:
    """I11"""

    class Client:
        def itself(self) -> Client:
            return self

    client = Client()
    seen = weakref.ref(client)
    caller = BoundedCaller("test")
    assert caller(client.itself, 5.0) is client
    del client
    wait_until(lambda: seen() is None, 5)
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
