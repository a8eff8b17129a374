"""The open stream of one shard: takes vtgate's answers and applies their events until a page is full."""

import time
from collections.abc import Iterator

from relay.vitess.call import Call
from relay.vitess.client import events_of
from relay.vitess.events import ShardEvents
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.shard_rows import PageMustEnd
from relay.vitess.watch import Watch

READ_AT_ONCE = 16 << 10
"""Bytes of small answers, about."""


class ShardStream:
    """Reads ``call`` into ``events``. ``is_shared``: the call has other shards' events too, which are skipped."""

    def __init__(self, call: Call, events: ShardEvents, watch: Watch, *, is_shared: bool) -> None:
        self.events = events
        self._call = call
        self._watch = watch
        self._is_shared = is_shared
        # Answers that are not read yet and their bytes, answers before them that were read in part, and events that are
        # not applied yet.
        self._answers: list[bytes] = []
        self._size = 0
        self._rest = b""
        self._left: Iterator[pb.VEvent] = iter(())
        # The event that the next page starts with, if it ended this one.
        self._held: pb.VEvent | None = None

    def close(self) -> None:
        self._call.close()

    def read(self) -> None:
        """Apply events until there are enough for a page, or no more have come. Waits once, for a first change.

        Raises `CallEnded` once everything that came before the end is applied, and what ``ShardEvents.apply`` raises.
        """
        events, settings = self.events, self.events.settings
        deadline = time.monotonic() + settings.wait
        while self._apply_parsed():
            if self._answers or self._rest:
                self._read_next()
                continue
            # Changes are not kept waiting; positions without changes are collected.
            wait = 0.0 if events.changes.size else max(0.0, deadline - time.monotonic())
            answers = self._call.take(wait)
            if not answers:
                return
            self._watch.received()
            self._answers = answers  # all before them are read
            self._size = sum(map(len, answers))

    def _apply_parsed(self) -> bool:
        """Apply the events that are parsed. Return whether the page has room for more."""
        events, page_bytes = self.events, self.events.settings.page_bytes
        apply, changes = events.apply, events.changes
        event = self._held
        try:
            if event is not None:
                self._held = None
                apply(event)
            for event in self._left:
                apply(event)
                if events.journal is not None or changes.size >= page_bytes:
                    return False
        except PageMustEnd:
            self._held = event
            return False
        return changes.size < page_bytes

    def _read_next(self) -> None:
        """Read the whole transactions of the next answer, or of several small ones at once; otherwise, parse them."""
        # Concatenated messages are one message with the events of all, which ends after any of them.
        count = max(1, READ_AT_ONCE * len(self._answers) // max(1, self._size))
        answers = b"".join(self._answers[:count])
        del self._answers[:count]
        self._size -= len(answers)
        self.events.bytes_in += len(answers)
        joined = self._rest + answers
        read = 0 if self._is_shared else self.events.read_whole(joined)
        self._rest = joined[read:] if read else b""
        if read:
            return
        events = events_of(joined)
        self._left = filter(self._is_own, events) if self._is_shared else iter(events)

    def _is_own(self, event: pb.VEvent) -> bool:
        shard = self.events.shard
        return not event.shard or (event.shard == shard.name and event.keyspace == shard.keyspace)
