"""Remembers what values were decoded to."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_REMEMBERED = 20_000


class Memo(dict[Any, T], Generic[T]):
    """``memo[stored]``: what ``make`` returns for it, made once. Bounded (I11).

    The readers' threads share it without a lock: single operations are atomic, and a value decoded twice is the same.
    Rows share the values too, lists among them, and nobody changes those.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        super().__init__()
        self.make = make

    def __missing__(self, stored: Any) -> T:
        value = self.make(stored)
        if len(self) >= _REMEMBERED:
            self.clear()
        self[stored] = value
        return value
