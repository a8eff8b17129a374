"""Streams with a random history that continues, call by call, while a relay reads them.

The history (writes, splits, children listed late or early) depends on the seed alone; how much of it happens
before a call, and what goes wrong with that call, is drawn by the number of the call.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from relay.records import ShardCheckpoint
from tests.dynamodb.answering_server import Dropped, Refused
from tests.dynamodb.endpoint import ScriptedShard, ScriptedStream, full

Item = tuple[str, int]
"""Hash and sort key."""

_MOVES = {"write": 32, "delete": 4, "empty": 3, "split": 2, "split_listed_late": 1, "split_closed_late": 1, "trim": 2}
_TROUBLES = (
    Refused("ThrottlingException"),
    Refused("InternalServerError", 500),
    Refused("LimitExceededException"),
    Dropped(),
)


@dataclass(frozen=True, slots=True)
class Write:
    """One write: ``version`` None is a delete, ``old`` None an insert."""

    version: int | None
    old: int | None
    shard: str
    sequence: int


class Scenario(ScriptedStream):
    """One table. ``on_call`` is called before each call is answered; it may kill the relay.

    ``length``: how many times as long its history is as usual, with as many splits.
    """

    def __init__(self, seed: int, on_call: Callable[[], None] = lambda: None, length: int = 1) -> None:
        traits = random.Random(f"{seed}/traits")
        super().__init__(page=traits.randint(2, 25), listing_page=traits.randint(2, 9), table=f"scripted-{seed}")
        self.seed = seed
        self.sort_key = "number"
        self.on_call = on_call
        # Whether it may lose records that were not read.
        self.lossy = traits.random() < 0.4
        self.trouble = traits.choice([0.0, 0.02, 0.06])
        self.left = traits.randint(15, 70) * length
        self._moves = {**_MOVES, "write": _MOVES["write"] * length}
        self.truth: dict[Item, list[Write]] = defaultdict(list)
        self._history = random.Random(f"{seed}/history")
        self._calls = random.Random(f"{seed}/calls")
        self._begun = int(time.time()) - 3600
        self._skew: dict[str, int] = {}
        self._home: dict[Item, str] = {}
        # Actions, and after how many more calls they happen.
        self._later: list[tuple[int, Callable[[], None]]] = []
        # Children that no listing shows yet, and their descendants.
        self._hidden: set[str] = set()
        # Shards that all pages of this listing omit; never twice in a row.
        self._omitted: set[str] = set()
        self._omits = True
        # How many records of a shard the relay is known to have committed.
        self._committed: dict[str, int] = {}
        self._lost: set[str] = set()
        roots = [self._grow(None) for _ in range(traits.randint(1, 3))]
        for number in range(traits.randint(3, 14)):
            self._home[f"customer-{number % 5}", number] = traits.choice(roots)

    def __repr__(self) -> str:
        return f"<Scenario[{self.seed}: {len(self.shards)} shards, {self.left} moves left]>"

    # ------------------------------------------------------------------ what happens between calls

    def answer(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self.on_call()
            for _ in range(self._calls.choice((0, 0, 0, 1, 2, 9))):
                self._move()
            self._tick()
            if operation == "DescribeStream" and request.get("Limit") != 1 and "ExclusiveStartShardId" not in request:
                listed = [shard.id for shard in self.shards.values() if shard.id not in self._omitted]
                few = self._omits and self._calls.random() < 0.15
                self._omitted = set(self._calls.sample(listed, k=min(len(listed), 2))) if few else set()
            if operation not in ("DescribeTable", "ListStreams") and request.get("Limit") != 1:
                if self._calls.random() < self.trouble / 4:
                    self.expire_iterators()
                if self._calls.random() < self.trouble:
                    raise self._calls.choice(_TROUBLES)
            return super().answer(operation, request)

    def settle(self) -> None:
        """Finish the history. Calls still fail and iterators expire, but less often, and listings are complete."""
        with self._lock:
            # All shards have to be quiet at once, and a new iterator reads empty pages again.
            self.trouble /= 10
            while self.left:
                self._move()
            while self._later:
                self._tick()
            self._omitted, self._omits = set(), False
            for shard in self.shards.values():
                shard.empties = dict.fromkeys(shard.empties, 20)

    def while_no_relay_runs(self, checkpoints: Mapping[str, ShardCheckpoint]) -> None:
        """Continue for a while. ``checkpoints``: those that the relays have committed for this stream."""
        with self._lock:
            for _ in range(self._calls.choice((0, 5, 20))):
                self._move()
            for name, checkpoint in checkpoints.items():
                shard = self.shards.get(name)
                if shard is None:
                    continue
                if checkpoint.position is not None:
                    self._committed[name] = _index_after(shard, int(checkpoint.position["sequence"]))
                if shard.closed and checkpoint.state.ended and self._calls.random() < 0.2:
                    self.forget(name)
                elif self.lossy and checkpoint.position is not None and self._calls.random() < 0.3:
                    self._lose(shard)

    def _lose(self, shard: ScriptedShard) -> None:
        """Drop unread records, once per shard: no position would show a second gap."""
        if shard.id in self._lost or self._committed[shard.id] >= len(shard.records):
            return
        self._lost.add(shard.id)
        heirs = [child for child in self.shards.values() if child.parent == shard.id and self.lists(child)]
        if shard.closed and heirs and self._calls.random() < 0.3:
            self.forget(shard.id)
        else:
            shard.trimmed = self._calls.randint(self._committed[shard.id] + 1, len(shard.records))

    def _move(self) -> None:
        if self.left:
            self.left -= 1
            kind = self._history.choices(list(self._moves), weights=list(self._moves.values()))[0]
            getattr(self, f"_{kind}")(self._history.choice(list(self._home)))

    def _tick(self) -> None:
        self._later = [(calls - 1, action) for calls, action in self._later]
        due = [action for calls, action in self._later if calls <= 0]
        self._later = [(calls, action) for calls, action in self._later if calls > 0]
        for action in due:
            action()

    # ------------------------------------------------------------------ the moves

    def _write(self, item: Item, *, delete: bool = False) -> None:
        before = self.truth[item][-1].version if self.truth[item] else None
        versions = sum(write.version is not None for write in self.truth[item])
        if delete and before is None:
            return
        shard = self._home[item]
        # The clocks of shards differ, and time passes unevenly.
        created = self._begun + self._sequence // 3 + self._skew[shard]
        name = {"eventName": "REMOVE"} if delete else {}
        sequence = self.put(shard, item[0], versions + 1, created=created, old=before, sort=item[1], **name)
        self.truth[item].append(Write(None if delete else versions + 1, before, shard, int(sequence)))

    def _delete(self, item: Item) -> None:
        self._write(item, delete=True)

    def _empty(self, item: Item) -> None:
        shard = self.shards[self._home[item]]
        end = len(shard.records)
        shard.empties[end] = shard.empties.get(end, 0) + self._history.randint(1, 6)

    def _split(self, item: Item) -> None:
        self.close(self._divide(item)[0])

    def _split_listed_late(self, item: Item) -> None:
        parent, children = self._divide(item)
        self.close(parent)
        self._hidden |= children
        self._later.append((self._history.randint(1, 60), lambda: self._hidden.difference_update(children)))

    def _split_closed_late(self, item: Item) -> None:
        """The children are listed and written to while the parent is listed as open."""
        parent, _ = self._divide(item)
        self._later.append((self._history.randint(1, 60), lambda: self.close(parent)))

    def _trim(self, item: Item) -> None:
        """Drop records that are known to be published."""
        for name, committed in self._committed.items():
            if name in self.shards and self._calls.random() < 0.5:
                shard = self.shards[name]
                shard.trimmed = max(shard.trimmed, committed)

    def _divide(self, item: Item) -> tuple[str, set[str]]:
        parent = self._home[item]
        children = [self._grow(parent) for _ in range(self._history.randint(1, 3))]
        for moved in [one for one, home in self._home.items() if home == parent]:
            self._home[moved] = self._history.choice(children)
        return parent, set(children)

    def _grow(self, parent: str | None) -> str:
        # Ids whose order is not that of their age.
        name = full(f"{len(self._skew) * 7919 % 10007:05d}")
        self.shard(name, parent)
        self._skew[name] = self._history.randint(-120, 120)
        return name

    # ------------------------------------------------------------------ the service

    def lists(self, shard: ScriptedShard) -> bool:
        return shard.id not in self._omitted and not self._is_hidden(shard)

    def _is_hidden(self, shard: ScriptedShard) -> bool:
        at: ScriptedShard | None = shard
        while at is not None:
            if at.id in self._hidden:
                return True
            at = self.shards.get(at.parent or "")
        return False


# ---------------------------------------------------------------------- what must be on the topic


@dataclass(frozen=True, slots=True)
class Seen:
    """One change on the topic, in the order of its partition."""

    item: Item
    version: int | None
    old: int | None
    partition: int
    timestamp: int
    event_id: str


@dataclass(frozen=True, slots=True)
class Loss:
    """One gap record: the shard's records after ``after`` may be lost. -1: all of them."""

    shard: str
    reason: str
    after: int


