"""When a snapshot begins, and what each of its segments reads."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from relay.change import Change, Images, Operation
from relay.errors import RelayError
from relay.reading.reader_pool import ReaderPool
from relay.reading.set_aside import SetAside
from relay.records import CommittedRecords, Plan, Shard, ShardCheckpoint, ShardState, SnapshotPart
from relay.snapshots.lifecycle import Snapshots, SnapshotTables
from relay.source import LastPage, Measured, Page, PageCounts, Segment, ShardReader
from tests.scripted_source import ScriptedReader, ScriptedSource
from tests.snapshots.snapshotting import Snapshotting

PARTS = (SnapshotPart(table="large"), SnapshotPart(table="small"))


class PartedSnapshots:
    """The snapshots of a database with two tables, which may begin once the stream has a checkpoint."""

    margin = 65.0
    reads_at_once = 1
    is_selective = False

    def __init__(self, source: ScriptedSource) -> None:
        self._source = source
        self.opened: list[Segment] = []
        self.asked: list[int] = []

    def is_initial(self, plan: Plan) -> bool:
        return True

    def measure(self, published: Mapping[str, ShardCheckpoint], tables: Collection[str] | None = None) -> Measured:
        return Measured(len(PARTS), 7, PARTS)

    def may_begin(self, as_of: int, published: Mapping[str, ShardCheckpoint]) -> bool:
        self.asked.append(as_of)
        return "shard-00000" in published

    def open(self, segment: Segment) -> ShardReader:
        self.opened.append(segment)
        return ScriptedReader(self._source, cast(Any, SimpleNamespace(shard=segment.shard, position=None)))


def test_a_segment_that_cannot_be_opened_is_set_aside_and_the_others_are_read() -> None:
    """I12"""
    here = Snapshotting(initial=True)
    here.begin()
    first, *others = here.snapshots.control.segment_names if here.snapshots.control is not None else []
    opens = here.tables.open

    def refuse(segment: Segment) -> ShardReader:
        if segment.shard.id == first:
            raise RelayError("the table is gone")
        return opens(segment)

    here.tables.open = refuse  # type: ignore[method-assign]
    here.snapshots.open_ready_segments(set(range(64)))
    assert set(here.snapshots.open) == set(others)
    here.tables.open = opens  # type: ignore[method-assign]
    here.snapshots.open_ready_segments(set(range(64)))
    assert set(here.snapshots.open) == set(others)  # not before its time
    here.now += 120
    here.snapshots.open_ready_segments(set(range(64)))
    assert set(here.snapshots.open) == {first, *others}


def test_every_worker_learns_from_a_snapshot_that_begins_which_tables_have_their_keys() -> None:
    """I12: only the one that begins it has looked at the tables."""
    here = Snapshotting(initial=True)
    here.tables.left_out = ("small",)
    here.begin()
    first = SnapshotTables(here.source, here.view.of(here.source.stream))
    first.look()  # which tables lack a key was found out later than that, when it connected
    here.end()
    first.look()
    assert here.source.keyed == []
    here.ask("small")
    assert here.step() == "planned"
    first.look()
    here.tables.left_out = ()
    here.until()
    first.look()
    first.look()
    assert here.source.keyed == [{"small"}]


def test_rows_that_are_published_again_after_an_abort_have_their_checkpoint_again() -> None:
    """I3: without it, whoever reads the segment next would publish them once more."""
    here = Snapshotting(initial=True)
    here.begin()
    here.snapshots.open_ready_segments(set(range(64)))
    name = next(iter(here.snapshots.open))
    row = Change("e", Operation.READ, "shop", "large", {"id": "a"}, None, "{}", Images.NEW, None, 1)
    page = Page(Shard(name), [row], {"rows": 1}, None, None, 0.0, counts=PageCounts(1))
    first, again = here.snapshots.checkpoint(page, {}), here.snapshots.checkpoint(page, {})
    assert first is not None
    assert again is not None
    assert again.position == first.position == {"rows": 1}
    assert here.snapshots.checkpoint(replace(page, changes=[]), {}) is None
    here.snapshots.close_segments()


def test_a_snapshot_begins_once_no_change_can_be_older_and_its_segments_read_the_parts() -> None:
    """I7: with the time of its first attempt, so that it repairs what was lost before."""
    source, view = ScriptedSource("shop"), CommittedRecords()
    tables, now = PartedSnapshots(source), [1000.0]
    source.clock = lambda: now[0]
    beside = SimpleNamespace(
        source=source,
        stream=source.stream,
        view=view,
        committed=view.of(source.stream),
        set_aside=SetAside(view.of(source.stream), clock=lambda: now[0]),
        gaps=set,
        gaps_to_repair=set,
        resume_timestamp=lambda: 0,
    )
    beside.committed.plan = Plan("latest", 0.0, {}, {})
    snapshots = Snapshots(cast(Any, beside), tables, ReaderPool())

    def step() -> str | None:
        taken = snapshots.next_step()
        if taken is not None:
            view.apply(snapshots.stream.snapshot_key, taken.control.to_json())
        return taken.mark if taken is not None else None

    assert step() is None
    deadline = time.monotonic() + 600
    while not tables.asked:
        assert time.monotonic() < deadline
        assert step() is None
        now[0] += 1.0
    for _ in range(10):
        assert step() is None
    assert set(tables.asked) == {tables.asked[0]}
    view.apply(source.stream.shard_key("shard-00000"), ShardCheckpoint(ShardState.READING).to_json())
    assert step() == "begin"
    control = snapshots.control
    assert control is not None
    assert (control.begun.as_of, control.begun.parts) == (tables.asked[0], PARTS)
    snapshots.open_ready_segments(set(range(64)))
    assert tuple(segment.part for segment in tables.opened) == PARTS
    assert set(tables.opened[0].published()) == {"shard-00000"}
    page = Page(tables.opened[0].shard, [], {"rows": 0}, None, None, 0.0)
    first, second, last = (snapshots.checkpoint(each, {}) for each in (page, page, replace(page, end=LastPage())))
    # While nothing comes, nothing is written.
    assert [each and each.state for each in (first, second, last)] == [ShardState.READING, None, ShardState.FINISHED]
    snapshots.close_segments()
