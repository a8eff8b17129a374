"""Liveness and readiness of a worker. Liveness means progress of every shard, not a running process (I10).

`Liveness` lives as long as the process, so no recovery resets it.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from relay.config.hidden import redacted
from relay.kafka.checkpoints import partition_of
from relay.observe.status import SourceView, WorkerStatus
from relay.records import StreamId

STALLED_AFTER = 60.0  # seconds without a turn of the main loop, or since a poll was due; the longest backoff is 5 s
_LISTING_INTERVAL = 60.0  # seconds between two listings of shards when nothing happens
_LONGEST_READ = 240.0  # seconds after which a read fails by itself: its calls give up after a minute each
_CHECKPOINT_EVERY = 10.0  # seconds between two checkpoints of an idle shard
_IDLE_READS = 250  # reads per second that the idle shards of a worker share
_MOOT_AFTER = 30.0  # seconds after which a failed commit no longer counts if nothing waits
_LOOK_EVERY = 5.0  # seconds; a look takes some milliseconds with 10,000 shards


@dataclass(frozen=True, slots=True)
class Uncommitted:
    """What waits for a commit. Times are monotonic seconds."""

    since: float
    failures: int = 0  # failed attempts since then
    failed_at: float = -math.inf  # the last of them
    why: str = ""  # its reason

    def __str__(self) -> str:
        if not self.failures:
            return "no attempt has ended yet"
        attempts = f"{self.failures} attempts failed" if self.failures > 1 else "1 attempt failed"
        return f"{attempts}; the last was {self.why}"


@dataclass(frozen=True, slots=True)
class Advance:
    """When this process first saw the newest checkpoint of a shard, made at ``updated_at``; None without one."""

    updated_at: float | None
    seen_at: float


class Liveness:
    """What has advanced. The worker's thread calls the methods; any thread reads the attributes."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.started = clock()  # when this process began
        self.turned: float | None = None  # when the main loop last began a turn
        self.uncommitted: Uncommitted | None = None  # None if nothing waits for a commit
        self.advances: Mapping[StreamId, Mapping[str, Advance]] = {}  # unfinished readable shards of all workers
        self.differs_since: float | None = None  # since when another worker has had other sources
        self.outside_since: float | None = None  # since when this worker is not in the group
        self._look_at = -math.inf

    @property
    def failures(self) -> int:
        """The number of failed commits since the last successful one."""
        return self.uncommitted.failures if self.uncommitted is not None else 0

    def turn(self, *, waits: bool) -> None:
        """Record that the main loop begins a turn, and whether anything waits for a commit."""
        known, self.turned = self.uncommitted, (now := self.clock())
        if known is None:
            self.uncommitted = Uncommitted(now) if waits else None
        elif not waits and now - known.failed_at > _MOOT_AFTER:
            self.uncommitted = None  # Kafka had committed it after all, or another worker commits it

    def committed(self) -> None:
        self.uncommitted = None

    def failed(self, why: str) -> None:
        """Count a transaction that was probably not committed, with the reason ``why``."""
        now = self.clock()
        since = self.uncommitted.since if self.uncommitted is not None else now
        self.uncommitted = Uncommitted(since, self.failures + 1, now, why)

    def look(self, status: WorkerStatus) -> None:
        now = self.clock()
        if not status.differences:
            self.differs_since = None
        elif self.differs_since is None:
            self.differs_since = now
        if status.joined or status.gained:
            self.outside_since = None
        elif self.outside_since is None:
            self.outside_since = now
        if now >= self._look_at:
            self._look_at = now + _LOOK_EVERY
            self.advances = {source.stream: self._advances(source, now) for source in status.sources if source.plan}

    def _advances(self, source: SourceView, now: float) -> dict[str, Advance]:
        before, found = self.advances.get(source.stream, {}), {}
        for shard in source.unfinished():
            if source.waits_for(shard):
                continue
            checkpoint = source.checkpoints.get(shard)
            updated_at = checkpoint.updated_at if checkpoint is not None else None
            known = before.get(shard)
            found[shard] = known if known is not None and known.updated_at == updated_at else Advance(updated_at, now)
        return found


@dataclass(frozen=True, slots=True)
class Stall:
    """A shard, a source, or the worker itself (both None) that has made no progress for ``seconds``."""

    what: str
    seconds: float
    source: str | None = None
    stream: str | None = None
    shard: str | None = None
    error: str | None = None
    hangs: bool = False  # it neither advances nor fails, so a restart may help


