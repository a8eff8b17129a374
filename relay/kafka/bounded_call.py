"""Calls with a deadline, for a client library that does not keep its own timeouts.

librdkafka's ``send_offsets_to_transaction`` ignores its timeout while the group's coordinator is away, and may never
return (https://github.com/confluentinc/librdkafka/issues/5456 and 5511, open in 2.14). So it runs in a thread that the
caller can abandon.
"""

import ctypes
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from relay.errors import Unavailable

T = TypeVar("T")


_SLICE = 0.5  # seconds
_MOST_KEPT = 32

# The clients that are kept. Each thread that gives one up appends it, under the lock of the interpreter.
_kept: list[str] = []


def keep_for_ever(client: object) -> None:
    """Never free ``client``, not even when the process ends: one of its calls may be under way.

    Raises ``Unavailable`` once there are too many, so that a supervisor starts the process again.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
    _kept.append(repr(client))
    if len(_kept) > _MOST_KEPT:
        raise Unavailable(
            f"{len(_kept)} clients of Kafka got no answer, and are kept with their threads: restart this process"
        )


class CallTimedOut(Exception):
    """A call has not returned in time. It may still do so; its answer is dropped."""


class BoundedCaller:
    """Runs calls in a thread of its own, one at a time. Do not use it again after a wait without an answer."""

    def __init__(self, name: str) -> None:
        # Both threads use these two queues and share nothing else. The caller writes calls, None to end the thread.
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        # The thread writes one answer per call: its result, or the exception it raised. A `Queue`, because in Python
        # 3.11 and 3.12 a `SimpleQueue.get` with a timeout waits for ever if a signal handler outlasts the timeout.
        self._answers: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue()
        # A daemon, so that a hanging call does not keep the process alive.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __call__(self, call: Callable[[], T], timeout: float, check: Callable[[], object] = lambda: None) -> T:
        """Return or raise what ``call`` does; raise ``CallTimedOut`` after ``timeout`` seconds.

        ``check``: is called while it waits; ends the wait with what it raises.
        """
        self._calls.put(call)
        deadline = time.monotonic() + timeout
        while True:
            try:
                answer, error = self._answers.get(timeout=max(0.0, min(_SLICE, deadline - time.monotonic())))
                break
            except queue.Empty:
                check()
                if time.monotonic() >= deadline:
                    raise CallTimedOut(f"{self._thread.name} did not answer within {timeout:.0f} s") from None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback has this frame, and the frame the client: it would wait for the collector
        result: T = answer
        return result

    def close(self) -> None:
        """End the thread, as soon as its call has returned."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            answer: tuple[Any, BaseException | None]
            try:
                answer = call(), None
            except BaseException as error:  # raised in the calling thread
                answer = None, error
            self._answers.put(answer)
            del call, answer  # they refer to the client, which would live until the next call
