"""Random lineages, pages, expiries, clocks and tokens: per item no record is lost, repeated or out of order."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.dynamodb import Record, Stream
from relay.dynamodb.coordinator import DISCOVER_EVERY
from relay.dynamodb.stream_shard import StreamShard
from relay.records import Gap
from tests.clock import Clock
from tests.dynamodb.answering_server import Refused
from tests.dynamodb.direct import DirectClient
from tests.dynamodb.endpoint import ScriptedStream, full
from tests.dynamodb.reading import opened
from tests.examples import examples

ITEMS = 6
Move = tuple[str, int, int]
_KINDS = {
    "put": 10,
    "empty": 2,
    "split": 3,
    "hide": 1,
    "show": 1,
    "read": 8,
    "resume": 4,
    "keep": 2,
    "rewind": 1,
    "expire": 1,
    "beat": 1,
    "tick": 2,
    "trouble": 1,
    "latest_filter": 1,
}
MOVES = st.lists(
    st.tuples(
        st.sampled_from([kind for kind, weight in _KINDS.items() for _ in range(weight)]),
        st.integers(0, 11),
        st.integers(0, 11),
    ),
    min_size=20,
    max_size=100,
)


@dataclass
class World:
    """One stream that is written to, split and read by random moves."""

    scripted: ScriptedStream
    clock: Clock = field(default_factory=Clock)
    # The open shard of each item, and how often each was written.
    home: dict[int, str] = field(default_factory=dict)
    written: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(ITEMS), 0))
    # The records that were read, in order: item, version.
    seen: list[tuple[int, int]] = field(default_factory=list)
    # Tokens, each with the records that were read before it.
    kept: list[tuple[str, list[tuple[int, int]]]] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    shards: int = 0

    def __post_init__(self) -> None:
        self.scripted.clear()
        self.scripted.page, self.scripted.listing_page = 3, 4
        roots = [self._shard(None), self._shard(None)]
        for item in range(ITEMS):
            self.home[item] = roots[item % 2]
        self.stream = self._open("trim_horizon")

    def _shard(self, parent: str | None) -> str:
        # Ids whose order is not that of their age.
        name = f"{self.shards * 7919 % 1009:04d}"
        self.shards += 1
        shard = self.scripted.shard(name, parent)
        # A listing may end too early, but it never omits only a parent.
        shard.listed = parent is None or self.scripted.shards[full(parent)].listed
        return name

    def _open(self, position: Any) -> Stream:
        return opened(DirectClient(self.scripted), position, on_gap=self.gaps.append, clock=self.clock)

    def take(self, record: Record | None) -> None:
        if record is not None:
            self.seen.append((int(record["new"]["id"]["S"]), int(record["new"]["version"]["N"])))

    def do(self, move: Move) -> None:
        kind, a, b = move
        getattr(self, f"_{kind}")(a, b)

    def _put(self, a: int, b: int) -> None:
        item = a % ITEMS
        # Creation times go back and forth.
        self.scripted.put(self.home[item], str(item), self.written[item], created=1_700_000_000 + 7 * b)
        self.written[item] += 1

    def _empty(self, a: int, b: int) -> None:
        self.scripted.pages(self.home[a % ITEMS], *[0] * (1 + b // 2))

    def _split(self, a: int, b: int) -> None:
        parent = self.home[a % ITEMS]
        self.scripted.close(parent)
        children = [self._shard(parent) for _ in range(1 + b % 3)]
        for n, item in enumerate(sorted(item for item, home in self.home.items() if home == parent)):
            self.home[item] = children[n % len(children)]

    def _hide(self, a: int, b: int) -> None:
        """A child that is not listed yet."""
        parent = self.home[a % ITEMS]
        self._split(a, b)
        for shard in self.scripted.shards.values():
            shard.listed &= not (shard.parent or "").endswith(parent)

    def _show(self, a: int, b: int) -> None:
        for shard in self.scripted.shards.values():
            shard.listed = True

    def _read(self, a: int, b: int) -> None:
        for _ in range(a):
            self.take(next(self.stream))

    def _resume(self, a: int, b: int) -> None:
        self.stream = self._open(json.loads(json.dumps(self.stream.token)))

    def _keep(self, a: int, b: int) -> None:
        self.kept.append((json.dumps(self.stream.token), list(self.seen)))

    def _rewind(self, a: int, b: int) -> None:
        if self.kept:
            token, seen = self.kept[a % len(self.kept)]
            self.seen = list(seen)
            self.stream.move_to(json.loads(token))

    def _expire(self, a: int, b: int) -> None:
        self.scripted.expire_iterators()

    def _beat(self, a: int, b: int) -> None:
        self.stream.heartbeat()

    def _tick(self, a: int, b: int) -> None:
        self.clock.now += DISCOVER_EVERY * a / 6

    def _trouble(self, a: int, b: int) -> None:
        left = a

        def fail(operation: str) -> None:
            nonlocal left
            if left > 0:
                left -= 1
                raise Refused("ThrottlingException")

        self.scripted.before = fail
        self._read(b, 0)
        self.scripted.before = lambda operation: None

    def _latest_filter(self, a: int, b: int) -> None:
        self.scripted.filters = not self.scripted.filters

    def settle(self) -> None:
        self._show(0, 0)
        # A shard that seems to be at its head gets one call per round, and may have every empty page that was made.
        empties = sum(sum(shard.empties.values()) for shard in self.scripted.shards.values())
        for _ in range(4 * self.shards + empties):
            self.clock.now += DISCOVER_EVERY
            while (record := next(self.stream)) is not None:
                self.take(record)
            if len(self.seen) >= sum(self.written.values()):
                break
        while (record := next(self.stream)) is not None:
            self.take(record)

    def check(self) -> None:
        per_item: dict[int, list[int]] = defaultdict(list)
        for item, version in self.seen:
            per_item[item].append(version)
        assert {item: per_item[item] for item in self.written} == {
            item: list(range(count)) for item, count in self.written.items()
        }
        assert {gap.reason for gap in self.gaps} <= {"expired"}


def play(scripted: ScriptedStream, moves: list[Move]) -> None:
    world = World(scripted)
    for move in moves:
        # A call is given up after eight failures in a row.
        world.do((move[0], min(move[1], 7), move[2]) if move[0] == "trouble" else move)
    world.settle()
    world.check()


@settings(max_examples=examples(300), deadline=None)
@given(MOVES)
def test_every_item_is_read_once_and_in_order_whatever_happens(moves: list[Move]) -> None:
    """I1, I2: tokens taken anywhere, resumed anywhere, and gone back to."""
    play(_scripted(), moves)


_SPLIT_AND_RESUME: list[Move] = [
    *[("put", 0, 0)] * 5,
    ("split", 0, 1),
    *[("put", 0, 0)] * 3,
    ("beat", 0, 0),
    ("resume", 0, 0),
    *[("read", 1, 0), ("resume", 0, 0)] * 20,
]


def test_a_reader_that_starts_children_too_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: I2."""
    play(_scripted(), _SPLIT_AND_RESUME)
    monkeypatch.setattr(StreamShard, "drained", StreamShard.exhausted)
    with pytest.raises(AssertionError):
        play(_scripted(), _SPLIT_AND_RESUME)


def test_a_token_that_is_ahead_of_the_records_handed_out_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: I1, I4."""
    next_page = StreamShard.next_page

    def ahead(self: StreamShard) -> list[Record]:
        records = next_page(self)
        if records:
            self.mark_delivered(records[-1])
        return records

    monkeypatch.setattr(StreamShard, "next_page", ahead)
    with pytest.raises(AssertionError):
        play(_scripted(), _SPLIT_AND_RESUME)


def _scripted() -> ScriptedStream:
    scripted = ScriptedStream()
    scripted._server.server_close()  # nobody connects to it
    return scripted
