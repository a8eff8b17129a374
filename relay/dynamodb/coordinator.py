"""The shards of a `Stream`: which ones may be read, and which records were read, handed out and finished.

Rules: Bloop, "Internal" (Coordinator) and "Stream Ordering Guarantees". A shard waits for its parent, is
*active* while it is read, *closed* when it was read to its end and some records are not handed out, *drained* when all
are and its children have not started, and then *ended*. Children start when their parent is drained, not when its last
page is fetched (I2).
"""

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial

from relay.dynamodb.cursor import CALLS_TO_REACH_HEAD
from relay.dynamodb.resume_at_token import resume
from relay.dynamodb.stream_calls import Listing, ShardNotFound, StreamSession, TrimmedData
from relay.dynamodb.stream_graph import ShardGraph
from relay.dynamodb.stream_record import Record
from relay.dynamodb.stream_shard import OnGap, StreamShard
from relay.errors import RelayError
from relay.records import Shard
from relay.stream_token import LATEST, TRIM_HORIZON, InvalidStream, Position, StreamToken

DISCOVER_EVERY = 300.0
"""Seconds between complete listings while reading, which find shards that lookups of children miss."""

_LONGEST_WAIT = 60.0
_LONGEST_DENIAL = 60.0  # seconds after which a listed shard that cannot be read counts as lost


