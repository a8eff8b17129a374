"""What functions read that are cached."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


class Rows:
    """What a function reads, and how often it did."""

    def __init__(self, **rows: Any) -> None:
        self.rows = rows
        self.reads = 0

    def read(self, name: str) -> Any:
        self.reads += 1
        return self.rows.get(name)


def asynchronous(read: Callable[[str], Any]) -> Callable[[str], Awaitable[Any]]:
    async def function(name: str) -> Any:
        await asyncio.sleep(0)
        return read(name)

    return function
