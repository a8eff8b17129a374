"""Which shards this worker opens and closes, by what is committed and visible (I4), and records about others."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from relay.kafka.checkpoints import partition_of
from relay.reading.reader_pool import OpenShard, ReaderPool
from relay.reading.set_aside import SetAside
from relay.records import Gap, Plan, Shard, ShardCheckpoint, ShardState, Start, StreamId, has_ended, position_text
from relay.source import LastPage, Opening, Page, PageCounts, ReadResult, ShardReader, Source
from relay.stream.progress import read_until
from relay.stream.pruning import unpruned
from relay.stream.shard_checkpoints import ShardCheckpoints

log = logging.getLogger(__name__)


class OpenShards:
    """The open shards of a stream. ``is_awaited``: whether somebody waits until they are read to their heads."""

    def __init__(
        self, source: Source, latest: ShardCheckpoints, readers: ReaderPool, set_aside: SetAside, *, is_awaited: bool
    ) -> None:
        self.source = source
        self._set_aside = set_aside
        # By name, including finished shards whose last checkpoint is not visible yet.
        self.open: dict[str, OpenShard] = {}
        self.latest = latest
        self._readers = readers
        self._is_awaited = is_awaited
        self._committed = latest.committed
        self._lineage = latest.lineage
        self._endings = 0  # the value of `CommittedStream.endings` when ended shards were last closed
        # The state in which every ready shard was opened.
        self._opened_in: tuple[int, int, frozenset[int], frozenset[bytes]] | None = None

    def first_checkpoints(self, owned: set[int]) -> dict[bytes, ShardCheckpoint]:
        """Return checkpoints for listed shards in the partitions ``owned`` that have none yet."""
        if (plan := self._committed.plan) is None:
            return {}
        passed, checkpoints = plan.passed, self._committed.checkpoints
        return {
            key: self.latest.new(shard, ShardState.FINISHED if shard.id in passed else ShardState.PLANNED)
            # Another worker may have pruned some of them since they were listed.
            for shard in unpruned(self._lineage.listed.values(), checkpoints, plan, self.source.clock())
            if shard.id not in checkpoints
            and not self.latest.has_begun(shard.id)
            and partition_of(key := self._lineage.stream.shard_key(shard.id)) in owned
        }

    def open_ready(self, owned: set[int]) -> None:
        """Open every shard of ``owned`` that may be read: past the fence, and with finished parents (I2)."""
        plan, waiting = self._committed.plan, self._set_aside.waiting()
        state = (self._committed.endings, self._lineage.listings, frozenset(owned), waiting)
        if plan is None or state == self._opened_in:
            return
        self._opened_in = state
        self._close_before_parents(plan)
        known, checkpoints = self.latest.new_tables.known_in(plan), self._committed.checkpoints
        for shard in unpruned(self._lineage.ready(), checkpoints, plan, self.source.clock()):
            key = self._lineage.stream.shard_key(shard.id)
            if shard.id not in self.open and key not in waiting and partition_of(key) in owned:
                with self._set_aside.opening(key, shard.id):
                    self._open(shard, key, plan, known)

    def _close_before_parents(self, plan: Plan) -> None:
        """Close shards of which no page is published and whose parents appear in a listing only now."""
        listed, checkpoints = self._lineage.listed, self._committed.checkpoints
        for name in [name for name in self.open if name in listed and not self.latest.has_begun(name)]:
            parents = [parent for parent in listed[name].parents if parent in listed and parent not in plan.passed]
            if not all(has_ended(checkpoints, parent) for parent in parents):
                self.close_one(name)  # I2

    def _open(self, shard: Shard, key: bytes, plan: Plan, known: Plan) -> None:
        """Open ``shard``. ``known``: the plan with all tables."""
        checkpoints = self._committed.checkpoints
        committed = checkpoints.get(shard.id)
        parents = {parent: checkpoints[parent] for parent in shard.parents if parent in checkpoints}
        late = self._lineage.late(shard.id) if not self.source.has_journals else []
        opening = Opening(
            shard,
            start_of_late(plan, late) or plan.start_of(shard),
            committed,
            floor=self._lineage.floor(shard),
            read_until=read_until(shard, plan, committed, parents, self.source.clock()),
            parents=parents,
            keys=known.keys,
            hashed=known.hashed,
            is_awaited=self._is_awaited,
            is_closed=partial(self._lineage.is_closed, shard.id),
        )
        begin = position_text(opening.position or {}) or "its start"
        log.info("source %s: reading shard %s from %s", self.source.name, shard.id, begin)
        reader = self.source.open(opening)
        if late:
            reader = LateShard(reader, self._lineage.stream, clock=self.source.clock)
        self.open[shard.id] = self._readers.open(reader, key, self.source.name)
        self.latest.open(shard, committed)

    def close(self, lost: set[int] | None = None) -> None:
        """Close the open shards of ``lost`` partitions, or all of them."""
        self._opened_in = None
        for name, shard in list(self.open.items()):
            if lost is None or partition_of(shard.key) in lost:
                self.close_one(name)

    def close_ended(self) -> bool:
        """Close shards whose end is committed and visible. Return whether any shard, of any worker, has ended."""
        if self._endings == (endings := self._committed.endings):
            return False
        self._endings = endings
        for shard in [shard for shard in self.open if has_ended(self._committed.checkpoints, shard)]:
            said = "source %s: shard %s was read to its end; its children follow"
            log.info(said, self._committed.stream.source, shard, extra={"event": "reshard"})
            self.close_one(shard)
        return True

    def close_one(self, shard: str) -> None:
        """Close a shard, which is opened again if it may still be read."""
        self._opened_in = None
        if shard in self.open:
            self._readers.shut(self.open.pop(shard))
        self.latest.close(shard)

    def gone(self, owned: set[int]) -> dict[bytes, tuple[ShardCheckpoint, Gap]]:
        """Return, by checkpoint key, the shards of ``owned`` that the source dropped before they were fully read."""
        if self._committed.plan is None:
            return {}
        return {
            key: self._give_up(shard)
            for shard in self._lineage.lost()
            # Except shards that this worker read to the end but whose end the view does not show yet.
            if not self.latest.has_ended(shard)
            and not self._may_be_read(shard)
            and partition_of(key := self._lineage.stream.shard_key(shard)) in owned
        }

    def _may_be_read(self, shard: str) -> bool:
        """Whether a shard that listings lack may still exist, because no read of it has called it unknown."""
        if shard in self.open:
            return not self.open[shard].is_unknown  # I1
        return self._lineage.is_asked_for(shard)

    def _give_up(self, shard: str) -> tuple[ShardCheckpoint, Gap]:
        last = self.latest.gone(shard)
        self.close_one(shard)  # pages that were read but not published are part of the gap
        return last


def start_of_late(plan: Plan, children: Iterable[str]) -> Start | None:
    """Return the time from which changes of a late shard count; None if all do. ``children``: those already begun."""
    return next((start for child in children if "since" in (start := plan.shards.get(child, {}))), None)


class LateShard:
    """Reads a shard that no listing showed before its children were begun: its changes become a gap (I2)."""

    def __init__(self, reader: ShardReader, stream: StreamId, *, clock: Callable[[], float]) -> None:
        self.shard = reader.shard
        self.streams = reader.streams
        self._reader = reader
        self._stream = stream
        self._clock = clock

    def close(self) -> None:
        self._reader.close()

    def read(self) -> ReadResult:
        """Return the next page, or the gap. Raises as the reader does."""
        result = self._reader.read()
        if not isinstance(result, Page) or not result.has_content:
            return result
        stream = self._stream
        gap = Gap(stream.source, stream.label, self.shard.id, "shard lost", None, None, self._clock())
        counts = PageCounts(result.counts.records)
        return replace(result, changes=(), token=None, position=None, counts=counts, gap=gap, end=LastPage())  # I9
