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
from concurrent.futures import Future
from typing import Any, TypeVar

from relay.errors import Unavailable
from relay.process.slow_call import fill

T = TypeVar("T")


_SLICE = 0.5  # seconds
_MOST_KEPT = 32

# The clients that are kept. A thread that gives one up appends it; the interpreter's lock guards the list.
_kept: list[str] = []


def keep_for_ever(client: object) -> None:
    """Never free ``client``, which a call may still use. Raises ``Unavailable`` once too many clients are kept."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
    _kept.append(repr(client))
    if len(_kept) > _MOST_KEPT:
        raise Unavailable(f"{len(_kept)} Kafka clients got no answer and cannot be freed: restart this process")


class CallTimedOut(Exception):
    """A call did not return in time. It may return later; its answer is dropped."""


class BoundedCaller:
    """Runs calls in a separate thread, one after another."""

    def __init__(self, name: str) -> None:
        # The next call, and where its answer goes; None ends the thread.
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        # A daemon thread, so that a hanging call does not keep the process alive.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __call__(self, call: Callable[[], T], timeout: float, check: Callable[[], object] = lambda: None) -> T:
        """Return the result of ``call``. Raises ``CallTimedOut`` after ``timeout`` seconds, or as ``check`` does."""
        answer: Future[T] = Future()
        self._calls.put((answer, call))
        deadline = time.monotonic() + timeout
        while True:
            try:
                answer.exception(max(0.0, min(_SLICE, deadline - time.monotonic())))
                break
            except TimeoutError:
                check()
                if time.monotonic() >= deadline:
                    raise CallTimedOut(f"{self._thread.name} did not answer within {timeout:.0f} s") from None
        try:
            return answer.result()
        finally:
            del answer  # only the collector would free the client: a traceback refers to it by this frame

    def close(self) -> None:
        """End the thread, as soon as its call has returned."""
        self._calls.put(None)

    def _run(self) -> None:
        while (wanted := self._calls.get()) is not None:
            fill(*wanted)
            del wanted  # it refers to the client, which would live until the next call
