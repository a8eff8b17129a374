"""What a worker's status says about the reads of its shards."""

from __future__ import annotations

import math
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

from relay.engine.status import polls, take
from relay.errors import ConfigError
from relay.observe.health import find_stalls
from relay.reading.reader_pool import ReaderPool
from relay.reading.set_aside import Refusal
from relay.records import CommittedRecords, Shard
from relay.source import ReadResult, Unreadable
from relay.stream.source_state import SourceState
from tests.clock import Clock
from tests.observe.known import WALL, source, status
from tests.scripted_source import CLAIMS, ScriptedSource
from tests.waiting import wait_until

SHARD = Shard("s")


class Throttled:
    """A reader whose reads fail once they ``may_end``."""

    shard, streams = SHARD, False

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.may_end.set()

    def read(self) -> ReadResult:
        assert self.may_end.wait(120)
        return Unreadable(SHARD, 0.0, "throttled")

    def close(self) -> None:
        """Nothing is open."""


def test_only_a_read_that_neither_ends_nor_fails_hangs() -> None:
    """I10: a restart may end that one, also if reads before it failed."""
    clock, reads = Clock(100.0), Throttled()
    pool = ReaderPool(clock=clock)
    reading = pool.open(reads, b"", cast(Any, None))
    wait_until(lambda: pool.take(0.0) or None, 30)
    for hangs in (False, True):
        clock.now += 400
        [stall] = find_stalls(status(source(open=polls({"s": reading}))), clock.now, clock.now, WALL)
        assert (stall.error, stall.hangs) == ("throttled", hangs)
        reads.may_end.clear()
        pool.again(reading, 0.0)
    reads.may_end.set()
    pool.close()


def taken(state: SourceState) -> tuple[Any, list[SourceState], Any]:
    view = SimpleNamespace(
        topic="t", freshness=SimpleNamespace(read_at={}), of_source=lambda _: [], altered_tables=lambda _: []
    )
    group = SimpleNamespace(group="g", joined=True, owned=(), gained=(), barrier_timeout=1.0, view=view)
    return group, [state], SimpleNamespace(differences=())


def test_the_tables_of_a_source_in_the_envelope_of_debezium_cannot_be_read_again() -> None:
    """Its page would show commands that the relay refuses, for ever."""
    source = ScriptedSource("orders")
    source.snapshots = cast(Any, SimpleNamespace(clock=time.time))
    state = SourceState(source, source.connect(), CommittedRecords(), ReaderPool(), CLAIMS)
    for debezium, again in ((set[str](), True), ({"orders"}, False)):
        [seen] = take(*taken(state), debezium=debezium).sources
        assert seen.has_snapshots is again


def test_a_source_that_is_not_tried_again_by_itself_says_what_to_do_after_a_repair() -> None:
    """I10: somebody who repairs only the source would wait for ever."""
    state = SourceState(one := ScriptedSource("orders"), one.connect(), CommittedRecords(), ReaderPool(), CLAIMS)
    absent = [Refusal(name, ConfigError("no such table"), 1.0, at) for name, at in (("a", 30.0), ("b", math.inf))]
    [tried, refused] = take(*taken(state), absent).absent
    assert tried == ("a", 1.0, "no such table")
    assert refused == ("b", 1.0, "no such table; after a repair, send SIGHUP or restart")


def test_what_is_by_a_wrong_clock_of_a_source_is_not_older_here() -> None:
    """I10: a database whose clock is an hour behind would make each of its listings look an hour old."""
    source = ScriptedSource("orders")
    source.clock = lambda: time.time() - 3600
    state = SourceState(source, source.connect(), CommittedRecords(), ReaderPool(), CLAIMS)
    [seen] = take(*taken(state)).sources
    assert abs(time.time() - seen.listing.wanted_at) < 60
    assert seen.listing.at == 0.0
    assert seen.held_up_since is None
