"""Streams that others have replaced are forgotten once long over, and what was forgotten is not read again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer

from relay.config import load
from relay.kafka.checkpoints import committed_records, partition_of
from relay.records import (
    PRUNE_AFTER,
    Plan,
    SegmentCheckpoint,
    Shard,
    ShardCheckpoint,
    ShardListing,
    ShardState,
    SnapshotControl,
    StreamId,
)
from relay.stream.pruning import unpruned
from tests.dynamodb.endpoint import LABEL, ScriptedStream, full
from tests.operating import Operated


def test_a_listed_shard_without_a_record_whose_child_was_begun_was_pruned() -> None:
    listed = [Shard("p"), Shard("c", ("p",)), Shard("q"), Shard("d", ("q",))]
    checkpoints = {
        "c": ShardCheckpoint(ShardState.READING, parents=("p",)),
        "d": ShardCheckpoint(ShardState.PLANNED, parents=("q",)),
    }
    assert [shard.id for shard in unpruned(listed, checkpoints)] == ["c", "q", "d"]
    assert unpruned(listed, {**checkpoints, "p": ShardCheckpoint(ShardState.FINISHED)}) == listed


@pytest.mark.parametrize(
    ("start", "kept"),
    [
        ({"type": "trim_horizon"}, ["p", "c"]),
        ({"since": 990.0}, ["p", "c"]),
        ({"type": "after_sequence", "sequence": "7"}, ["c"]),
        ({"type": "passed"}, ["c"]),
        (None, ["c"]),
    ],
)
def test_soon_after_the_plan_a_shard_that_no_listing_had_is_not_taken_for_one_that_was_pruned(
    start: dict[str, Any] | None, kept: list[str]
) -> None:
    """I1: but a token says that what comes before its shards was read."""
    listed = [Shard("p"), Shard("c", ("p",))]
    checkpoints = {"c": ShardCheckpoint(ShardState.READING, parents=("p",))}
    plan = Plan("trim_horizon", 1000.0, {"c": start} if start is not None else {}, {})
    assert [shard.id for shard in unpruned(listed, checkpoints, plan, 1000.0 + PRUNE_AFTER - 1)] == kept
    assert [shard.id for shard in unpruned(listed, checkpoints, plan, 1000.0 + PRUNE_AFTER)] == ["c"]


@pytest.mark.services
class TestOnKafka:
    @pytest.fixture
    def stream(self) -> Iterator[ScriptedStream]:
        with ScriptedStream() as scripted:
            scripted.shard("root")
            scripted.put("root", "k", 1)
            yield scripted

    @pytest.fixture
    def relay(self, tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str) -> Operated:
        return Operated(tmp_path, stream, kafka.bootstrap_servers, unique)

    def write(self, relay: Operated, records: Mapping[bytes, bytes | None]) -> None:
        config = load(relay.path)
        producer = Producer(config.kafka.client())
        for key, value in records.items():
            producer.produce(config.internal("checkpoints"), value, key, partition_of(key))
        assert producer.flush(30) == 0

    def known(self, relay: Operated) -> dict[str, set[str | None]]:
        """What is written down, by label: names of records, None for a plan."""
        config = load(relay.path)
        found: dict[str, set[str | None]] = {}
        for stream, each in committed_records(config).streams.items():
            names: set[str | None] = {*each.checkpoints, *each.segments}
            names |= {None} if each.plan else set()
            names |= {"listing"} if each.listing else set()
            names |= {"snapshot"} if each.control else set()
            if names:
                found.setdefault(stream.label, set()).update(names)
        return found

    def test_a_replaced_stream_is_forgotten_48_hours_after_its_end_and_not_read_again(
        self, relay: Operated, stream: ScriptedStream
    ) -> None:
        relay.run()
        current = self.known(relay)
        over, late = time.time() - PRUNE_AFTER - 60, time.time() - PRUNE_AFTER + 3600
        plan = Plan("trim_horizon", over, {full("root"): {"type": "trim_horizon"}}, {})
        old, recent, unfinished = (StreamId("s", f"202{n}-01-01T00:00:00.000") for n in (3, 4, 5))
        other = StreamId("another", old.label)
        ended = ShardCheckpoint(ShardState.FINISHED, updated_at=over)
        records = {stream.plan_key: plan.to_json() for stream in (old, recent, unfinished, other)}
        records |= {stream.shard_key("a"): ended.to_json() for stream in (old, recent, unfinished, other)}
        records[recent.shard_key("b")] = ShardCheckpoint(ShardState.GONE, updated_at=late).to_json()
        records[unfinished.shard_key("b")] = ShardCheckpoint(ShardState.READING, updated_at=over).to_json()
        records[old.snapshot_key] = SnapshotControl(ShardState.FINISHED, "1", updated_at=over).to_json()
        records[old.listing_key] = ShardListing(over, 0.5).to_json()
        records[old.segment_key("1/0")] = SegmentCheckpoint(ShardState.FINISHED, updated_at=over).to_json()
        self.write(relay, records)
        relay.run()
        kept = {recent.label: {"a", "b", None}, unfinished.label: {"a", "b", None}}
        # Another source's stream of the same label is not ours. The only proof of an initial snapshot stays.
        assert self.known(relay) == {**current, **kept, old.label: {"a", None, "snapshot"}}
        stream.put("root", "k", 2, old=1)
        relay.run()
        assert relay.versions() == [1, 2]
        assert {request["StreamArn"][-23:] for request in stream.requests if "StreamArn" in request} == {LABEL}

    def test_a_pruned_shard_that_is_listed_again_is_not_read_again(
        self, relay: Operated, stream: ScriptedStream
    ) -> None:
        """I3"""
        stream.split("root", "leaf")
        stream.put("leaf", "k", 2, old=1)
        relay.run()
        config, read = load(relay.path), StreamId("s", LABEL)
        made = committed_records(config).of(read).plan
        assert made is not None
        plan = replace(made, planned_at=time.time() - PRUNE_AFTER)
        self.write(relay, {read.plan_key: plan.to_json(), read.shard_key(full("root")): None})
        producer, watermark = Producer(config.kafka.client()), orjson.dumps(["v1", "s", LABEL, full("root")])
        producer.produce(config.internal("watermarks"), None, watermark)
        assert producer.flush(30) == 0
        stream.put("leaf", "k", 3, old=2)
        relay.run()
        assert relay.versions() == [1, 2, 3]
        assert [shard["shard"] for shard in relay.source()["shards"]] == [full("leaf")]
