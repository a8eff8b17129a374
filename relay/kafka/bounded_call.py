"""Calls that must not take for ever, though the client library says they will not.

librdkafka's ``send_offsets_to_transaction`` ignores its timeout while the group's coordinator is away, and may never
return (https://github.com/confluentinc/librdkafka/issues/5456 and 5511, open for 2.14). It is made in a thread that
can be left behind.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Stuck(Exception):
    """A call has not returned in time. It may still do so, and nobody will hear of it."""


class PatientCaller:
    """Makes calls in a thread of its own, one at a time. Of no use once one is stuck."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        # A daemon: a stuck call does not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __call__(self, call: Callable[[], T], timeout: float) -> T:
        """Return what ``call`` returns, or raise what it raises. ``Stuck`` after ``timeout`` seconds."""
        self._calls.put(call)
        try:
            answer, error = self._answers.get(timeout=timeout)
        except queue.Empty:
            raise Stuck(f"no answer from {self._thread.name} within {timeout:.0f} s") from None
        if error is not None:
            raise error
        result: T = answer
        return result

    def close(self) -> None:
        """Let the thread end, once its call has returned."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                answer = call(), None
            except BaseException as error:  # handed to the caller, who raises it
                self._answers.put((None, error))
            else:
                self._answers.put(answer)
