"""Calls in threads of their own."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from relay.errors import Unavailable
from relay.process.slow_call import SlowCall, call_all


def test_results_come_in_order_and_the_first_failure_is_raised_at_once() -> None:
    assert call_all("test", [partial(int, n) for n in range(40)]) == list(range(40))
    assert call_all("test", []) == []
    never = threading.Event()

    def fail() -> bool:
        raise Unavailable("no")

    with pytest.raises(Unavailable, match="no"):
        call_all("test", [never.wait, fail])
    never.set()


def test_a_slow_call_gives_what_it_returned_or_raised() -> None:
    assert SlowCall("test", lambda: 7).result() == 7
    failed = SlowCall("test", lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failed.result()
    assert failed.done()