def problems(scenario: Scenario, seen: list[Seen], losses: list[Loss]) -> Iterator[str]:
    """Yield what is wrong: an item out of order, a change doubled, or missing without a gap (I1, I2, I3, I9)."""
    by_item: dict[Item, list[Seen]] = defaultdict(list)
    partitions: dict[str, set[int]] = defaultdict(set)
    for one in seen:
        by_item[one.item].append(one)
        partitions[one.item[0]].add(one.partition)
    for item in by_item.keys() - scenario.truth.keys():
        yield f"{item} is on the topic, but was never written"
    for key, where in partitions.items():
        if len(where) > 1:
            yield f"hash key {key} is in partitions {sorted(where)}"
    if len({one.event_id for one in seen}) != len(seen):
        yield "an event_id is there twice"
    missing: dict[str, list[int]] = defaultdict(list)
    for item, writes in scenario.truth.items():
        got = iter(by_item[item])
        following = next(got, None)
        for write in writes:
            if following is not None and (following.version, following.old) == (write.version, write.old):
                following = next(got, None)
            else:
                missing[write.shard].append(write.sequence)
        if following is not None:
            yield f"{item}: version {following.version} over {following.old} is doubled or out of order"
        times = [one.timestamp for one in by_item[item]]
        if times != sorted(times):
            yield f"{item}: the timestamps of its tokens go back: {times}"
    for shard, sequences in missing.items():
        for sequence in sequences:
            if not any(loss.shard == shard and loss.after < sequence for loss in losses):
                yield f"shard {shard}: {sequence} is missing and no gap reports it"
    for loss in losses:
        # A shard that is gone may have held more records.
        if loss.reason != "shard lost" and not any(sequence > loss.after for sequence in missing[loss.shard]):
            yield f"a gap without a loss: {loss}"
    told = [(loss.shard, loss.after) for loss in losses]
    if len(set(told)) != len(told):
        yield f"a gap is told twice: {sorted(told)}"


def _index_after(shard: ScriptedShard, sequence: int) -> int:
    return sum(int(record["dynamodb"]["SequenceNumber"]) <= sequence for record in shard.records)
