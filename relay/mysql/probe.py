"""Asks servers in threads of their own, so that a shard is read on while one of them does not answer (I10)."""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, TypeVar

from relay.config.fields import iso_time
from relay.errors import Unavailable
from relay.process.slow_call import SlowCall

T = TypeVar("T")

_LONGEST = 10.0  # seconds


class BackgroundProbe(Generic[T]):
    """Asks one question at a time. Used by one thread, which it never holds up, except in ``wait``.

    ``ask``: may take as long as servers do not answer. ``every``: seconds from an answer to the next question; after
    failures twice as long each time, up to 10 s. ``discard``: closes an answer that nobody takes.
    """

    def __init__(
        self,
        name: str,
        ask: Callable[..., T],
        *,
        every: float,
        discard: Callable[[T], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._ask = ask
        self._every = every
        self._discard = discard
        self._clock = clock
        self._pause = every
        self._due = -math.inf
        self._answer: SlowCall[T] | None = None
        # Why the last question was not answered, and when the first of a row of such questions was asked, in seconds.
        self._failure: str | None = None
        self._failing_since: float | None = None
        self._asked = 0.0

    @property
    def is_asking(self) -> bool:
        """Whether a question is under way, or its answer was not taken yet."""
        return self._answer is not None

    @property
    def trouble(self) -> str | None:
        """Why the last question was not answered, and since when that is so, or None if it was."""
        if self._failing_since is None:
            return None
        return f"{self._failure} (since {iso_time(self._failing_since)})"

    def start(self, *arguments: Any) -> None:
        """Ask, unless a question is under way or it is too early for the next one."""
        if self._answer is None and self._clock() >= self._due:
            self._asked = time.time()
            self._answer = SlowCall(self.name, partial(self._ask, *arguments))

    def take(self) -> T | None:
        """Return the answer, once, or None while there is none. Raises what ``ask`` raised, except ``Unavailable``."""
        return self.wait() if self._answer is not None and self._answer.done() else None

    def wait(self) -> T | None:
        """Wait until the question under way is answered, and take the answer."""
        answer, self._answer = self._answer, None
        if answer is None:
            return None
        try:
            result = answer.result()
        except Unavailable as error:
            self._failure = str(error)
            if self._failing_since is None:
                self._failing_since = self._asked
            self._due = self._clock() + self._pause
            self._pause = min(2 * self._pause, max(_LONGEST, self._every))
            return None
        self.forget()
        self._due = self._clock() + self._every
        return result

    def forget(self) -> None:
        """Forget the failures."""
        self._failure = self._failing_since = None
        self._pause = self._every

    def close(self) -> None:
        """Let nobody wait for the answer any longer. The next question may be asked at once."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.add_done_callback(self._drop)
        self.forget()
        self._due = -math.inf

    def _drop(self, answer: Future[T]) -> None:
        if answer.exception() is None:
            self._discard(answer.result())
