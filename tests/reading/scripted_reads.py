"""Readers of shards whose pages a test gives."""

from __future__ import annotations

import threading

from relay.records import Shard
from relay.source import Page, ReadResult
from tests.waiting import PATIENCE

SHARD = Shard("s")
PAGE = Page(SHARD, [], None, None, None, begun=0.0)
SOURCE = "orders"


class Reads:
    """A reader that gives what is put into it, or raises it, once ``may_end`` is set."""

    def __init__(self, *pages: ReadResult | Exception, streams: bool = False) -> None:
        self.shard = Shard("s")
        self.streams = streams
        self.pages = iter(pages)
        self.may_end = threading.Event()
        self.may_end.set()
        self.begun = threading.Event()
        self.closed = 0

    def read(self) -> ReadResult:
        self.begun.set()
        assert self.may_end.wait(PATIENCE)
        assert not self.closed
        page = next(self.pages)
        if isinstance(page, Exception):
            raise page
        return page

    def close(self) -> None:
        self.closed += 1


class Idle:
    """A reader of a shard without changes."""

    shard, streams = SHARD, False

    def read(self) -> ReadResult:
        return PAGE

    def close(self) -> None:
        """Nothing is open."""
