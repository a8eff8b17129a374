"""The pace of calls that count against one limit of AWS: slower after a failure, faster again after each success.

DescribeStream may be called ten times a second for all streams of an account in a region (AWS, "Quotas").
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from types_boto3_dynamodbstreams import DynamoDBStreamsClient

T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 60.0  # seconds
_SHORTEST_PAUSE = 0.05
_RECOVERY = 0.8


class Pace:
    """Threads may share it; during pauses, only one at a time makes a call. ``clock``: seconds that never go back."""

    def __init__(
        self, *, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sleep = sleep
        self._clock = clock
        # Held by the thread whose turn is next.
        self._turn = threading.Lock()
        # Seconds between two calls, when the next is allowed, and how often the pause has grown; guarded by the lock.
        self._lock = threading.Lock()
        self._pause = 0.0
        self._next_at = 0.0
        self._growths = 0

    def repeat(self, call: Callable[[], T], tries: int, is_passing: Callable[[Exception], bool]) -> T:
        """Make ``call``; retry at this pace after errors for which ``is_passing`` is true. Raises the last error."""
        while True:
            begun = self.wait()
            try:
                result = call()
            except Exception as error:
                if not is_passing(error):
                    raise
                self.failed(begun)
                tries -= 1
                if not tries:
                    raise
            else:
                self.succeeded()
                return result

    def wait(self) -> int:
        """Wait until the next call is allowed, and return the argument for `failed`."""
        with self._turn:
            wait = self._next_at - self._clock()
            if wait > 0:
                self._sleep(wait)
            with self._lock:
                self._next_at = self._clock() + self._jittered()
                return self._growths

    def succeeded(self) -> None:
        with self._lock:
            self._pause *= _RECOVERY if self._pause > _SHORTEST_PAUSE else 0.0  # I10
            self._next_at = min(self._next_at, self._clock() + self._pause)

    def failed(self, begun: int) -> None:
        """Slow down: the call that `wait` returned ``begun`` for failed. Of failures at the same time, one counts."""
        with self._lock:
            if begun == self._growths:  # I10
                self._growths += 1
                self._pause = min(_LONGEST_PAUSE, max(_FIRST_PAUSE, 2 * self._pause))
                self._next_at = self._clock() + self._jittered()

    def _jittered(self) -> float:
        return self._pause * random.uniform(0.5, 1.0)


_PACES: dict[tuple[str, str], Pace] = {}


def pace_of(client: DynamoDBStreamsClient, arn: str) -> Pace:
    """Return this process's pace for the account of ``arn`` in the region of ``client``."""
    return _PACES.setdefault((client.meta.endpoint_url, arn.split(":")[4]), Pace())
