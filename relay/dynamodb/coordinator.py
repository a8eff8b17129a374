"""All shards of a stream: which may be read, and what of them was read, handed out and finished.

Rules: seed 001, "Coordinator"; seed 002, "Stream Ordering Guarantees". A shard goes its way from *waiting* for its
parent over *active* (read), *closed* (fetched to its end, not all handed out) and *drained* (all handed out, its
children not begun) to *ended*. Children begin only when their parent is drained, not when it is fetched (I2).
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from relay.dynamodb.buffer import RecordBuffer
from relay.dynamodb.session import Listing, ShardNotFound, StreamNotFound, StreamSession, retried
from relay.dynamodb.shard import CALLS_TO_REACH_HEAD, OnGap, StreamShard
from relay.dynamodb.shard_graph import ShardGraph, parent_of
from relay.dynamodb.stream_record import Record
from relay.errors import RelayError
from relay.stream_token import LATEST, TRIM_HORIZON, InvalidStream, Position, StreamToken

log = logging.getLogger(__name__)

DISCOVER_EVERY = 300.0
"""Seconds between complete listings while reading: for shards that no lookup of children finds."""

_LONGEST_WAIT = 60.0


@dataclass
class _Drained:
    """How often a drained shard's children were asked for, and when they are again, in seconds by the clock."""

    asked: int = 0
    next_ask: float = 0.0
    # The stream was disabled: there will be none.
    final: bool = False