class Coordinator:
    """The shards of one stream. Starts empty: call one ``start_*`` method first."""

    def __init__(
        self, session: StreamSession, *, on_gap: OnGap | None = None, calls_to_reach_head: int = CALLS_TO_REACH_HEAD
    ) -> None:
        self.session = session
        self.on_gap = on_gap
        self.calls_to_reach_head = calls_to_reach_head
        self.clock = session.clock
        self.graph = ShardGraph(self.clock)
        # The shards in the graph that were looked at, by id.
        self.shards: dict[str, StreamShard] = {}
        # Those that have started and not ended, in order.
        self.started: dict[str, StreamShard] = {}
        self.buffer = RecordBuffer()
        self._listed_at = self.clock()

    @property
    def active(self) -> list[StreamShard]:
        return [shard for shard in self.started.values() if not shard.exhausted]

    @property
    def token(self) -> StreamToken:
        """The current position in each shard: after the last record handed out, not the last one fetched (I4)."""
        needed = self.graph.needed_by_token(self.started)
        shards = [self._shard(name).token(self.graph.parent(name)) for name in needed]
        return StreamToken(self.session.stream_arn, tuple(self.started), tuple(shards))

    # ------------------------------------------------------------------ where reading starts

    def start_at_horizon(self) -> None:
        self.graph.add(self._list().shards)
        self._start_ready_shards()

    def start_at_latest(self, listed: Sequence[Shard] | None = None) -> None:
        """Start at the head of every leaf. Shards that are created later are read from their horizons."""
        self.graph.add(self._list().shards if listed is None else listed)
        for name in self.graph.shards:
            if self.graph.children(name):
                self.graph.end(name)
            else:
                self._start(name, LATEST)
        self._open(self.active)

    def start_at_time(self, position: datetime) -> None:
        """Start with the first record of each lineage created at ``position`` or later. Reads all earlier records."""
        shards = self._list().shards  # its answer tells the clock of the service
        if position.timestamp() > self.clock():
            self.start_at_latest(shards)
            return
        self.graph.add(shards)
        waiting = self.graph.roots
        for name in waiting:
            shard = self._shard(name)
            records: list[Record] = []
            with suppress(ShardNotFound):  # the next round handles it
                records = shard.seek_to(position)
            children = self.graph.children(name)
            if shard.exhausted and not records and children:
                self.graph.end(name)
                waiting.extend(children)
            else:
                self.started[name] = shard
                self.buffer.push(records, shard)

    def start_at_token(self, token: StreamToken) -> None:
        """Start where `resume` says. Raises ``InvalidStream``. Lost shards are reported as gaps."""
        found = resume(token, self._list().shards, lambda: self._list().shards, self.session.has)
        self.graph.add(found.shards.values())
        self.graph.end(*found.finished, *found.lost)
        for name, position in found.lost.items():
            lost = self._new_shard(name)
            lost.move_to(position)
            lost.report_gone()  # I9
        for name, position in found.positions.items():
            self._shard(name).delivered = position
        for name in found.active:
            self._start(name)
        self._start_ready_shards(resumed=True)
        self._open(self.active)

    # ------------------------------------------------------------------ reading

    def pop(self) -> tuple[Record, StreamShard]:
        record, shard = self.buffer.pop()
        shard.mark_delivered(record)
        return record, shard

    def advance_shards(self) -> bool:
        """Read the next page of every active shard. Call it only while the buffer is empty.

        Returns whether another round may find more, because children started or a shard has to be asked again. An error
        in one shard does not keep the others from being read; the first error is raised at the end of the round.
        """
        errors: list[RelayError] = []
        progress = self._promote_children(errors)
        progress |= self._read_shards(self.active, StreamShard.get_records, errors)
        progress |= self._promote_children(errors)
        with _collecting(errors):
            progress |= self._discover_shards()
        if errors:
            raise errors[0]
        return progress

    def heartbeat(self) -> None:
        """Fetch a page of every active shard whose position has no sequence number, to keep its iterator alive."""
        errors: list[RelayError] = []
        inexact = [shard for shard in self.active if shard.delivered is None or not shard.delivered.exact]
        self._read_shards(inexact, StreamShard.next_page, errors)
        if errors:
            raise errors[0]

    def _read_shards(
        self, shards: Iterable[StreamShard], read: Callable[[StreamShard], list[Record]], errors: list[RelayError]
    ) -> bool:
        again = False
        for shard in shards:
            try:
                with _collecting(errors):
                    self.buffer.push(read(shard), shard)
                    shard.denied_since = None
            except ShardNotFound:
                with _collecting(errors):
                    again |= self._handle_unknown_shard(shard)
        return again

    def _promote_children(self, errors: list[RelayError]) -> bool:
        """Start the children of drained shards; return whether any started."""
        progress = False
        for shard in [shard for shard in self.started.values() if shard.drained]:
            with _collecting(errors):
                progress |= self._promote_children_of(shard)
        return progress

    def _promote_children_of(self, shard: StreamShard) -> bool:
        """Start the children of a drained shard. If none is known, look them up when that is due."""
        if not self.graph.children(shard.id):
            if self.clock() < shard.lookup_at:
                return False
            # The first answer also has grandchildren. If no child is found, later requests name the parent.
            look_up = self.session.describe_children if shard.lookups else self.session.describe
            found = self._describe(partial(look_up, shard.id))
            self.graph.add(found.shards)
            if not self.graph.children(shard.id):
                wait = min(_LONGEST_WAIT, 2.0 ** min(shard.lookups, 10))
                shard.lookups += 1
                shard.lookup_at = math.inf if found.disabled else self.clock() + random.uniform(wait / 2, wait)
                return self._start_ready_shards(complete=False)
        del self.started[shard.id]
        self.graph.end(shard.id)
        return self._start_ready_shards(complete=False)

    def _handle_unknown_shard(self, shard: StreamShard) -> bool:
        """Report a shard that the stream calls unknown, unless it lists the shard and has not called it so for long."""
        since = shard.denied_since
        if since is not None and self.clock() - since < _LONGEST_DENIAL:
            return False  # I1: the next call asks again
        listing = self._list()
        if since is None and any(listed.id == shard.id for listed in listing.shards):
            shard.denied_since = self.clock()
            return True
        shard.report_gone()  # I9
        # The buffer has no records of it: only shards without unread records are read.
        del self.started[shard.id]
        self.graph.end(shard.id)
        self.graph.add(listing.shards)
        return self._start_ready_shards()

    def _discover_shards(self) -> bool:
        if self.clock() - self._listed_at < DISCOVER_EVERY:
            return False
        listing = self._list()
        self.graph.add(listing.shards)
        for name in self.graph.forget_expired(listing.shards):
            self.shards.pop(name, None)
        return self._start_ready_shards()

    # ------------------------------------------------------------------ the lineage

    def _describe(self, call: Callable[[], Listing]) -> Listing:
        try:
            return call()
        except ShardNotFound as error:
            gone = f"stream {self.session.stream_arn} does not exist, or no longer exists"
            raise InvalidStream(f"{gone}: look up the table's LatestStreamArn ({error})") from error

    def _list(self) -> Listing:
        """Return one complete listing; two combined if the first lacks the parent of a shard."""
        listing = self._describe(self.session.describe)
        names = {shard.id for shard in listing.shards}
        if any(parent not in names for shard in listing.shards for parent in shard.parents):
            # As a rule, the parent was trimmed. If it was only omitted, its child must not be read first (I2).
            listing = Listing((*listing.shards, *self._describe(self.session.describe).shards), listing.disabled)
        self._listed_at = self.clock()
        return listing

    def _start_ready_shards(self, *, complete: bool = True, resumed: bool = False) -> bool:
        """Start the shards that may be read, each once; return whether there are any.

        One that is listed only after one of its descendants was started is a gap, unless ``resumed`` by a token's rule.
        """
        names = self.graph.ready(self.started, complete=complete)
        late = [name for name in names if not resumed and self.graph.is_late(name, self.started)]  # I2
        ready = [self._start(name) for name in names if name not in late]
        for shard in ready:
            parent = self.shards.get(self.graph.parent(shard.id) or "")
            shard.since = parent.since if parent is not None else None
        self._open(ready)
        for name in late:
            self._new_shard(name).report_gone()  # I9
            self.graph.end(name)
        return (bool(late) and self._start_ready_shards(complete=complete)) or bool(ready)

    def _start(self, name: str, position: Position | None = None) -> StreamShard:
        shard = self._shard(name)
        # A token may have a position; otherwise the shard starts at its horizon, even in a stream read from latest.
        shard.move_to(position or shard.delivered or TRIM_HORIZON)
        self.started[name] = shard
        return shard

    def _open(self, shards: Iterable[StreamShard]) -> None:
        for shard in shards:
            with suppress(ShardNotFound, TrimmedData):  # the next round handles it
                shard.open()

    def _shard(self, name: str) -> StreamShard:
        if name not in self.shards:
            self.shards[name] = self._new_shard(name)
        return self.shards[name]

    def _new_shard(self, name: str) -> StreamShard:
        return StreamShard(self.session, name, on_gap=self.on_gap, calls_to_reach_head=self.calls_to_reach_head)


