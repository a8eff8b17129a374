"""Helpers for tests of ``relay.dynamodb.Stream``: open it, read it to the head, look at the calls."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from relay.dynamodb import Record, Stream
from relay.dynamodb.stream_calls import StreamSession
from relay.dynamodb.stream_shard import StreamShard
from relay.stream_token import IteratorType, Position
from tests.clock import Clock
from tests.dynamodb.endpoint import ARN, ScriptedStream, full

NOON = 1_700_049_600  # a full hour


def opened(client: Any, position: Any = "trim_horizon", **options: Any) -> Stream:
    session = StreamSession(client, ARN, clock=options.pop("clock", None), sleep=lambda seconds: None)
    return Stream(session, ARN, position, **options)


def stream_shard(session: StreamSession, **options: Any) -> StreamShard:
    session.clock = options.pop("clock", time.time)
    session.sleep = options.pop("sleep", lambda seconds: None)
    return StreamShard(session, full("s"), **options)


def opened_shard(session: StreamSession, kind: IteratorType = "trim_horizon", **options: Any) -> StreamShard:
    shard = stream_shard(session, **options)
    jump_to(shard, kind)
    return shard


def jump_to(shard: StreamShard, kind: IteratorType, sequence: str | None = None) -> None:
    """Move to a position, and request an iterator there."""
    shard.move_to(Position(kind, sequence))
    shard.open()


def sequences(scripted: ScriptedStream, name: str = "s") -> list[str]:
    """The sequence numbers of a shard's records."""
    return [record["dynamodb"]["SequenceNumber"] for record in scripted.shards[full(name)].records]


def read(stream: Stream, count: int | None = None) -> list[Record]:
    """Read ``count`` records, or until there is none now."""
    records: list[Record] = []
    while count is None or len(records) < count:
        record = next(stream)
        if record is None:
            break
        records.append(record)
    return records


def versions(records: Iterable[Record]) -> list[int]:
    return [int(record["new"]["version"]["N"]) for record in records]


def short(name: str) -> str:
    """The short name that ``endpoint.full`` has extended."""
    return name.removeprefix("shardId-").lstrip("0") or "0"


def active(stream: Stream) -> list[str]:
    return [short(name) for name in stream.token["active"]]


def entries(stream: Stream) -> dict[str, dict[str, str]]:
    """The shards of the token, by their short names."""
    return {short(entry["shard_id"]): entry for entry in stream.token["shards"]}


def iterators(scripted: ScriptedStream) -> list[tuple[str, str]]:
    """The requested iterators: short shard names and types."""
    return [
        (short(request["ShardId"]), request["ShardIteratorType"])
        for request in scripted.requests
        if "ShardIteratorType" in request
    ]


def calls(scripted: ScriptedStream) -> tuple[int, int, int]:
    """The number of DescribeStream, GetShardIterator and GetRecords calls since the last look."""
    counts = [scripted.calls.count(name) for name in ("DescribeStream", "GetShardIterator", "GetRecords")]
    scripted.calls.clear()
    scripted.requests.clear()
    return counts[0], counts[1], counts[2]


def lineage(scripted: ScriptedStream, *edges: str) -> None:
    """Make shards: ``"0"`` alone, ``"0>1,2"`` split into two; a shard with children is closed."""
    for edge in edges:
        parent, _, children = edge.partition(">")
        if full(parent) not in scripted.shards:
            scripted.shard(parent)
        if children:
            scripted.split(parent, *children.split(","))


def read_to_its_end(client: Any, scripted: ScriptedStream, count: int, clock: Clock) -> Stream:
    """Make a closed shard ``s`` with ``count`` records and no child, and return a stream that has read it."""
    lineage(scripted, "s")
    scripted.pages("s", count)
    scripted.close("s")
    stream = opened(client, clock=clock)
    assert versions(read(stream)) == list(range(count))
    return stream


def token(active: Iterable[str], *shards: tuple[Any, ...]) -> dict[str, Any]:
    """A token. Shards: (name, parent or None, iterator type, sequence number or None)."""
    entries = []
    for name, parent, kind, sequence in shards:
        entry = {"shard_id": full(name)}
        if parent is not None:
            entry["parent"] = full(parent)
        if kind is not None:
            entry["iterator_type"] = kind
        if sequence is not None:
            entry["sequence_number"] = sequence
        entries.append(entry)
    return {"stream_arn": ARN, "active": [full(name) for name in active], "shards": entries}