def find_stalls(
    status: WorkerStatus | None,
    turned: float | None,
    now: float,
    wall: float,
    *,
    limit: float = STALLED_AFTER,
    liveness: Liveness | None = None,
) -> list[Stall]:
    """Return everything without progress for ``limit`` seconds, and everything that waits for a person.

    ``turned``: when the main loop last turned, in monotonic seconds like ``now``, or None. ``wall``: since the epoch.
    """
    found: list[Stall] = []
    liveness = liveness or Liveness()
    if turned is not None and now - turned > limit:
        found.append(Stall("the worker's main loop hangs; Kafka may not be answering", now - turned, hangs=True))
    if status is None:
        return found
    for name, since, why in status.absent:  # I12
        found.append(Stall("the source is not read", now - since, name, error=redacted(why)))
    uncommitted = liveness.uncommitted
    if uncommitted is not None:
        found += _commit_stall(status, uncommitted, now, limit)
    has_none_committed = any(stall.source is None for stall in found)
    if liveness.differs_since is not None and now - liveness.differs_since > limit:
        more = f"; and {len(status.differences) - 3} more" if len(status.differences) > 3 else ""
        what = f"{'; '.join(status.differences[:3])}{more}. Give every worker the same config"
        found.append(Stall(what, now - liveness.differs_since))
    # An open transaction holds up readers until it times out.
    late = limit + status.barrier_timeout
    unread = {p: now - at for p, at in status.checkpoints_read_at.items() if now - at > late}
    if unread:
        # The end of a parent in such a partition would go unseen, and its children would never be read.
        partitions = ", ".join(map(str, sorted(unread)))
        what = f"topic {status.checkpoints} was not read to its end in partitions {partitions}; see the brokers"
        found.append(Stall(what, max(unread.values()), hangs=True))
    outside = now - liveness.outside_since if liveness.outside_since is not None else 0.0
    for source in status.sources:
        polls = list(_source_stalls(source, now, wall, limit, status.read_delay))
        named = {stall.shard for stall in polls}
        found += polls
        # A worker without partitions waits for one that plans, and so long for that one to say why it cannot.
        if source.plan is None and None not in named and outside > late + _LISTING_INTERVAL:  # I10: no shard is known
            what = f"the source is not planned, and this worker has not joined group {status.group}; see the brokers"
            found.append(Stall(what, outside, source.stream.source, source.stream.label))
        for stall in _unadvanced(source, status, liveness, now, limit):
            is_told = stall.shard in named or (has_none_committed and stall.shard in source.open)
            found += [] if is_told else [stall]
    return found


def _commit_stall(status: WorkerStatus, uncommitted: Uncommitted, now: float, limit: float) -> Iterator[Stall]:
    is_fencing, seconds = bool(status.gained), now - uncommitted.since
    # The previous owner's transaction may hold up the fence until it times out; a restart would not shorten that.
    if seconds <= limit + (status.barrier_timeout if is_fencing else 0.0):
        return
    if is_fencing and not uncommitted.failures:
        yield Stall("assigned partitions do not pass the fence; see the log", seconds)
    else:
        why = redacted(str(uncommitted))
        yield Stall("no transaction has been committed", seconds, error=why, hangs=not is_fencing)


def _unadvanced(
    source: SourceView, status: WorkerStatus, liveness: Liveness, now: float, limit: float
) -> Iterator[Stall]:
    """Yield the shards for which no worker commits a checkpoint, whoever owns them (I10)."""
    advances = liveness.advances.get(source.stream, {})
    # Its owner may have been killed. With many shards, each is read rarely.
    late = limit + status.barrier_timeout + max(_CHECKPOINT_EVERY, len(advances) / _IDLE_READS)
    for shard, advance in advances.items():
        if now - advance.seen_at <= late:
            continue
        partition = source.partition(shard)
        if (seconds := status.checkpoints_read_at.get(partition, now) - advance.seen_at) > late:
            owner = "this worker owns it" if partition in status.owned | status.gained else "another worker owns it"
            what = f"no checkpoint of the shard is committed; {owner}, see `relay status` and its log"
            yield Stall(what, seconds, source.stream.source, source.stream.label, shard)


def _source_stalls(source: SourceView, now: float, wall: float, limit: float, delay: float) -> Iterator[Stall]:
    name = source.stream.source
    for shard, since, why in source.set_aside:  # I12: at once, because only a person can help
        what = "the shard waits for a person" if shard is not None else "the stream waits for a person"
        yield Stall(what, now - since, name, source.stream.label, shard, redacted(why))
    refused = {shard for shard, _, _ in source.set_aside}
    for gap in source.pending_gaps:  # I12: whichever worker has found it
        if gap["shard"] not in refused:
            what = f"gap {gap['id']} waits for a person"
            yield Stall(what, max(0.0, wall - gap["found_at"]), name, gap["stream"], gap["shard"], gap["reason"])
    for table, why in source.left_out.items():
        if source.plan is not None and table in source.plan.keys:  # I12: the table was relayed before
            yield Stall(f"table {table} is not relayed", 0.0, name, source.stream.label, error=f"The table {why}")
    # A shard that waits for its parents is not open, so it does not stall.
    for stream, shard, poll in source.polls():
        # Many shards share the reads of a worker, so the next read may be due late.
        if now - poll.polled > limit + poll.wait + delay:
            error = redacted(poll.error) if poll.error else None
            what = "no successful poll of the shard"
            hangs = poll.reading_since is not None and now - poll.reading_since > limit + _LONGEST_READ
            yield Stall(what, now - poll.polled, name, stream.label, shard, error, hangs)
    # I10: no part of it is read, so no poll can be late.
    if source.held_up_since is not None and (held_up := wall - source.held_up_since) > _LISTING_INTERVAL + limit:
        yield Stall("the source cannot be planned, or connected to its stream", held_up, name, source.stream.label)
    if source.plan is not None:
        # Without a listing, no shard is opened, and children of ended shards are never found.
        age = wall - (source.listing.at or source.listing.wanted_at)
        # The age counts from the beginning of the last listing to the end of the next.
        if age > _LISTING_INTERVAL + limit + 2 * source.listing.took:
            yield Stall("the shards of the source cannot be listed", age, name, source.stream.label)


def not_ready_reasons(status: WorkerStatus | None) -> list[str]:
    """Return why this worker is not ready: group, fence or the plans that it makes. Empty if it is ready."""
    if status is None:
        return ["starting: connecting to the sources and to Kafka"]
    found = []
    if status.gained:
        found.append(f"group {status.group}: {len(status.gained)} partitions have not passed the fence yet")
    elif not status.joined:
        found.append(f"group {status.group}: not joined yet, or no partitions assigned")
    # A worker whose config does not have the source yet may own its plan, and a rolling update waits for this one.
    mine = [s for s in status.sources if partition_of(s.stream.plan_key) in status.owned]
    found += [f"source {s.stream.source}: not planned yet" for s in mine if s.plan is None]
    return found