@contextmanager
def _collecting(errors: list[RelayError]) -> Iterator[None]:
    try:
        yield
    except RelayError as error:
        errors.append(error)


class RecordBuffer:
    """Records that were read but not handed out: a heap ordered by creation time, sequence number and arrival.

    The records of one shard leave in the order in which they were pushed (I2): creation times are approximate, so one
    that goes back within a shard counts as the one before it.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[datetime, int, int], Record, StreamShard]] = []
        # The last creation time of each shard since the buffer was empty.
        self._latest: dict[StreamShard, datetime] = {}
        self._arrivals = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, records: Iterable[Record], shard: StreamShard) -> None:
        for record in records:
            meta = record["meta"]
            created = self._latest[shard] = max(meta["created_at"], self._latest.get(shard, meta["created_at"]))
            # As an integer: "2" is before "140".
            order = created, int(meta["sequence_number"]), next(self._arrivals)
            heapq.heappush(self._heap, (order, record, shard))
            shard.unread += 1

    def peek(self) -> tuple[Record, StreamShard]:
        """Return the first record and its shard. Raises ``IndexError`` if there is none."""
        return self._heap[0][1:]

    def pop(self) -> tuple[Record, StreamShard]:
        """Remove and return the first record and its shard. Raises ``IndexError`` if there is none."""
        _, record, shard = heapq.heappop(self._heap)
        shard.unread -= 1
        if not self._heap:
            self._latest.clear()
        return record, shard
