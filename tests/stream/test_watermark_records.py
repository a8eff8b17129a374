"""Watermarks: when they are due, who writes them, and that nothing older comes after them (I1)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from relay.config import load
from relay.kafka.checkpoints import partition_of
from relay.records import ShardCheckpoint, ShardState, StreamId
from relay.stream.watermark_records import MARGIN, OVERALL, WatermarkRecords
from tests.clock import Clock
from tests.dynamodb.endpoint import ScriptedStream
from tests.faults.scripted_relay import SplittingTable, published_versions, start_relay, write_config
from tests.waiting import patience, wait_until

ORDERS, USERS = StreamId("orders", "l"), StreamId("users", "l")
ORDERS_KEY, USERS_KEY = b'["v1","orders","l"]', b'["v1","users","l"]'
ALL = set(range(64))


def reading(progress: float, state: ShardState = ShardState.READING) -> ShardCheckpoint:
    return ShardCheckpoint(state, progress=progress)


def test_a_shards_watermark_is_told_once_a_second_and_its_end_at_once() -> None:
    clock = Clock(1000.0)
    marks = WatermarkRecords(clock=clock, wall=lambda: 5000.0)
    first = marks.of_shard(ORDERS, "a", reading(10.5))
    assert first is not None
    assert orjson.loads(first[0]) == ["v1", "orders", "l", "a"]
    assert orjson.loads(first[1]) == {"watermark": 5.5, "finished": False, "updated_at": 5000.0}
    assert marks.of_shard(ORDERS, "a", reading(11.0)) is None
    ended = marks.of_shard(ORDERS, "a", reading(11.0, ShardState.FINISHED))
    assert ended is not None
    assert orjson.loads(ended[1])["finished"] is True
    assert marks.of_shard(ORDERS, "b", ShardCheckpoint(ShardState.PLANNED)) is None


def test_shards_that_other_workers_have_taken_over_are_forgotten() -> None:
    """I11: nobody says so, and none of them ends here."""
    clock = Clock(1000.0)
    marks = WatermarkRecords(clock=clock)
    for number in range(1000):
        assert marks.of_shard(ORDERS, str(number), reading(10.5))
    clock.now += 1.0
    assert list(marks.low(list, ALL)) == []
    assert len(marks._written_at) == 0


def test_the_overall_watermark_is_the_least_and_waits_until_each_is_known() -> None:
    clock = Clock(1000.0)
    marks = WatermarkRecords(clock=clock)

    def told(*streams: tuple[StreamId, float | None], owned: set[int] = ALL) -> dict[bytes, float]:
        clock.now += 1.0
        found = [*marks.low(lambda: streams, owned)]
        marks.committed()
        return {key: orjson.loads(value)["watermark"] + MARGIN for key, value in found}

    assert told((ORDERS, 20.0), (USERS, None)) == {ORDERS_KEY: 20.0}
    assert told((ORDERS, 25.0), (USERS, 5.0)) == {ORDERS_KEY: 25.0, USERS_KEY: 5.0, OVERALL: 5.0}
    assert told((ORDERS, 24.0), (USERS, 5.0)) == {}
    assert told((ORDERS, 30.0), (USERS, 31.0), owned={partition_of(OVERALL)}) == {OVERALL: 30.0}
    assert told((ORDERS, 30.0), (USERS, 31.0)) == {ORDERS_KEY: 30.0, USERS_KEY: 31.0}
    assert told((ORDERS, 30.0), (USERS, 31.0), owned=set()) == {}
    # I10: another worker may have written others meanwhile.
    assert told((ORDERS, 30.0), (USERS, 31.0)) == {ORDERS_KEY: 30.0, USERS_KEY: 31.0, OVERALL: 30.0}


@pytest.fixture
def stream() -> Iterator[ScriptedStream]:
    with ScriptedStream(page=7, listing_page=3) as scripted:
        yield scripted


@pytest.mark.services
def test_no_change_older_than_a_watermark_comes_after_it(
    tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str
) -> None:
    """I1: while shards split and are written to; each new watermark is held against the topic as it then is."""
    path = write_config(tmp_path, stream, kafka.bootstrap_servers, unique)
    table = SplittingTable(stream, seed=5)
    # By when which versions had been written.
    written: list[tuple[float, dict[str, int]]] = []
    relay = start_relay(path)
    marks = Marks(path)
    try:
        last, held = 0.0, 0
        deadline = time.monotonic() + patience(60)
        while held < 6 and time.monotonic() < deadline:
            table.write(10)
            written.append((time.time(), {item: len(versions) for item, versions in table.histories.items()}))
            if len(written) % 4 == 0 and len(table.leaves) < 5:
                table.split()
            time.sleep(0.3)
            if (mark := marks.overall()) <= last:
                continue
            last = mark
            histories, _ = published_versions(path)
            older = [versions for at, versions in written if at < int(mark)]
            assert all(len(histories[item]) >= n for versions in older for item, n in versions.items())
            held += bool(older)
        assert held == 6, relay.log()
    finally:
        relay.kill()
        marks.close()


class Marks:
    """Reads the watermarks as a consumer of them would."""

    def __init__(self, path: Path) -> None:
        config = load(path)
        self._consumer = Consumer(
            {**config.kafka.client(), "group.id": f"{config.name}.marks", "isolation.level": "read_committed"}
        )
        self._topic = config.internal("watermarks")
        wait_until(lambda: self._topic in self._consumer.list_topics(timeout=60).topics or None, 30)
        self._consumer.assign([TopicPartition(self._topic, 0, 0)])
        self._overall = 0.0

    def overall(self) -> float:
        """Return the greatest overall watermark so far."""
        while (message := self._consumer.poll(0.2)) is not None:
            error = message.error()
            assert error is None or error.code() == KafkaError._UNKNOWN_PARTITION, error
            if error is None and message.key() == OVERALL:
                self._overall = max(self._overall, orjson.loads(message.value() or b"")["watermark"])
        return self._overall

    def close(self) -> None:
        self._consumer.close()
