"""Snapshots of a table beside its stream: every row once as READ, in segments that survive restarts.

Written down like shards, under a stream of their own (``<label>/snapshot``): one control record, which its owner alone
moves on (*planned -> reading -> finished*), and a record for each segment, read by whoever owns it. A snapshot that is
asked for while one runs replaces it: what was read before a loss does not repair it.

The rule that makes it safe beside the stream is the copy's (``spark_consumers.fold``): a READ is good for what
happened before its ``as_of``, which is the clock before its page was read minus ``Source.snapshot_margin``.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from relay.change import MARK, Change, Images, Operation, Snapshot, event_id
from relay.engine.reader_pool import OpenShard, ReaderPool
from relay.errors import Unavailable
from relay.kafka.checkpoints import CheckpointView, partition_of
from relay.lineage import Checkpoint, Shard, ShardState, StreamId
from relay.source import Page, Source
from relay.table import TableSchema

log = logging.getLogger(__name__)

CONTROL = "control"
"""The name of the control record."""

_SUFFIX = "/snapshot"
_AT_ONCE = 4  # segments open in one worker: the others' threads are for the stream
_TELL_EVERY = 10.0  # seconds
_SHOW_EVERY = 0.5
_PATIENCE = 5.0


def records_of(stream: StreamId) -> StreamId:
    """Return what the snapshots beside ``stream`` are written down under."""
    return StreamId(stream.source, stream.label + _SUFFIX)


Show = Callable[[str, tuple[int, int] | None], None]
"""Called with the source, and rows read and estimated of its running snapshot; None if none runs."""


def is_snapshot(stream: StreamId) -> bool:
    """Whether what is written down under ``stream`` is of snapshots."""
    return stream.label.endswith(_SUFFIX)


def is_unread(view: CheckpointView, source: str) -> bool:
    """Whether no snapshot of ``source`` has ever ended, in whatever stream it had."""
    return not any(
        stream.source == source
        and is_snapshot(stream)
        and (control := snapshots.get(CONTROL)) is not None
        and control.state is ShardState.FINISHED
        for stream, snapshots in view.checkpoints.items()
    )


class Snapshots:
    """The snapshots of one source. Used by the worker's thread.

    ``resume_timestamp``: of the source's stream, which goes into every change.
    """

    def __init__(
        self,
        source: Source,
        stream: StreamId,
        view: CheckpointView,
        pump: ReaderPool,
        resume_timestamp: Callable[[], int],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.source = source
        self.stream = records_of(stream)
        self.view = view
        self.pump = pump
        self.resume_timestamp = resume_timestamp
        self.clock = clock
        self.control_key = self.stream.checkpoint_key(CONTROL)
        # Open segments by the name of their record, finished ones whose last checkpoint is not visible yet included.
        self.open: dict[str, OpenShard] = {}
        self._latest: dict[str, Checkpoint] = {}
        self._told = 0.0
        # Until when not to look again whether a snapshot can begin.
        self._again_at = 0.0

    def __repr__(self) -> str:
        return f"<Snapshots[{self.source.name}: {len(self.open)} segments open]>"

    @property
    def checkpoints(self) -> Mapping[str, Checkpoint]:
        return self.view.checkpoints.get(self.stream, {})

    @property
    def control(self) -> Checkpoint | None:
        return self.checkpoints.get(CONTROL)

    @property
    def repaired(self) -> Set[str]:
        """The ids of the losses that the newest snapshot repairs, or did."""
        control = self.control
        return set(control.snapshot["gaps"]) if control is not None and control.snapshot is not None else set()

    # ------------------------------------------------------------------ the control record

    def step(
        self, gaps: Set[str], repairs: Set[str], is_unread: bool, last: int
    ) -> tuple[Checkpoint, str | None] | None:
        """Return what to write down next, and which mark to publish with it; None if nothing is due.

        ``gaps``: ids of all known losses. ``repairs``: of those that a snapshot has to repair. ``is_unread``: whether
        no snapshot of the source has ever ended. ``last``: the last timestamp published, in seconds. For the owner of
        ``control_key``.
        """
        control = self.control
        if self._is_wanted(control, repairs, is_unread):
            return self._requested(gaps, last), None
        if control is None or control.snapshot is None:
            return None
        if control.state is ShardState.PLANNED:
            as_of = int(self.clock() - self.source.snapshot_margin)
            if self.clock() < self._again_at:
                return None
            self._again_at = self.clock() + _PATIENCE
            if as_of <= control.snapshot["after"]:
                # A READ could not yet replace what was published before the loss.
                wait = control.snapshot["after"] + 1 - as_of
                log.info("source %s: the snapshot that repairs a loss begins in %d s", self.source.name, wait)
                return None
            try:
                segments, rows = self.source.measure()
            except Unavailable as error:
                log.warning("source %s: the snapshot cannot begin yet: %s", self.source.name, error)
                return None
            fields = {**control.snapshot, "as_of": as_of, "segments": segments, "rows": rows}
            log.info("source %s: snapshot %s begins: about %d rows", self.source.name, fields["id"], rows)
            return self._moved(control, ShardState.READING, fields), "begin"
        if control.state is ShardState.READING and all(self._has_finished(name) for name, _ in self._segments(control)):
            log.info("source %s: snapshot %s has ended", self.source.name, control.snapshot["id"])
            return self._moved(control, ShardState.FINISHED, control.snapshot), "end"
        return None

    def mark(self, control: Checkpoint, kind: str) -> Iterator[Change]:
        """Yield, for each table, the change that marks the begin or the end; it goes to every partition."""
        fields = control.snapshot or {}
        for table in self.source.tables():
            yield Change(
                event_id=event_id(self.stream.label, f"{fields['id']}/{kind}", table.table, b"", 0),
                operation=Operation.READ,
                source=self.source.name,
                table=table.table,
                key=None,
                old=None,
                new=None,
                images=Images.KEYS_ONLY,
                token=None,
                committed_at=int(self.clock() * 1_000_000),
                snapshot=Snapshot(fields["id"], fields["as_of"]),
                attributes={MARK: kind},
            )

    def is_settled(self, repairs: Set[str], is_unread: bool) -> bool:
        """Whether no snapshot is running or due. See ``step``."""
        control = self.control
        if self._is_wanted(control, repairs, is_unread):
            return False
        return control is None or control.state is ShardState.FINISHED

    def prunable(self, owned: set[int]) -> list[bytes]:
        """Return the keys, of the partitions ``owned``, of segments that nobody will ask for again."""
        control = self.control if self.checkpoints.keys() - {CONTROL} else None
        if control is None:
            return []
        current = {name for name, _ in self._segments(control)} if control.state is ShardState.READING else set()
        keys = [
            self.stream.checkpoint_key(name)
            for name in self.checkpoints
            if name != CONTROL and name not in current and name not in self.open
        ]
        return [key for key in keys if partition_of(key) in owned]

    def _is_wanted(self, control: Checkpoint | None, repairs: Set[str], is_unread: bool) -> bool:
        if control is None or control.snapshot is None:
            return (self.source.snapshot == "initial" and is_unread) or bool(repairs)
        return not repairs <= set(control.snapshot["gaps"])

    def _requested(self, gaps: Set[str], last: int) -> Checkpoint:
        """A new snapshot. Where it repairs a loss it begins after all that was published before it."""
        fields = {
            "id": f"{int(self.clock())}-{secrets.token_hex(4)}",
            "gaps": sorted(gaps),
            "after": last if gaps else 0,
            "as_of": None,
            "segments": 0,
            "rows": 0,
        }
        return Checkpoint(ShardState.PLANNED, snapshot=fields, updated_at=self.clock())

    def _moved(self, control: Checkpoint, state: ShardState, fields: Mapping[str, Any]) -> Checkpoint:
        return replace(control, state=state, snapshot=fields, updated_at=self.clock())

    # ------------------------------------------------------------------ segments

    def _segments(self, control: Checkpoint) -> list[tuple[str, int]]:
        fields = control.snapshot or {}
        return [(f"{fields['id']}/{number}", number) for number in range(fields["segments"])]

    def _has_finished(self, name: str) -> bool:
        checkpoint = self.checkpoints.get(name)
        return checkpoint is not None and checkpoint.state is ShardState.FINISHED

    def open_ready(self, owned: set[int]) -> None:
        """Open segments of ``owned``, after the fence, a few at a time; let go of what has ended."""
        control = self.control
        current = self._segments(control) if control is not None and control.state is ShardState.READING else []
        names = {name for name, _ in current}
        for name in [name for name in self.open if name not in names or self._has_finished(name)]:
            self._close(name)
        if control is None or control.snapshot is None:
            return
        for name, number in current:
            if len(self.open) >= _AT_ONCE:
                return
            if name in self.open or self._has_finished(name):
                continue
            key = self.stream.checkpoint_key(name)
            if partition_of(key) not in owned:
                continue
            committed = self.checkpoints.get(name)
            fields = control.snapshot
            snapshot = Snapshot(fields["id"], fields["as_of"])
            position = committed.position if committed else None
            reader = self.source.open_segment(Shard(name), snapshot, number, fields["segments"], position)
            self.open[name] = self.pump.open(reader, key)
            self._latest[name] = committed or Checkpoint(ShardState.PLANNED)

    def forget(self, lost: set[int] | None = None) -> None:
        """Close the open segments of ``lost`` partitions, or all."""
        for name, reading in list(self.open.items()):
            if lost is None or partition_of(reading.key) in lost:
                self._close(name)

    def _close(self, name: str) -> None:
        self.pump.shut(self.open.pop(name))
        self._latest.pop(name, None)

    def checkpoint(self, page: Page) -> Checkpoint:
        """What is known once ``page`` is on the topic."""
        state = ShardState.FINISHED if page.finished else ShardState.READING
        after = replace(self._latest[page.shard.id], state=state, position=page.position, updated_at=self.clock())
        self._latest[page.shard.id] = after
        return after

    def before_gap(self, page: Page) -> Checkpoint | None:
        """Nothing can be lost of a table."""
        return None

    def check_tables(self, tables: Sequence[TableSchema]) -> None:
        """Its pages are of the tables as the source has them."""

    def note(self, page: Page) -> None:
        """Nothing is told by a page of a snapshot."""

    def list_soon(self) -> None:
        """Segments are not listed."""

    # ------------------------------------------------------------------ progress

    def progress(self) -> tuple[int, int] | None:
        """Return rows read and rows estimated of the running snapshot, all workers'; None if none runs."""
        control = self.control
        if control is None or control.snapshot is None or control.state is not ShardState.READING:
            return None
        read = 0
        for name, _ in self._segments(control):
            checkpoint = self._latest.get(name) or self.checkpoints.get(name)
            read += checkpoint.position["rows"] if checkpoint and checkpoint.position else 0
        return read, max(read, control.snapshot["rows"])

    def tell(self, show: Show | None = None) -> None:
        """Show the progress, or write it and an estimate to the log from time to time."""
        now = self.clock()
        if now - self._told < (_TELL_EVERY if show is None else _SHOW_EVERY):
            return
        progress = self.progress()
        if show is not None:
            self._told = now
            show(self.source.name, progress)
        elif progress is not None:
            self._told = now
            self._log(*progress)

    def _log(self, read: int, rows: int) -> None:
        control = self.control
        left = (self.clock() - control.updated_at) * (rows - read) / read if read and control else None
        log.info(
            "source %s: snapshot: %d of about %d rows, %s",
            self.source.name,
            read,
            rows,
            f"about {left:.0f} s left" if left is not None else "no estimate yet",
        )
