"""Runs a function one outside call at a time, so that a test decides what happens between any two calls.

Each step runs the function again from its start: earlier calls return what they returned then, one new call is made,
and the next one ends the run. So the code under test is plain code in one thread, and abandoning it at any call is a
crash. Apart from the calls made through ``Steps`` it has to be deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from relay.cache.store import ConditionalWrite, Store, StoredEntry
from relay.errors import StoreFull, Unavailable

T = TypeVar("T")


class _Pause(BaseException):
    """Ends a run at the first call that is not made yet."""


@dataclass
class Steps:
    """The calls of one function so far. ``fault``: makes the next call fail "before" or "after" it is made."""

    fault: str | None = None
    _seen: list[tuple[Any, Exception | None]] = field(default_factory=list)
    _next: int = 0
    _made: bool = False
    _between: Callable[[], None] | None = None

    def run(self, body: Callable[[], T], between: Callable[[], None] | None = None) -> tuple[bool, T | None]:
        """Advance by one call, or by all that remain, with ``between`` between any two of them.

        Return whether the function has ended, and what it returned.
        """
        self._next, self._made, self._between = 0, False, between
        try:
            return True, body()
        except _Pause:
            return False, None

    def call(self, make: Callable[[], T], *, steps: bool = True) -> T:
        """Make a call, or return its earlier result. ``steps`` False: the call is not a step of its own."""
        if self._next == len(self._seen):
            if steps and self._made:
                if self._between is None:
                    raise _Pause
                self._between()
            self._made = self._made or steps
            self._seen.append(self._make(make, self.fault if steps else None))
        result, error = self._seen[self._next]
        self._next += 1
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def _make(self, make: Callable[[], T], fault: str | None) -> tuple[T | None, Exception | None]:
        if fault is None:
            try:
                return make(), None
            except StoreFull as full:
                return None, full
        self.fault = None
        if fault == "after":
            make()
        return None, Unavailable(f"no answer; the call was lost {fault} it was made")


class WrappedStore:
    """A store that does what another one does."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    def read(self, keys: Sequence[str], generation_key: str) -> tuple[list[StoredEntry | None], str]:
        return self.inner.read(keys, generation_key)

    def compare_and_set(self, writes: Sequence[ConditionalWrite]) -> dict[str, bytes | None]:
        return self.inner.compare_and_set(writes)

    def generation(self, generation_key: str) -> str:
        return self.inner.generation(generation_key)

    def renew(self, generation_key: str) -> str:
        return self.inner.renew(generation_key)

    def losses(self) -> str:
        return self.inner.losses()


@dataclass
class SteppedStore:
    """A store with one step per call, and two for a read, since a store need not read everything at one instant.

    ``floors``: by key, the result of ``observe`` when the key was last read.
    """

    inner: Store
    steps: Steps
    observe: Callable[[], Mapping[Any, Any]]
    floors: dict[str, Mapping[Any, Any]] = field(default_factory=dict)

    def read(self, keys: Sequence[str], generation_key: str) -> tuple[list[StoredEntry | None], str]:
        found, floors = self.steps.call(lambda: (self._entries(keys, generation_key), self.observe()))
        self.floors.update(dict.fromkeys(keys, floors))
        return found, self.generation(generation_key)

    def compare_and_set(self, writes: Sequence[ConditionalWrite]) -> dict[str, bytes | None]:
        return self.steps.call(lambda: self.inner.compare_and_set(writes))

    def generation(self, generation_key: str) -> str:
        return self.steps.call(lambda: self.inner.generation(generation_key))

    def renew(self, generation_key: str) -> str:
        return self.steps.call(lambda: self.inner.renew(generation_key))

    def losses(self) -> str:
        return self.steps.call(self.inner.losses)

    def _entries(self, keys: Sequence[str], generation_key: str) -> list[StoredEntry | None]:
        return self.inner.read(keys, generation_key)[0]
