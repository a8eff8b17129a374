"""Calls that may take long, each in its own thread: the worker's thread serves the group, which expels late members."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

_AT_ONCE = 16  # calls


def fill(future: Future[T], call: Callable[[], T]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # raised again by `Future.result`
        future.set_exception(error)
        del future, call  # the error refers to this frame: both would wait for the garbage collector


class SlowCall(Future[T]):
    """A call that starts at once in a thread, which only fills in this future. ``name``: the thread's name."""

    def __init__(self, name: str, call: Callable[[], T]) -> None:
        super().__init__()
        # A daemon, so that a call that hangs does not keep the process alive.
        threading.Thread(target=fill, args=(self, call), name=name, daemon=True).start()


def call_all(name: str, calls: Sequence[Callable[[], T]]) -> list[T]:
    """Make ``calls``, several at once, and return their results in order. Raises the error of the first to fail."""
    results: list[Future[T]] = [Future() for _ in calls]
    left = deque(zip(results, calls, strict=True))

    def work() -> None:
        with suppress(IndexError):  # none is left
            while True:
                fill(*left.popleft())

    for _ in calls[:_AT_ONCE]:
        threading.Thread(target=work, name=name, daemon=True).start()
    for ended in wait(results, return_when=FIRST_EXCEPTION).done:
        ended.result()
    return [result.result() for result in results]
