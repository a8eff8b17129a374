"""A scripted DynamoDB Streams endpoint: the real JSON protocol over HTTP, so that boto3 runs unmodified.

It does what DynamoDB Local cannot be made to do: shards that split and close, pages, expiry, trims, throttles.
What happens is decided by the test, call by call; the clock is the record's own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self
from zlib import crc32

from tests.dynamodb.answering_server import AnsweringServer, Refused

LABEL = "2026-01-01T00:00:00.000"
TABLE = "scripted"


def arn(table: str, label: str = LABEL) -> str:
    return f"arn:aws:dynamodb:us-east-1:000000000000:table/{table}/stream/{label}"


ARN = arn(TABLE)


def full(name: str) -> str:
    """Return a short shard name in the form, and the length, of a real one."""
    return name if name.startswith("shardId-") else f"shardId-{name:0>27}"


@dataclass
class ScriptedShard:
    id: str
    parent: str | None
    records: list[dict[str, Any]] = field(default_factory=list)
    closed: bool = False
    listed: bool = True
    # Whether a listing shows that it is closed.
    shows_end: bool = True
    # How many of the first records are trimmed.
    trimmed: int = 0
    # Numbers of records after which a page ends, besides those of the page size.
    breaks: set[int] = field(default_factory=set)
    # How many empty pages follow, by number of records.
    empties: dict[int, int] = field(default_factory=dict)


class ScriptedStream:
    """One table with one stream, or several. ``with ScriptedStream() as stream: ... stream.url``."""

    def __init__(self, *, page: int = 1000, listing_page: int = 100, table: str = TABLE, label: str = LABEL) -> None:
        self.table, self.label, self.arn = table, label, arn(table, label)
        # Streams that the table had before and that can still be read.
        self.earlier: list[ScriptedStream] = []
        # When the table was created, in seconds since the epoch.
        self.table_created = 1_600_000_000
        self.shards: dict[str, ScriptedShard] = {}
        self._pages = (page, listing_page)
        self.page, self.listing_page = self._pages
        self.status = "ENABLED"
        self.view_type = "NEW_AND_OLD_IMAGES"
        # The sort key's name, if items have one. It is of type N.
        self.sort_key: str | None = None
        # Whether it accepts DescribeStream's ShardFilter.
        self.filters = True
        # The items as they are now, by key.
        self.items: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.requests: list[dict[str, Any]] = []
        # How many empty pages come before the records at a position that was not scripted, drawn when it is first read.
        self.draw_empties: Callable[[], int] | None = None
        # Called before each call is answered, with the operation; may raise Refused or Dropped.
        self.before: Callable[[str], None] = lambda operation: None
        self._epoch = 0
        self._sequence = 0
        self._lock = threading.RLock()
        self._server = AnsweringServer(self.answer)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    # ------------------------------------------------------------------ the script

    def set_clock(self, clock: float | Callable[[], float] | None) -> None:
        """Let the service have that clock, or be so many seconds ahead of this machine, or not say what time it is."""
        self._server.clock = clock if clock is None or callable(clock) else lambda: time.time() + clock

    def disabled(self, label: str) -> ScriptedStream:
        """Return a stream that the table had before, without shards. This one answers for it."""
        stream = ScriptedStream(page=self.page, listing_page=self.listing_page, table=self.table, label=label)
        stream._server.server_close()
        stream.status = "DISABLED"
        self.earlier.append(stream)
        return stream

    def clear(self) -> None:
        """Reset: no shards, no calls, no failures, the initial page sizes."""
        with self._lock:
            self.shards, self.items, self.calls, self.requests = {}, {}, [], []
            self.page, self.listing_page = self._pages
            self.status, self.view_type, self.filters = "ENABLED", "NEW_AND_OLD_IMAGES", True
            self.before = lambda operation: None
            self.draw_empties = None

    def shard(self, name: str, parent: str | None = None) -> ScriptedShard:
        with self._lock:
            shard = ScriptedShard(full(name), full(parent) if parent else None)
            self.shards[shard.id] = shard
            return shard

    def put(
        self,
        shard: str,
        key: str,
        version: int,
        *,
        created: int | None = None,
        old: int | None = None,
        sort: int | None = None,
        **more: Any,
    ) -> str:
        """Add the record of a write of item ``key``, made now unless given; return its sequence number."""
        with self._lock:
            self._sequence += 1
            sequence = str(10**20 + self._sequence)
            images = {}
            keys: dict[str, Any] = {"id": {"S": key}}
            if self.sort_key is not None:
                keys[self.sort_key] = {"N": str(sort)}
            if self.view_type in ("NEW_AND_OLD_IMAGES", "NEW_IMAGE") and more.get("eventName") != "REMOVE":
                images["NewImage"] = {**keys, "version": {"N": str(version)}}
            if self.view_type in ("NEW_AND_OLD_IMAGES", "OLD_IMAGE") and old is not None:
                images["OldImage"] = {**keys, "version": {"N": str(old)}}
            if more.get("eventName") == "REMOVE":
                self.items.pop(key, None)
            else:
                self.items[key] = {**keys, "version": {"N": str(version)}}
            self.shards[full(shard)].records.append(
                {
                    "eventID": f"e{self._sequence}",
                    "eventName": "INSERT" if old is None else "MODIFY",
                    "eventVersion": "1.1",
                    "eventSource": "aws:dynamodb",
                    "awsRegion": "us-east-1",
                    "dynamodb": {
                        "ApproximateCreationDateTime": created if created is not None else int(time.time()),
                        "Keys": keys,
                        **images,
                        "SequenceNumber": sequence,
                        "SizeBytes": 100,
                        "StreamViewType": self.view_type,
                    },
                    **more,
                }
            )
            return sequence

    def pages(self, shard: str, *sizes: int) -> None:
        """Add pages of these numbers of records, 0 for an empty page. Versions continue."""
        with self._lock:
            target = self.shards[full(shard)]
            for size in sizes:
                if not size:
                    end = len(target.records)
                    target.empties[end] = target.empties.get(end, 0) + 1
                for _ in range(size):
                    self.put(shard, "k", len(target.records))
                target.breaks.add(len(target.records))

    def close(self, shard: str) -> None:
        with self._lock:
            self.shards[full(shard)].closed = True

    def split(self, shard: str, *children: str) -> None:
        """Close ``shard`` and open ``children`` at once."""
        with self._lock:
            self.close(shard)
            for child in children:
                self.shard(child, shard)

    def trim(self, shard: str, records: int) -> None:
        with self._lock:
            self.shards[full(shard)].trimmed = records

    def forget(self, shard: str) -> None:
        """Remove ``shard``, as when all its records were trimmed."""
        with self._lock:
            del self.shards[full(shard)]

    def expire_iterators(self) -> None:
        with self._lock:
            self._epoch += 1

    def lists(self, shard: ScriptedShard) -> bool:
        """Whether a listing shows ``shard``."""
        return shard.listed

    def replace(self, label: str) -> None:
        """Disable the stream, which stays readable, and enable another one without shards."""
        with self._lock:
            before = self.disabled(self.label)
            before.shards, self.shards = self.shards, {}
            for shard in before.shards:
                before.close(shard)
            self.label, self.arn = label, arn(self.table, label)

    # ------------------------------------------------------------------ the service

    def answer(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self.calls.append(operation)
            self.requests.append(request)
            self.before(operation)
            return getattr(self._asked(request), f"_{operation}")(request)  # type: ignore[no-any-return]

    def _asked(self, request: dict[str, Any]) -> ScriptedStream:
        name = request.get("ShardIterator", "").partition("|")[0]
        return next((s for s in self.earlier if s.arn == request.get("StreamArn") or name in s.shards), self)

    def _ListStreams(self, request: dict[str, Any]) -> dict[str, Any]:
        streams = sorted((s for s in (self, *self.earlier) if s.table == request["TableName"]), key=lambda s: s.arn)
        after = [s for s in streams if s.arn > request.get("ExclusiveStartStreamArn", "")]
        page = after[: self.listing_page]
        answer: dict[str, Any] = {
            "Streams": [{"StreamArn": s.arn, "TableName": s.table, "StreamLabel": s.label} for s in page]
        }
        if len(after) > len(page):
            answer["LastEvaluatedStreamArn"] = page[-1].arn
        return answer

    def _DescribeTable(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["TableName"] != self.table:
            raise Refused("ResourceNotFoundException")
        return {
            "Table": {
                "TableName": self.table,
                "TableArn": self.arn.split("/stream/")[0],
                "TableStatus": "ACTIVE",
                "CreationDateTime": self.table_created,
                "ItemCount": len(self.items),
                "TableSizeBytes": 600 << 20,  # three segments
                "KeySchema": self._key_schema(),
                "AttributeDefinitions": [
                    {"AttributeName": "id", "AttributeType": "S"},
                    *([{"AttributeName": self.sort_key, "AttributeType": "N"}] if self.sort_key else []),
                ],
                "StreamSpecification": {"StreamEnabled": True, "StreamViewType": self.view_type},
                "LatestStreamArn": self.arn,
                "LatestStreamLabel": self.label,
            }
        }

    def _Scan(self, request: dict[str, Any]) -> dict[str, Any]:
        assert request["ConsistentRead"]
        after = request.get("ExclusiveStartKey", {}).get("id", {}).get("S", "")
        mine = [
            key for key in sorted(self.items) if crc32(key.encode()) % request["TotalSegments"] == request["Segment"]
        ]
        rest = [key for key in mine if key > after]
        page = rest[: self.page]
        answer: dict[str, Any] = {"Items": [self.items[key] for key in page], "Count": len(page)}
        if len(rest) > len(page):
            answer["LastEvaluatedKey"] = {"id": {"S": page[-1]}}
        return answer

    def _key_schema(self) -> list[dict[str, str]]:
        sort_key = [{"AttributeName": self.sort_key, "KeyType": "RANGE"}] if self.sort_key else []
        return [{"AttributeName": "id", "KeyType": "HASH"}, *sort_key]

    def _DescribeStream(self, request: dict[str, Any]) -> dict[str, Any]:
        shards = sorted((s for s in self.shards.values() if self.lists(s)), key=lambda s: s.id)
        if request["StreamArn"] != self.arn:
            raise Refused("ResourceNotFoundException")
        if "ShardFilter" in request:
            if not self.filters:
                raise Refused("ValidationException")
            shards = [s for s in shards if s.parent == request["ShardFilter"]["ShardId"]]
        after = request.get("ExclusiveStartShardId", "")
        rest = [s for s in shards if s.id > after]
        page = rest[: min(request.get("Limit", 100), self.listing_page)]
        description: dict[str, Any] = {
            "StreamArn": self.arn,
            "StreamLabel": self.label,
            "StreamStatus": self.status,
            "StreamViewType": self.view_type,
            "TableName": self.table,
            "KeySchema": self._key_schema(),
            "Shards": [
                {
                    "ShardId": s.id,
                    "SequenceNumberRange": {
                        "StartingSequenceNumber": "1",
                        **({"EndingSequenceNumber": str(10**21)} if s.closed and s.shows_end else {}),
                    },
                    **({"ParentShardId": s.parent} if s.parent else {}),
                }
                for s in page
            ],
        }
        if len(rest) > len(page):
            description["LastEvaluatedShardId"] = page[-1].id
        return {"StreamDescription": description}

    def _GetShardIterator(self, request: dict[str, Any]) -> dict[str, Any]:
        shard = self._shard(request["ShardId"])
        at = shard.trimmed
        if request["ShardIteratorType"] == "LATEST":
            if shard.closed:
                return {}
            at = len(shard.records)
        if "SequenceNumber" in request:
            after = request["ShardIteratorType"] == "AFTER_SEQUENCE_NUMBER"
            first = int(request["SequenceNumber"]) + after
            at = sum(int(r["dynamodb"]["SequenceNumber"]) < first for r in shard.records)
            if at < shard.trimmed:
                raise Refused("TrimmedDataAccessException")
        return {"ShardIterator": self._iterator(shard, at, 0)}

    def _GetRecords(self, request: dict[str, Any]) -> dict[str, Any]:
        name, at, empty, epoch = request["ShardIterator"].rsplit("|", 3)
        if int(epoch) < self._epoch:
            raise Refused("ExpiredIteratorException")
        shard = self._shard(name)
        begin, empties = int(at), int(empty)
        if begin < shard.trimmed:
            raise Refused("TrimmedDataAccessException")
        if self.draw_empties is not None and begin not in shard.empties:
            shard.empties[begin] = self.draw_empties()
        if empties < shard.empties.get(begin, 0):
            records, end, empties = [], begin, empties + 1
        else:
            end = begin + min(self.page, request.get("Limit", 1000))
            ends = [n for n in (*shard.breaks, *shard.empties) if begin < n < end]
            records = shard.records[begin : min([end, *ends])]
            # An empty page that was not scripted is the head: later records are read from there.
            end, empties = begin + len(records), 0 if records else empties
        answer: dict[str, Any] = {"Records": records}
        if not (shard.closed and end == len(shard.records) and empties >= shard.empties.get(end, 0)):
            answer["NextShardIterator"] = self._iterator(shard, end, empties)
        return answer

    def _shard(self, name: str) -> ScriptedShard:
        if name not in self.shards:
            raise Refused("ResourceNotFoundException")
        return self.shards[name]

    def _iterator(self, shard: ScriptedShard, at: int, empties: int) -> str:
        return f"{shard.id}|{at}|{empties}|{self._epoch}"
