"""Snapshots beside the stream, by the copy's rule: they repair losses and undo nothing (I1, I7, I9)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.change import Images, Operation, Snapshot
from relay.token import EventToken
from spark_consumers import fold
from spark_consumers.fold import StoredRow, VerdictCounts

SHARD = "orders/label/shard"
MARGIN = 4  # seconds, the largest clock skew and rounding error
ITEMS = 4


@dataclass(frozen=True, kw_only=True)
class Published(fold.ChangeHead):
    """A change on the topic. ``item`` None: the begin or the end of a snapshot."""

    item: int | None


def published(
    event_id: str,
    operation: Operation,
    item: int | None,
    new: int | None,
    token: EventToken | None,
    snapshot: Snapshot | None = None,
    images: Images = Images.NEW_AND_OLD,
    mark: str = "",
) -> Published:
    place: Any = None
    return Published((), place, event_id, operation, new, images, token, snapshot, {}, mark, item=item)


@dataclass
class World:
    """A table that is written to while its stream is relayed late, and a snapshot follows each loss."""

    chance: random.Random
    table: dict[int, int] = field(default_factory=dict)
    stream: list[Published] = field(default_factory=list)
    topic: list[Published] = field(default_factory=list)
    now: int = 1000
    relayed: int = 0
    version: int = 0

    def write(self) -> None:
        item = self.chance.randrange(ITEMS)
        self.version += 1
        operation = Operation.UPDATE if item in self.table else Operation.INSERT
        new: int | None = self.version
        if operation is Operation.UPDATE and self.chance.random() < 0.4:
            operation, new = Operation.DELETE, None
        if new is None:
            del self.table[item]
        else:
            self.table[item] = new
        # The source's clock may be behind or ahead, and rounds down.
        created = self.now + self.chance.randint(-MARGIN // 2, MARGIN // 2 - 1)
        token = EventToken(max(created, self.floor), SHARD, f"DynamoDB/{self.version}")
        self.stream.append(published(f"e{self.version}", operation, item, new, token))

    @property
    def floor(self) -> int:
        last = self.stream[-1].token if self.stream else None
        return last.timestamp if last else 0

    def relay(self, most: int) -> None:
        upto = min(len(self.stream), self.relayed + self.chance.randint(0, most))
        self.topic += self.stream[self.relayed : upto]
        self.relayed = upto

    def lose(self) -> int:
        """Lose all or some of what is not relayed yet; return the time after which a snapshot has to start."""
        published = [change.token.timestamp for change in self.topic if change.token]
        self.relayed = self.chance.randint(self.relayed, len(self.stream))
        return max(published, default=0)

    def step(self) -> None:
        self.now += self.chance.randint(0, 3)
        if self.chance.random() < 0.6:
            self.write()
        if self.chance.random() < 0.4:
            self.relay(3)

    def snapshot(self, name: str, after: int) -> None:
        while self.now - MARGIN <= after:
            self.step()
        begin = self.now - MARGIN
        self.topic.append(self.marked(name, begin, "begin"))
        for item in self.chance.sample(range(ITEMS), ITEMS):
            self.step()
            if item in self.table:
                read = Snapshot(name, self.now - MARGIN)
                row = published(f"{name}-{item}", Operation.READ, item, self.table[item], None, read, Images.NEW)
                for _ in range(self.chance.randint(0, 3)):
                    self.step()  # it is published some time after it was read
                self.topic.append(row)
        for _ in range(self.chance.randint(0, 3)):
            self.step()
        self.topic.append(self.marked(name, begin, "end"))

    def marked(self, name: str, begin: int, mark: str) -> Published:
        return published(
            f"{name}-{mark}", Operation.READ, None, None, None, Snapshot(name, begin), Images.KEYS_ONLY, mark
        )

    def finish(self) -> None:
        for _ in range(self.chance.randint(0, 6)):
            self.step()
        self.relay(0)
        self.topic += self.stream[self.relayed :]


Sweep = Callable[[StoredRow, fold.ChangeHead], tuple[StoredRow, fold.Verdict]]


def apply(copy: dict[int, StoredRow], changes: list[Published], sweep: Sweep = fold.sweep) -> None:
    for change in changes:
        if change.item is not None:
            row = fold.fold(copy.get(change.item), [change], VerdictCounts())
            assert row is not None
            copy[change.item] = row
        elif change.mark == "end":
            for item, row in list(copy.items()):
                copy[item] = sweep(row, change)[0]


def living(copy: dict[int, StoredRow]) -> dict[int, int]:
    return {item: row.item for item, row in copy.items() if not row.deleted}


def scenario(seed: int) -> World:
    world = World(random.Random(seed))
    for _ in range(world.chance.randint(0, 12)):
        world.step()
    if world.chance.random() < 0.5:
        world.snapshot("initial", 0)
    for _ in range(world.chance.randint(0, 12)):
        world.step()
    if world.chance.random() < 0.7:
        world.snapshot("repair", world.lose())
    world.finish()
    return world


@given(st.integers(0, 2**32))
def test_the_copy_equals_the_table_after_losses_delays_and_snapshots(seed: int) -> None:
    world = scenario(seed)
    copy: dict[int, StoredRow] = {}
    apply(copy, world.topic)
    assert living(copy) == world.table


@given(st.integers(0, 2**32), st.floats(0, 1), st.floats(0, 1))
def test_the_copy_equals_the_table_after_a_part_is_applied_again(seed: int, first: float, second: float) -> None:
    """I7: a killed consumer resumes from an earlier offset."""
    world = scenario(seed)
    reached = int(len(world.topic) * max(first, second))
    again = int(len(world.topic) * min(first, second))
    copy: dict[int, StoredRow] = {}
    apply(copy, world.topic[:reached])
    apply(copy, world.topic[again:])
    assert living(copy) == world.table


def test_without_the_sweep_rows_whose_deletion_was_lost_would_stay() -> None:
    """It shows that the property above can fail."""

    def keep(row: StoredRow, _: fold.ChangeHead) -> tuple[StoredRow, fold.Verdict]:
        return row, fold.Verdict.IGNORED

    def differs(seed: int) -> bool:
        world = scenario(seed)
        copy: dict[int, StoredRow] = {}
        apply(copy, world.topic, keep)
        return living(copy) != world.table

    assert any(map(differs, range(300)))


def test_a_read_only_replaces_older_rows() -> None:
    def stored(timestamp: int) -> StoredRow:
        return StoredRow(1, EventToken(timestamp, SHARD, "DynamoDB/1"), "e1")

    read = published("r", Operation.READ, 0, 2, None, Snapshot("s", 100), Images.NEW)
    assert fold.store(stored(99), read)[0] == StoredRow(2, None, "r", read_as_of=100)
    assert fold.store(stored(100), read)[0] == stored(100)
    read_later = StoredRow(3, None, "r2", read_as_of=101)
    assert fold.store(read_later, read)[0] == read_later
    late = published("e2", Operation.UPDATE, 0, 3, EventToken(50, SHARD, "DynamoDB/2"))
    after = fold.store(StoredRow(2, None, "r", read_as_of=100), late)[0]
    assert after == StoredRow(3, late.token, "e2", read_as_of=100)


@pytest.mark.parametrize(
    ("row", "survives"),
    [
        (StoredRow(1, EventToken(99, SHARD, "DynamoDB/1"), "e"), False),
        (StoredRow(1, EventToken(100, SHARD, "DynamoDB/1"), "e"), True),
        (StoredRow(1, None, "r", read_as_of=99), False),
        (StoredRow(1, None, "r", read_as_of=100), True),
        (StoredRow(1, EventToken(50, SHARD, "DynamoDB/1"), "e", read_as_of=100), True),
        (StoredRow(1, EventToken(50, SHARD, "DynamoDB/1"), "e", read_as_of=150), True),
    ],
)
def test_the_end_of_a_snapshot_deletes_older_rows_that_it_did_not_find(row: StoredRow, survives: bool) -> None:
    end = published("s-end", Operation.READ, None, None, None, Snapshot("s", 100), Images.KEYS_ONLY, "end")
    after, _ = fold.sweep(row, end)
    if survives:
        assert after == row
    else:
        assert after == replace(row, item=None, deleted=True, read_as_of=99)
        assert fold.sweep(after, end)[0] == after
