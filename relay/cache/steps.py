"""The steps that a read through the cache yields, which threads take in one way and coroutines in another."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from relay.cache.entry import Tokens


@dataclass(slots=True)
class StoreCall:
    """A step of a read: call the store."""

    call: Callable[[], Any]


@dataclass(slots=True)
class LoadCall:
    """A step of a read: load these keys, and send what ``LoadMany`` returns."""

    wanted: Mapping[str, Tokens | None]


@dataclass(slots=True)
class Pause:
    """A step of a read: wait for ``seconds``."""

    seconds: float


Step = StoreCall | LoadCall | Pause
_T = TypeVar("_T")
Steps = Generator[Step, Any, _T]
"""Yields what to do next, is sent the result of it, or thrown its error, and returns a result."""
