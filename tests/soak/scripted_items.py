"""The DynamoDB part: a scripted stream whose shards split and roll over while items are written to it.

Change *n* of an item has version *n*, and every eleventh deletes it. So a record is known by its item and its version,
and is made of them when it is read: a million changes take 20 MB.
"""

from __future__ import annotations

import random
import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self, cast

import boto3
import orjson
from botocore.config import Config as ClientConfig

from relay.cache import DynamoDBLoader, LoadedValue, Tokens
from tests.dynamodb.answering_server import Dropped, Refused
from tests.dynamodb.endpoint import TABLE, ScriptedShard, ScriptedStream, full
from tests.soak.part import Fault, Item

ITEMS = 300
MOST_LEAVES = 12

_DELETES_EVERY = 11
_FIRST_SEQUENCE = 10**20
_MOST_UNREAD = 30_000  # the writer waits for its readers: what lies in front of them is not what is tested
_SPLIT_EVERY = 4.0  # seconds, on average
_BURSTS = (1, 5, 40, 200, 1000, 5000)
_RECORD = (
    b'{"eventID":"e%d","eventName":"%b","eventVersion":"1.1","eventSource":"aws:dynamodb","awsRegion":"us-east-1",'
    b'"dynamodb":{"ApproximateCreationDateTime":%d,"Keys":{"id":{"S":"item-%d"}},%b%b"SequenceNumber":"%d",'
    b'"SizeBytes":100,"StreamViewType":"NEW_AND_OLD_IMAGES"}}'
)
_IMAGE = b'"%b":{"id":{"S":"item-%d"},"version":{"N":"%d"}},'


def exists_after(version: int) -> bool:
    """Whether there is an item after its change ``version``; 0 is before the first."""
    return version > 0 and version % _DELETES_EVERY != 0


class CompactRecords:
    """The records of a shard: number of the item, version, time, place in the stream."""

    def __init__(self) -> None:
        self.items = array("H")
        self.versions = array("I")
        self.times = array("I")
        self.places = array("Q")
        self.read = 0  # how many were handed out

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, which: slice) -> list[orjson.Fragment]:
        found = zip(self.items[which], self.versions[which], self.times[which], self.places[which], strict=True)
        return [orjson.Fragment(_record(*each)) for each in found]


def _record(item: int, version: int, at: int, place: int) -> bytes:
    is_there, was_there = exists_after(version), exists_after(version - 1)
    name = (b"MODIFY" if was_there else b"INSERT") if is_there else b"REMOVE"
    new = _IMAGE % (b"NewImage", item, version) if is_there else b""
    old = _IMAGE % (b"OldImage", item, version - 1) if was_there else b""
    return _RECORD % (place, name, at, item, new, old, _FIRST_SEQUENCE + place)


