"""A topic that has a shard's stream and the snapshots beside it, compared with the table: I7."""

from __future__ import annotations

import random
from contextlib import ExitStack

import pytest

from relay.change import MARK, Change, Images, Operation, Snapshot
from relay.mysql_dialect.snapshot_times import lowest
from relay.records import Shard, ShardCheckpoint, ShardState
from relay.source import Page
from relay.token import EventToken
from tests.examples import examples
from tests.faults.copied import Seen, copied, on_partition
from tests.reads import pages_of
from tests.vitess.copies import SHARD
from tests.vitess.reading import copying, opened
from tests.vitess.scripted import Log, Rows, ScriptedVtgate, copy_script


class Beside:
    """A shard that is written to, its stream, and a snapshot beside it, whose changes go to one topic.

    Tablets that are copied may be behind the one that is streamed, and the clock of the relay is not the database's.
    """

    def __init__(self, chance: random.Random, batch: int) -> None:
        self.chance, self.log = chance, Log(names=chance.random() < 0.5)
        self.rows: dict[int, bytes] = dict.fromkeys(range(1, 12), b"old")
        self.tablets: list[tuple[str, Rows]] = []
        self.topic: list[Seen] = []
        self.checkpoint: ShardCheckpoint | None = None
        self._written = 0
        # Seconds: the clock of the database, and how far that of the relay is ahead of it.
        self.time, self.ahead = 1_700_000_000, chance.choice([-1000, 0, 50, 1000])
        self.write()
        self._stack = ExitStack()
        script = copy_script(self.log, self._tablet, batch, chance.randrange(1 << 30))
        self.vtgate = self._stack.enter_context(ScriptedVtgate(script))
        self._streams, self._copies = ExitStack(), ExitStack()
        self.page: Page | None = None
        self.begin = Snapshot("", 0)
        # How often a tablet was behind.
        self.refused = 0
        self._open_stream()

    def close(self) -> None:
        for each in (self._streams, self._copies, self._stack):
            each.close()

    def _tablet(self) -> tuple[str, Rows]:
        return self.chance.choice(self.tablets[-4:])

    def write(self) -> None:
        """Insert, change or delete a row."""
        self._written += 1
        self.time += self.chance.choice([0, 1, 20, 70])
        number, value = self.chance.randrange(1, 16), b"v%d" % self._written
        before = self.rows.get(number)
        if before is not None and self.chance.random() < 0.4:
            del self.rows[number]
            self.log.add(((b"%d" % number, before), None)).timestamp = self.time
        else:
            self.rows[number] = value
            row = None if before is None else (b"%d" % number, before)
            self.log.add((row, (b"%d" % number, value))).timestamp = self.time
        content: Rows = {"customer": [(b"%d" % number, value) for number, value in self.rows.items()]}
        self.tablets.append((self.log.head, content))

    def _clock(self) -> float:
        return float(self.time + self.ahead)

    def _publish(self, changes: list[Change]) -> None:
        for each in changes:
            assert each.key is not None
            new = each.new["name"] if each.new else None
            self.topic.append(
                on_partition(0, each.key["id"], each.event_id, each.operation, new, each.images, each.token,
                             each.snapshot, each.attributes, 0.0)
            )  # fmt: skip

    def _mark(self, kind: str) -> None:
        self.topic.append(
            on_partition(0, None, kind, Operation.READ, None, Images.KEYS_ONLY, None, self.begin, {MARK: kind}, 0.0)
        )

    def _open_stream(self) -> None:
        self._streams.close()
        after, floor = None, 0
        if (last := self.checkpoint) is not None:
            after, floor = Page(Shard("0"), [], last.position, last.token, None, 0.0), lowest(last)
        self.stream = self._streams.enter_context(
            opened(
                self.vtgate.address, {"gtid": self.log.before}, after=after, floor=floor, clock=self._clock, wait=0.01
            )
        )

    def read_stream(self) -> None:
        """Read some of the stream, perhaps after a restart."""
        if self.chance.random() < 0.2:
            self._open_stream()
        for page in pages_of(self.stream.read() for _ in range(self.chance.randint(1, 3))):
            self._publish(list(page.changes))
            before = self.checkpoint
            reached = page.reached if page.reached is not None else before.reached if before else None
            self.checkpoint = ShardCheckpoint(ShardState.READING, page.position, page.token, reached=reached)

    def begin_snapshot(self) -> None:
        while self.checkpoint is None or not lowest(self.checkpoint):
            self.read_stream()
        # The latest that the engine lets one begin with.
        self.begin, self.page = Snapshot(f"snapshot-{self._written}", lowest(self.checkpoint)), None
        self._mark("begin")
        self._open_copy()

    def _open_copy(self) -> None:
        self._copies.close()
        checkpoint = self.checkpoint
        assert checkpoint is not None
        self.copy = self._copies.enter_context(
            copying(
                self.vtgate.address,
                lambda: {"0": self.checkpoint or checkpoint},
                after=self.page,
                as_of=self.begin.as_of,
                clock=self._clock,
                wait=0.01,
            )
        )

    def read_copy(self) -> bool:
        """Read a page of the snapshot, perhaps after a restart. Return whether it was the last."""
        if self.chance.random() < 0.2:
            self._open_copy()
        read = self.copy.read()
        if not isinstance(read, Page):
            self.refused += "behind the published changes" in read.reason
            return False
        self.page = read
        self._publish([*read.changes])
        if read.finished:
            self._mark("end")
        return read.finished

    def expected(self) -> dict[int, str]:
        return {number: value.decode() for number, value in self.rows.items()}


@pytest.mark.parametrize("seed", range(examples(25)))
def test_a_copy_beside_the_stream_equals_the_table_whatever_is_interrupted_and_however_far_tablets_are_behind(
    seed: int,
) -> None:
    """I7: no READ undoes a change, and rows whose deletion nobody read disappear at the end mark."""
    chance = random.Random(seed)
    beside = Beside(chance, batch=chance.choice([1, 2, 5]))
    try:
        # Rows of which the stream told nothing, as after a reset.
        lost = EventToken(1_600_000_000, SHARD, beside.log.before)
        for number in (*range(1, 12), 77):
            name = f"lost-{number}"
            beside.topic.append(
                on_partition(0, number, name, Operation.INSERT, "lost", Images.NEW, lost, None, {}, 0.0)
            )
        for _ in range(chance.randint(1, 2)):
            beside.begin_snapshot()
            while not beside.read_copy():
                for _ in range(chance.randrange(3)):
                    chance.choice([beside.write, beside.read_stream])()
            beside.write()
        while not (beside.checkpoint and beside.checkpoint.position == {"gtid": beside.log.head}):
            beside.read_stream()
    finally:
        beside.close()
    assert copied(beside.topic) == beside.expected()