class Coordinator:
    """The shards of one stream. Begins empty; a ``start_*`` method takes a listing and comes first."""

    def __init__(
        self,
        session: StreamSession,
        *,
        on_gap: OnGap | None = None,
        calls_to_reach_head: int = CALLS_TO_REACH_HEAD,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.session = session
        self.on_gap = on_gap
        self.calls_to_reach_head = calls_to_reach_head
        self.clock = clock
        self.sleep = sleep
        self.graph = ShardGraph(self._new_shard, clock)
        self.active: list[StreamShard] = []
        # Exhausted shards, and how many of their records are in the buffer.
        self.closed: dict[StreamShard, int] = {}
        self.drained: dict[StreamShard, _Drained] = {}
        self.buffer = RecordBuffer()
        # Shards the stream denied although it lists them; a second time is final.
        self._denied: set[StreamShard] = set()
        self._listed_at = clock()

    def __repr__(self) -> str:
        return f"<Coordinator[{len(self.active)} active of {len(self.graph.shards)}, {self.session.stream_arn}]>"

    @property
    def token(self) -> StreamToken:
        """Where the reader stands. Records that were fetched and not handed out are not covered (I4)."""
        reading = self._begun()
        return StreamToken(self.session.stream_arn, tuple(shard.id for shard in reading), self.graph.token(reading))

    # ------------------------------------------------------------------ where to begin

    def start_at_horizon(self) -> None:
        """Begin with the oldest record there is."""
        self.graph.adopt(self._list().shards)
        self._begin_ready()
        self._open(self.active)

    def start_at_latest(self) -> None:
        """Begin at the head of every leaf. What begins later is read from its horizon: nothing is skipped (X12)."""
        self.graph.adopt(self._list().shards)
        for shard in self.graph.shards.values():
            if shard.children:
                self.graph.end(shard.id)
            else:
                shard.move_to(LATEST)
                self.active.append(shard)
        self._open(self.active)

    def start_at_time(self, position: datetime) -> None:
        """Begin with the first record of each lineage created at ``position`` or later; reads all before it."""
        if position.timestamp() > self.clock():
            self.start_at_latest()
            return
        self.graph.adopt(self._list().shards)
        waiting = list(self.graph.roots)
        while waiting:
            shard = waiting.pop(0)
            records: list[Record] = []
            with suppress(ShardNotFound):  # the next round deals with it
                records = shard.seek_to(position)
            if shard.exhausted and not records and shard.children:
                self.graph.end(shard.id)
                waiting.extend(shard.children)
            else:
                self.active.append(shard)
                self.buffer.push_all(records, shard)
        self._settle()

    def start_at_token(self, token: StreamToken) -> None:
        """Begin where ``token`` was taken, without the shards that expired and with those that are new.

        Shards the stream no longer lists are gaps if they were not read to their end; their children begin at
        their horizons. ``InvalidStream`` when the stream lists none of the token's.
        """
        listing = self._list()
        named = {shard.shard_id: shard for shard in token.shards}
        parents = {shard.id: parent_of(shard) for shard in listing.shards}
        standing = token.standing(parents)
        active, ahead, finished = standing.active, standing.ahead, standing.finished

        expired = [shard for shard in dict.fromkeys((*named, *active)) if shard not in parents]
        if any(shard not in finished for shard in expired):
            # One listing may be incomplete: a loss needs two that agree.
            listing = Listing((*listing.shards, *self._list().shards), listing.status)
            parents = {shard.id: parent_of(shard) for shard in listing.shards}
            expired = [shard for shard in expired if shard not in parents]
        for shard in expired:
            log.info("Unknown or expired shard %s: pruning it from the stream's token", shard)
        if expired and not (parents.keys() & {*named, *active}):
            raise InvalidStream(f"the stream {self.session.stream_arn} has no shard of the token: {', '.join(expired)}")

        self.graph.adopt(listing.shards)
        self.graph.end(*finished, *expired)
        for name in dict.fromkeys((*active, *ahead, *expired)):
            entry = named.get(name)
            position = entry.position if entry is not None else None
            if name not in parents:
                if name not in finished:
                    self._new_shard(name, position).tell_gone()  # I9
            elif name in ahead:
                self.graph.shards[name].position = position if position is not None and position.exact else None
            else:
                self.graph.shards[name].move_to(position or TRIM_HORIZON)
                self.active.append(self.graph.shards[name])
        self._begin_ready()
        self._open(self.active)

    # ------------------------------------------------------------------ reading

    def pop(self) -> tuple[Record, StreamShard]:
        """Hand the first record out. IndexError if the buffer is empty."""
        record, shard = self.buffer.pop()
        shard.delivered(record)
        if shard in self.closed:
            self.closed[shard] -= 1
            if not self.closed[shard]:
                del self.closed[shard]
                self.drained[shard] = _Drained()
        return record, shard

    def advance(self) -> bool:
        """Read the next page of every active shard, unless records wait in the buffer.

        True if children began, or a shard has to be asked again: another round may find more. An error of one
        shard keeps no other from being read; the first one is raised at the end of the round.
        """
        if self.buffer:
            return False
        errors: list[RelayError] = []
        progress = self._begin_children(errors)
        progress |= self._poll(list(self.active), StreamShard.get_records, errors)
        progress |= self._begin_children(errors)
        progress |= self._discover(errors)
        if errors:
            raise errors[0]
        return progress

    def heartbeat(self) -> None:
        """Fetch a page of every active shard whose position has no sequence number, to keep its iterator alive."""
        errors: list[RelayError] = []
        inexact = [shard for shard in self.active if shard.position is None or not shard.position.exact]
        self._poll(inexact, StreamShard.next_page, errors)
        if errors:
            raise errors[0]

    def _poll(
        self,
        shards: Iterable[StreamShard],
        read: Callable[[StreamShard], list[Record]],
        errors: list[RelayError],
    ) -> bool:
        again = False
        for shard in shards:
            try:
                self.buffer.push_all(read(shard), shard)
            except ShardNotFound:
                again |= self._attempt(partial(self._lost, shard), errors)
            except RelayError as error:
                errors.append(error)
        self._settle()
        return again

    def _settle(self) -> None:
        """Sort out the active shards that are exhausted."""
        unread = self.buffer.unread() if any(shard.exhausted for shard in self.active) else Counter()
        for shard in [shard for shard in self.active if shard.exhausted]:
            self.active.remove(shard)
            if unread[shard]:
                self.closed[shard] = unread[shard]
            else:
                self.drained[shard] = _Drained()

    def _begin_children(self, errors: list[RelayError]) -> bool:
        progress = False
        for shard in list(self.drained):
            progress |= self._attempt(partial(self._end, shard), errors)
        return progress

    def _end(self, shard: StreamShard) -> bool:
        """Let the children of a drained shard begin, looking for them where none is known and it is time to."""
        state = self.drained[shard]
        if not shard.children:
            if state.final or self.clock() < state.next_ask:
                return False
            found = self._described(
                # The first answer also has grandchildren; then only a child matters, however long it takes (X9).
                lambda: (
                    self.session.describe_children(shard.id)
                    if state.asked
                    else self.session.describe(first_shard=shard.id)
                )
            )
            self.graph.adopt(found.shards)
            if not shard.children:
                state.final = found.disabled  # X11
                state.asked += 1
                wait = min(_LONGEST_WAIT, 2.0 ** (state.asked - 1))
                state.next_ask = self.clock() + random.uniform(wait / 2, wait)
                return self._begin_ready(complete=False)
        del self.drained[shard]
        self.graph.end(shard.id)
        return self._begin_ready(complete=False)

    def _lost(self, shard: StreamShard) -> bool:
        """The stream says that it has no such shard: final, unless it still lists it and said so only once (X8)."""
        listing = self._list()
        if shard not in self._denied and any(listed.id == shard.id for listed in listing.shards):
            self._denied.add(shard)
            return True
        shard.tell_gone()  # I9
        # Nothing of it is in the buffer: only shards without unread records are polled.
        self.active.remove(shard)
        self.graph.end(shard.id)
        self.graph.adopt(listing.shards)
        return self._begin_ready()

    def _discover(self, errors: list[RelayError]) -> bool:
        if self.clock() - self._listed_at < DISCOVER_EVERY:
            return False

        def discover() -> bool:
            listing = self._list()
            self.graph.adopt(listing.shards)
            self.graph.prune(listing.shards)
            return self._begin_ready()

        return self._attempt(discover, errors)

    def _attempt(self, action: Callable[[], bool], errors: list[RelayError]) -> bool:
        try:
            return action()
        except RelayError as error:
            errors.append(error)
            return False

    # ------------------------------------------------------------------ the lineage

    def _described(self, call: Callable[[], Listing]) -> Listing:
        arn = self.session.stream_arn
        try:
            return retried(call, f"the shards of {arn}", sleep=self.sleep)
        except StreamNotFound as error:
            raise InvalidStream(f"there is no stream {arn} (any more): {error}") from error

    def _list(self) -> Listing:
        """Return one complete listing; two in one where the first lacks somebody's parent."""
        listing = self._described(self.session.describe)
        names = {shard.id for shard in listing.shards}
        if any(parent not in names for shard in listing.shards for parent in shard.parents):
            # Trimmed, as a rule; but a child that is read before a parent that was left out is never put right (I2).
            listing = Listing((*listing.shards, *self._described(self.session.describe).shards), listing.status)
        self._listed_at = self.clock()
        return listing

    def _begin_ready(self, *, complete: bool = True) -> bool:
        """Begin the shards that are ready for it, each once (X2); True if there are any."""
        ready = self.graph.ready(self._begun(), complete=complete)
        for shard in ready:
            since = shard.parent.since if shard.parent is not None else None
            # Its horizon also where the stream began at `latest` (X12); a token may know better (X1).
            shard.move_to(shard.position or TRIM_HORIZON)
            shard.since = since
            self.active.append(shard)
        self._open(ready)
        return bool(ready)

    def _begun(self) -> dict[StreamShard, None]:
        return dict.fromkeys((*self.active, *self.closed, *self.drained))

    def _open(self, shards: Iterable[StreamShard]) -> None:
        for shard in shards:
            with suppress(ShardNotFound):  # the next round deals with it
                shard.open()

    def _new_shard(self, shard: str, position: Position | None = None) -> StreamShard:
        return StreamShard(
            self.session,
            shard,
            position=position,
            on_gap=self.on_gap,
            calls_to_reach_head=self.calls_to_reach_head,
            clock=self.clock,
            sleep=self.sleep,
        )