class CompactStream(ScriptedStream):
    """A scripted stream of any length, with consistent reads of the items as they are now."""

    def __init__(self) -> None:
        super().__init__(listing_page=25)
        self.versions = array("I", [0] * ITEMS)
        self.unread = 0
        self._place = 0

    def shard(self, name: str, parent: str | None = None) -> ScriptedShard:
        shard = super().shard(name, parent)
        shard.records = cast("list[dict[str, Any]]", CompactRecords())
        return shard

    def write(self, shard: str, items: Sequence[int]) -> None:
        """Change each of the items once more."""
        now = int(time.time())
        with self._lock:
            records = _records(self.shards[full(shard)])
            for item in items:
                self._place += 1
                self.versions[item] += 1
                records.items.append(item)
                records.versions.append(self.versions[item])
                records.times.append(now)
                records.places.append(self._place)
            self.unread += len(items)

    def answer(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            try:
                return super().answer(operation, request)
            finally:
                self.calls.clear()
                self.requests.clear()

    def _GetRecords(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = super()._GetRecords(request)
        name, at, _, _ = request["ShardIterator"].rsplit("|", 3)
        records = _records(self.shards[name])
        newly = max(0, int(at) + len(answer["Records"]) - records.read)
        records.read += newly
        self.unread -= newly
        return answer

    def _GetShardIterator(self, request: dict[str, Any]) -> dict[str, Any]:
        if "SequenceNumber" not in request:
            return super()._GetShardIterator(request)
        shard = self._shard(request["ShardId"])
        after = request["ShardIteratorType"] == "AFTER_SEQUENCE_NUMBER"
        first = int(request["SequenceNumber"]) + after - _FIRST_SEQUENCE
        return {"ShardIterator": self._iterator(shard, bisect_left(_records(shard).places, first), 0)}

    def _GetItem(self, request: dict[str, Any]) -> dict[str, Any]:
        assert request["ConsistentRead"]
        key = request["Key"]["id"]["S"]
        version = self.versions[int(key.removeprefix("item-"))]
        return {"Item": {"id": {"S": key}, "version": {"N": str(version)}}} if exists_after(version) else {}


def _records(shard: ScriptedShard) -> CompactRecords:
    return cast("CompactRecords", shard.records)


class SplittingWriter(threading.Thread):
    """Writes items while their shards split, as fast as they are read, and at most ``rate`` of them a second."""

    def __init__(self, stream: CompactStream, seed: int, rate: float) -> None:
        super().__init__(name="items", daemon=True)
        self.failure: BaseException | None = None
        self.shards = 1
        self._stream = stream
        self._rate = rate
        self._chance = random.Random(f"writer/{seed}")
        self._leaves: dict[str, list[int]] = {"root": list(range(ITEMS))}
        self._stopping = threading.Event()
        stream.shard("root")

    def stop(self) -> None:
        """End it. Raises what made it fail."""
        self._stopping.set()
        if self.ident is not None:
            self.join()
        if self.failure is not None:
            raise self.failure

    def run(self) -> None:
        chance = self._chance
        split_at = time.monotonic()
        try:
            while not self._stopping.is_set():
                shard = chance.choice(list(self._leaves))
                items = chance.choices(self._leaves[shard], k=chance.choice(_BURSTS))
                self._stream.write(shard, items)
                if time.monotonic() > split_at:
                    self._split()
                    split_at = time.monotonic() + chance.expovariate(1 / _SPLIT_EVERY)
                self._stopping.wait(max(chance.choice((0.0, 0.001, 0.02, 0.2)), len(items) / self._rate))
                while self._stream.unread > _MOST_UNREAD and not self._stopping.wait(0.02):
                    pass
        except BaseException as error:  # raised by stop()
            self.failure = error

    def _split(self) -> None:
        chance = self._chance
        shard = chance.choice([name for name, items in self._leaves.items() if len(items) > 1])
        items = self._leaves.pop(shard)
        chance.shuffle(items)
        # Shards also roll over into a single one, and do so once there are enough of them.
        rolls_over = len(self._leaves) >= MOST_LEAVES or chance.random() < 0.3
        cut = 0 if rolls_over else chance.randrange(1, len(items))
        parts = [part for part in (items[:cut], items[cut:]) if part]
        names = [f"s{self.shards + n}" for n in range(len(parts))]
        self.shards += len(parts)
        self._stream.split(shard, *names)
        self._leaves |= dict(zip(names, parts, strict=True))


class ScriptedItems:
    """The part that is a ``Part``: stream, writer, and what happens to them."""

    table = TABLE
    cache_key = "item:{id}"

    def __init__(self, seed: int, rate: float) -> None:
        self.items: Sequence[Item] = [f"item-{n}" for n in range(ITEMS)]
        self.gate: AbstractContextManager[Any] = nullcontext()
        self._chance = random.Random(f"items/{seed}")
        self._stream = CompactStream()
        self._writer = SplittingWriter(self._stream, seed, rate)
        self._client: Any = None
        self._loader: DynamoDBLoader | None = None

    def __enter__(self) -> Self:
        self._stream.__enter__()
        client = boto3.client(
            "dynamodb",
            endpoint_url=self._stream.url,
            region_name="us-east-1",
            config=ClientConfig(connect_timeout=30, read_timeout=30),
        )
        self._client = client
        self._loader = DynamoDBLoader(client, TABLE, lambda key: {"id": {"S": key.removeprefix("item:")}})
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()
        self._stream.__exit__(*error)

    def source(self) -> dict[str, Any]:
        endpoint = {"region": "us-east-1", "endpoint_url": self._stream.url}
        return {"name": "scripted", "type": "dynamodb", "table": TABLE, **endpoint}

    def start(self) -> None:
        self._writer.start()

    def stop(self) -> None:
        self._writer.stop()

    def written(self) -> int:
        return sum(self._stream.versions)

    # ------------------------------------------------------------------ faults

    def faults(self) -> list[Fault]:
        return [Fault("expire", 1, self._stream.expire_iterators), Fault("throttle", 1, self._throttle)]

    def _throttle(self) -> None:
        """Also make the pages as long as another day's."""
        share = self._chance.uniform(0.2, 1.0)
        chance = random.Random(self._chance.random())
        refusals = (Refused("ThrottlingException"), Refused("InternalServerError", 500), Dropped())

        def before(operation: str) -> None:
            if operation in ("GetRecords", "GetShardIterator", "DescribeStream") and chance.random() < share:
                raise chance.choice(refusals)

        self._stream.page = self._chance.choice((50, 300, 1000))
        self._stream.before = before
        threading.Timer(self._chance.uniform(0.5, 4.0), self.relent).start()

    def relent(self) -> None:
        self._stream.before = lambda operation: None

    # ------------------------------------------------------------------ the truth

    def history(self) -> Mapping[Item, Sequence[int]]:
        return {item: range(1, version + 1) for item, version in zip(self.items, self._stream.versions, strict=True)}

    def times(self) -> Mapping[tuple[Item, int], float]:
        found: dict[tuple[Item, int], float] = {}
        for shard in self._stream.shards.values():
            records = _records(shard)
            for item, version, at in zip(records.items, records.versions, records.times, strict=True):
                found[self.items[item], version] = float(at)
        return found

    def told(self, change: Mapping[str, Any]) -> tuple[Item, int]:
        item = change["key"]["id"]
        if change["new"] is None:
            return item, _version(change["old"]) + 1
        return item, _version(change["new"])

    def row(self, number: int) -> int | None:
        return number if exists_after(number) else None

    # ------------------------------------------------------------------ the application

    def key_of(self, item: Item) -> str:
        return f"item:{item}"

    def load(self, key: str, compare: Tokens | None) -> LoadedValue:
        assert self._loader is not None
        return self._loader.load(key, compare)

    def version_in(self, value: bytes) -> int:
        return _version(value)

    def item_in(self, row: Mapping[str, Any]) -> tuple[Item, int]:
        return row["id"], _version(row["item"])


def _version(image: str | bytes) -> int:
    return int(orjson.loads(image)["version"]["N"])
