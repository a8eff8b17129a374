"""Turns pages of GetRecords into changes, against stock boto3 that only writes the images as JSON.

Our side makes everything that the relay makes of a record: key, both images, event id, token. The yardstick makes only
the images.
"""

from __future__ import annotations

import os
import random
import time
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from typing import Any

import orjson

from relay.change import Change
from relay.dynamodb.describe import TableCalls
from relay.dynamodb.records import RecordFormat
from relay.dynamodb.stream_calls import StreamSession
from relay.dynamodb.values import image_json
from relay.table import KeyColumn, TableSchema
from tests.benchmarks.harness import Benchmark, in_turn, median, pin
from tests.benchmarks.service import CREDENTIALS, serving, source, stock_client

PAGE = 1000
PAGES = 8
ROUNDS = 4
ARN = "arn:aws:dynamodb:us-east-1:000000000000:table/orders/stream/2026-01-01T00:00:00.000"
TABLE = TableSchema("orders", "orders", (KeyColumn("customer", "S"), KeyColumn("order_id", "N")), 1)

Images = list[tuple[str | None, str | None]]


def run() -> Benchmark:
    pin(os.getpid(), 0)
    os.environ |= {name.upper(): value for name, value in CREDENTIALS.items()}
    with serving(answer) as url:
        return _run(url)


def _run(url: str) -> Benchmark:
    streams = TableCalls(source(url, "orders")).streams
    session = StreamSession(streams, ARN)
    stock = stock_client("dynamodbstreams", url)
    record_format = RecordFormat(TABLE, "orders/2026-01-01T00:00:00.000/shardId-00000001700000000000-0123abcd")
    truth: Images = [
        (orjson.dumps(record["dynamodb"]["OldImage"]).decode(), orjson.dumps(record["dynamodb"]["NewImage"]).decode())
        for record in orjson.loads(page())["Records"]
    ]
    seen = 0

    def ours() -> float:
        nonlocal seen
        begun = time.perf_counter()
        changes: list[Sequence[Change]] = []
        for _ in range(PAGES):
            records, _following = session.records("iterator")
            block = record_format.block(records, 0)
            changes.append(block.changes if block else [record_format.change(record, 0) for record in records])
        taken = time.perf_counter() - begun
        seen += sum(_right(truth, [(change.old, change.new) for change in got]) for got in changes)
        return PAGE * PAGES / taken

    def plain() -> float:
        nonlocal seen
        begun = time.perf_counter()
        images = []
        for _ in range(PAGES):
            records = stock.get_records(ShardIterator="iterator", Limit=PAGE)["Records"]
            images.append(
                [
                    (image_json(record["dynamodb"]["OldImage"]), image_json(record["dynamodb"]["NewImage"]))
                    for record in records
                ]
            )
        taken = time.perf_counter() - begun
        seen += sum(_right(truth, list(got)) for got in images)
        return PAGE * PAGES / taken

    figures = in_turn(ROUNDS, {"ours": ours, "plain": plain, "again": plain})
    figure, yardstick, again = (median(figures[kind]) for kind in ("ours", "plain", "again"))
    return Benchmark(
        name="get_records",
        figure=figure,
        yardstick=yardstick,
        unit="records/s on one core",
        ratio=figure / yardstick,
        expected=PAGE * PAGES * (ROUNDS + 1) * 3,
        seen=seen,
        aa=again / yardstick,
        note=f"pages of {PAGE}, two images of {len(truth[0][1] or '')} bytes each, every image compared;"
        f" the endpoint on the other core; median of {ROUNDS}",
    )


def _right(truth: Images, got: Images) -> int:
    return sum(ours == true for ours, true in zip(got, truth, strict=True))


def answer(request: bytes) -> bytes:
    return page()


@cache
def page() -> bytes:
    """Return a full page of updates of items of about 500 bytes."""
    return orjson.dumps({"Records": [_record(number) for number in range(PAGE)], "NextShardIterator": "iterator"})


def _record(number: int) -> dict[str, Any]:
    chance = random.Random(number)
    key = {"customer": {"S": f"customer-{number:05}"}, "order_id": {"N": str(number)}}
    old, new = (
        key
        | {
            "version": {"N": str(version)},
            "total": {"N": f"{chance.randint(1, 10**9)}.25"},
            "note": {"S": "".join(chance.choices("abcdefghijklmnopqrstuvwxyz ", k=180))},
            "tags": {"SS": ["red", "green", "blue"]},
            "paid": {"BOOL": True},
            "address": {"M": {"street": {"S": "High Street"}, "number": {"N": "12"}, "lines": {"L": [{"S": "a"}]}}},
            "signature": {"B": b64encode(chance.randbytes(32)).decode()},
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
            "ApproximateCreationDateTime": 1_700_000_000.0 + number // 100,
            "Keys": key,
            "NewImage": new,
            "OldImage": old,
            "SequenceNumber": str(10**20 + number),
            "SizeBytes": 800,
            "StreamViewType": "NEW_AND_OLD_IMAGES",
        },
    }
