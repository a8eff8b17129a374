"""A source of a worker that owns everything, whose records are committed at once, or fail as a test says."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from types import SimpleNamespace
from typing import Any, cast

from relay.change import Change
from relay.engine.same_sources import SameSources
from relay.engine.upkeep import Upkeep
from relay.errors import RelayError
from relay.kafka.publisher import Aborted
from relay.reading.reader_pool import ReaderPool
from relay.records import CommittedRecords, Gap, PartitionOwner, Plan, ShardCheckpoint, ShardListing
from relay.source import Measured, Segment, ShardReader, Source
from relay.stream.source_state import SourceState
from relay.table import TableSchema
from tests.scripted_source import CLAIMS, ScriptedSource, config_of


class Writers(dict[tuple[str, str], Any]):
    def __init__(self, claimed: list[tuple[str, str]]) -> None:
        super().__init__()
        self._claimed = claimed

    def claim(self, source: str, table: str) -> None:
        self._claimed.append((source, table))

    def use(self, tables: Iterable[TableSchema]) -> None:
        for table in tables:
            self[table.source, table.table] = SimpleNamespace(topic=f"test.{table.table}")


class Committed:
    """The records that are committed, as a view shows them, and the gaps; ``fails``: what the next commits raise."""

    def __init__(self) -> None:
        self.view = CommittedRecords()
        self.gaps: list[Gap] = []
        # Source and table of those that other workers have met.
        self.claimed: list[tuple[str, str]] = []
        self.writers = Writers(self.claimed)
        self.fails: list[Exception | None] = []
        # Partitions that were waited for although nothing was written to them.
        self.seen: set[int] = set()
        # Whether the view shows at once what is written for snapshots, which nobody waits for.
        self.shows = True
        # What it does not show yet.
        self._hidden: list[dict[bytes, bytes | None]] = []
        self._records: dict[bytes, bytes | None] = {}
        self._gaps: list[Gap] = []
        # The attributes of marks, and the partitions to which they went; None for all.
        self.marks: list[tuple[Mapping[str, str], range | None]] = []
        self._marks: list[tuple[Mapping[str, str], range | None]] = []

    def gap(self, source: Source, gap: Gap) -> None:
        self._gaps.append(gap)

    def record(self, key: bytes, value: bytes | None) -> None:
        self._records[key] = value

    def everywhere(self, change: Change, resume_timestamp: int, partitions: range | None = None) -> None:
        self._marks.append((change.attributes, partitions))

    def tell(self, key: bytes, listing: ShardListing) -> None:
        self.record(key, listing.to_json())

    def forget(self, key: bytes) -> None:
        self._records[key] = None

    def commit_and_watch(self, earlier: Set[int] = frozenset()) -> Callable[[], bool]:
        records = {} if self.shows else dict(self._records)
        if not self.shows:
            self._records.clear()
        self.commit_and_see(earlier)
        self._hidden.append(records)
        return lambda: not records or records not in self._hidden

    @property
    def hidden(self) -> list[set[bytes]]:
        return [set(records) for records in self._hidden if records]

    def show(self) -> None:
        """Let the view show what it does not show yet."""
        self.shows = True
        for records in self._hidden:
            for key, value in records.items():
                self.view.apply(key, value)
        self._hidden.clear()

    def commit(self) -> None:
        self.commit_and_see()

    def commit_and_see(self, earlier: Set[int] = frozenset()) -> None:
        records, self._records = self._records, {}
        gaps, self._gaps = self._gaps, []
        marks, self._marks = self._marks, []
        if self.fails and (error := self.fails.pop(0)) is not None:
            raise error
        self.seen |= earlier
        self.gaps += gaps
        self.marks += marks
        for key, value in records.items():
            self.view.apply(key, value)


class Maintained:
    """One source of a worker that owns everything. ``now``: its clock, in seconds. ``committed``: by all workers."""

    def __init__(
        self, source: ScriptedSource, committed: Committed | None = None, *, until_caught_up: bool = False
    ) -> None:
        self.committed = committed or Committed()
        self.view = self.committed.view
        self.now = 1000.0
        self.stream = source.connect()
        source.clock = lambda: self.now
        self.state = SourceState(
            cast(Any, source), self.stream, self.view, ReaderPool(), CLAIMS, until_caught_up=until_caught_up
        )
        self.owned = set(range(64))
        group: Any = SimpleNamespace(owned=self.owned, view=self.view, barrier_timeout=1.0)
        # The partitions that were read to their end.
        self.required: set[int] = set()
        self.view.require_end = lambda partitions, timeout: self.required.update(partitions)  # type: ignore[attr-defined]
        config: Any = SimpleNamespace(serve=lambda sources: None, config=config_of("test", "localhost:9092", [source]))
        same = SameSources(group, PartitionOwner("me", {source.name: ""}))
        self._upkeep = Upkeep(group, cast(Any, self.committed), same, config)

    def serve(self) -> None:
        """As the worker does."""
        try:
            self._upkeep.serve([self.state])
        except Aborted:
            self.state.list_soon()

    def serve_until(self, reached: Callable[[], object]) -> None:
        deadline = time.monotonic() + 600
        while not reached():
            assert time.monotonic() < deadline
            self.serve()
            time.sleep(0.01)

    @property
    def checkpoints(self) -> dict[str, ShardCheckpoint]:
        return self.view.of(self.stream).checkpoints

    @property
    def plan(self) -> Plan:
        found = self.view.of(self.stream).plan
        assert found is not None
        return found

    def held_up_since(self) -> float | None:
        return self.state.switching.held_up_since

    def write(self, shard: str, checkpoint: ShardCheckpoint) -> None:
        """Commit ``checkpoint``, as another worker does."""
        self.view.apply(self.stream.shard_key(shard), checkpoint.to_json())


class NoRows:
    """The snapshots of a table without rows. ``problem``: why it cannot be read, which was ``measured`` so often."""

    problem: RelayError | None = None
    measured = 0

    margin = 0.0
    reads_at_once = 1
    is_selective = False

    def is_initial(self, plan: Plan) -> bool:
        return False

    def measure(self, published: Mapping[str, ShardCheckpoint], tables: Collection[str] | None = None) -> Measured:
        self.measured += 1
        if self.problem is not None:
            raise self.problem
        return Measured(0, 0)

    def may_begin(self, as_of: int, published: Mapping[str, ShardCheckpoint]) -> bool:
        return True

    def open(self, segment: Segment) -> ShardReader:
        raise AssertionError("it has no segments")
