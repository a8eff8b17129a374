"""A stream of many shards, each with full pages made in advance, served by a separate process.

The table ``s64p3r1000`` has 64 shards of 3 pages each, of 1,000 records. A page has a megabyte, as DynamoDB counts it,
however few its records are. All shards are closed, so they can be read to the end.
"""

from __future__ import annotations

import random
import re
import time
from functools import cache
from typing import Any

import orjson

PAGE = 1000
MEGABYTE = 1_000_000
LABEL = "2026-01-01T00:00:00.000"
_SEQUENCE = b"1000SSSSPPPP"  # in the template; replaced by a unique number for each page of each shard
_KEY_SCHEMA = [{"AttributeName": "customer", "KeyType": "HASH"}, {"AttributeName": "order_id", "KeyType": "RANGE"}]
_begun = 0.0


def table(shards: int, pages: int, records: int = PAGE) -> str:
    return f"s{shards}p{pages}r{records}"


def stream_arn(table: str) -> str:
    return f"arn:aws:dynamodb:us-east-1:000000000000:table/{table}/stream/{LABEL}"


def answer(request: bytes) -> bytes:
    """Answer the API's calls, which the request's fields tell apart, and two of the benchmarks.

    ``Prepare`` makes the pages of a table, ``Begun`` returns when the first page was read.
    """
    global _begun
    asked = orjson.loads(request)
    if "ShardIterator" in asked:
        _begun = _begun or time.monotonic()
        return _page(*map(int, asked["ShardIterator"].split("|")))
    if "ShardIteratorType" in asked:
        _, pages, records = _size(asked["StreamArn"].split("/")[1])
        after = asked.get("SequenceNumber")
        page = int(after[8:12]) + 1 if after else 0
        return orjson.dumps({"ShardIterator": f"{int(asked['ShardId'][-4:])}|{page}|{pages}|{records}"})
    if "Prepare" in asked:
        shards, pages, records = _size(asked["Prepare"])
        _page.cache_clear()
        for shard in range(shards):
            for page in range(pages):
                _page(shard, page, pages, records)
        _begun = 0.0
        return b"{}"
    if "Begun" in asked:
        return orjson.dumps(_begun)
    name = asked["TableName"] if "TableName" in asked else asked["StreamArn"].split("/")[1]
    return orjson.dumps(_table(name) if "TableName" in asked else _stream(name, asked))


def _size(name: str) -> tuple[int, int, int]:
    """Return the numbers of shards, of pages in a shard, and of records in a page."""
    match = re.fullmatch(r"s(\d+)p(\d+)r(\d+)", name)
    assert match is not None
    return int(match[1]), int(match[2]), int(match[3])


def _table(name: str) -> dict[str, Any]:
    """Return the answers of DescribeTable and ListStreams in one: the requests have the same fields."""
    return {
        "Streams": [{"StreamArn": stream_arn(name), "TableName": name, "StreamLabel": LABEL}],
        "Table": {
            "TableName": name,
            "TableArn": stream_arn(name).split("/stream/")[0],
            "TableStatus": "ACTIVE",
            "KeySchema": _KEY_SCHEMA,
            "AttributeDefinitions": [
                {"AttributeName": "customer", "AttributeType": "S"},
                {"AttributeName": "order_id", "AttributeType": "N"},
            ],
            "StreamSpecification": {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
            "LatestStreamArn": stream_arn(name),
            "LatestStreamLabel": LABEL,
        },
    }


def _stream(name: str, asked: dict[str, Any]) -> dict[str, Any]:
    after = asked.get("ExclusiveStartShardId", "")
    shards = [f"shardId-00000001700000000000-{number:04}" for number in range(_size(name)[0])]
    sequences = {"StartingSequenceNumber": "1", "EndingSequenceNumber": "2"}
    return {
        "StreamDescription": {
            "StreamArn": stream_arn(name),
            "StreamLabel": LABEL,
            "StreamStatus": "ENABLED",
            "StreamViewType": "NEW_AND_OLD_IMAGES",
            "TableName": name,
            "KeySchema": _KEY_SCHEMA,
            "Shards": [{"ShardId": id, "SequenceNumberRange": sequences} for id in shards if id > after],
        }
    }


@cache
def _page(shard: int, page: int, pages: int, records: int) -> bytes:
    body = _template(records).replace(_SEQUENCE, f"1000{shard:04}{page:04}".encode())
    following = f',"NextShardIterator":"{shard}|{page + 1}|{pages}|{records}"' if page + 1 < pages else ""
    return body + following.encode() + b"}"


@cache
def _template(records: int) -> bytes:
    return orjson.dumps({"Records": [_record(number, MEGABYTE // records) for number in range(records)]})[:-1]


def _record(number: int, size: int) -> dict[str, Any]:
    """Return the update of an item with two images of ``size`` bytes together, as DynamoDB counts them."""
    chance = random.Random(number)
    key = {"customer": {"S": f"customer-{number % 50:02}-{_SEQUENCE.decode()}"}, "order_id": {"N": str(number + 1)}}
    old, new = (
        key
        | {
            "version": {"N": str(version)},
            "total": {"N": f"{chance.randint(1, 10**9)}.25"},
            "note": {"S": "".join(chance.choices("abcdefghijklmnopqrstuvwxyz ", k=180 + (size - 1000) // 2))},
            "tags": {"SS": ["red", "green", "blue"]},
            "paid": {"BOOL": True},
            "address": {"M": {"street": {"S": "High Street"}, "number": {"N": "12"}, "lines": {"L": [{"S": "a"}]}}},
        }
        for version in (1, 2)
    )
    return {
        "eventID": f"{number:032x}",
        "eventName": "MODIFY",
        "eventVersion": "1.1",
        "eventSource": "aws:dynamodb",
        "awsRegion": "us-east-1",
        "dynamodb": {
            "ApproximateCreationDateTime": 1_700_000_000 + number // 100,
            "Keys": key,
            "NewImage": new,
            "OldImage": old,
            "SequenceNumber": f"{_SEQUENCE.decode()}{number:09}",
            "SizeBytes": size,
            "StreamViewType": "NEW_AND_OLD_IMAGES",
        },
    }
