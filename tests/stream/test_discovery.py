"""When the shards of a stream are listed again."""

from __future__ import annotations

import time
from typing import Any, cast

from relay.records import CommittedRecords, CommittedStream, Lineage, ShardCheckpoint, ShardState
from relay.stream.discovery import ListedShards
from tests.clock import Clock
from tests.scripted_source import ScriptedSource


def wait_for_listing(discovery: ListedShards) -> None:
    discovery.poll()
    deadline = time.monotonic() + 60
    while not discovery.poll():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_both_listings_after_the_end_of_a_shard_come_soon_however_long_another_has_had_no_children() -> None:
    """I10: the change to the next stream, and ``--until-caught-up``, wait for both."""
    source, clock = ScriptedSource("orders", shards=2), Clock(100.0)
    stream = source.connect()
    committed = CommittedStream(CommittedRecords(), stream)
    ended = ShardCheckpoint(ShardState.FINISHED, updated_at=1.0)
    committed.view.apply(stream.shard_key("shard-00000"), ended.to_json())
    discovery = ListedShards(cast(Any, source), committed, Lineage(stream), monotonic=clock)
    for _ in range(10):
        wait_for_listing(discovery)
        clock.now = discovery.next_at
    wait_for_listing(discovery)
    assert discovery.next_at - clock.now == 60.0, "its stream may be disabled for long"
    discovery.soon()
    begun = clock.now
    for _ in range(2):
        clock.now = discovery.next_at
        wait_for_listing(discovery)
    assert clock.now - begun <= 5.0
