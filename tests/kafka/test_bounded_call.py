"""A call that never returns is left behind."""

from __future__ import annotations

import threading

import pytest

from relay.kafka.bounded_call import PatientCaller, Stuck


def test_answers_and_errors_come_through() -> None:
    caller = PatientCaller("test")
    assert caller(lambda: 7, 5.0) == 7
    with pytest.raises(ZeroDivisionError):
        caller(lambda: 1 // 0, 5.0)
    assert caller(lambda: None, 5.0) is None
    caller.close()


def test_a_call_that_does_not_return_is_given_up() -> None:
    """I10"""
    done = threading.Event()
    caller = PatientCaller("test")
    with pytest.raises(Stuck, match="no answer from test"):
        caller(lambda: done.wait(60), 0.05)
    done.set()
    caller.close()
