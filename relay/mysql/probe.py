"""Asks servers in separate threads, so that a shard is read on while one of them does not answer (I10)."""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from relay.config.value_types import iso_time
from relay.errors import Unavailable
from relay.process.slow_call import SlowCall

T = TypeVar("T")

_LONGEST = 10.0  # seconds


@dataclass(eq=False, repr=False)
class BackgroundProbe(Generic[T]):
    """Asks one question at a time, for one thread, which waits for it only in ``wait``.

    ``every``: seconds to the next question, doubled by a failure up to 10 s. ``discard``: closes an answer not taken.
    """

    name: str
    ask: Callable[..., T]
    _: KW_ONLY
    every: float
    discard: Callable[[T], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._pause = self.every
        self._due = -math.inf
        self._answer: SlowCall[T] | None = None
        # Why the last question got no answer, and since when none did, in seconds.
        self._failure: str | None = None
        self._failing_since: float | None = None
        self._asked = 0.0

    @property
    def is_asking(self) -> bool:
        """Whether a question is under way, or its answer was not taken yet."""
        return self._answer is not None

    @property
    def trouble(self) -> str | None:
        """Why the last question got no answer, and since when none did; None if it got one."""
        if self._failing_since is None:
            return None
        return f"{self._failure} (since {iso_time(self._failing_since)})"

    def start(self, *arguments: Any) -> None:
        """Ask, unless a question is under way or it is too early for the next."""
        if self._answer is None and self.clock() >= self._due:
            self._asked = time.time()
            self._answer = SlowCall(self.name, partial(self.ask, *arguments))

    def take(self) -> T | None:
        """Return the answer, once; None while there is none. Raises the errors of ``ask``, except ``Unavailable``."""
        return self.wait() if self._answer is not None and self._answer.done() else None

    def wait(self) -> T | None:
        answer, self._answer = self._answer, None
        if answer is None:
            return None
        try:
            result = answer.result()
        except Unavailable as error:
            self._failure = str(error)
            if self._failing_since is None:
                self._failing_since = self._asked
            self._due = self.clock() + self._pause
            self._pause = min(2 * self._pause, max(_LONGEST, self.every))
            return None
        self.forget()
        self._due = self.clock() + self.every
        return result

    def forget(self) -> None:
        self._failure = self._failing_since = None
        self._pause = self.every

    def close(self) -> None:
        """Stop waiting for the answer. The next question may be asked at once."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.add_done_callback(self._drop)
        self.forget()
        self._due = -math.inf

    def _drop(self, answer: Future[T]) -> None:
        if answer.exception() is None:
            self.discard(answer.result())
