"""Loads 100,000 keys, each given four times, against a plain loop over distinct keys.

The yardstick calls boto3's batch_get_item for the distinct keys in chunks of 100, and collects the items in a list.
The growth is the CPU time for all keys divided by that for a tenth of them: 10 is linear.
"""

from __future__ import annotations

import os
import time
from typing import Any

import orjson

from relay.dynamodb import batch_load
from tests.benchmarks.harness import Benchmark, in_turn, median, pin
from tests.benchmarks.service import serving, stock_client

KEYS = 100_000
EACH = 4
DISTINCT = KEYS // EACH
ROUNDS = 4
MISSING = 10
"""Every tenth key has no item."""


def run() -> Benchmark:
    pin(os.getpid(), 0)
    with serving(answer) as url:
        return _run(stock_client("dynamodb", url))


def _run(client: Any) -> Benchmark:
    distinct = [key(number) for number in range(DISTINCT)]
    # Not shuffled, or the growth would be that of the CPU's cache misses.
    given = [key(number) for _ in range(EACH) for number in range(DISTINCT)]
    few = [key(number) for _ in range(EACH) for number in range(DISTINCT // 10)]
    found = sum(number % MISSING != 0 for number in range(DISTINCT))
    seen = 0
    taken: dict[str, list[float]] = {"all": [], "tenth": []}

    def ours() -> float:
        nonlocal seen
        begun, worked = time.perf_counter(), time.process_time()
        loaded = batch_load(client, {"orders": given})
        elapsed = time.perf_counter() - begun
        taken["all"].append(time.process_time() - worked)
        seen += len({item["order_id"]["N"] for item in loaded.items["orders"]}) + len(loaded.missing["orders"])
        return DISTINCT / elapsed

    def plain() -> float:
        nonlocal seen
        begun = time.perf_counter()
        items = []
        for at in range(0, DISTINCT, 100):
            answered = client.batch_get_item(RequestItems={"orders": {"Keys": distinct[at : at + 100]}})
            items += answered["Responses"]["orders"]
        elapsed = time.perf_counter() - begun
        seen += len({item["order_id"]["N"] for item in items})
        return DISTINCT / elapsed

    def a_tenth() -> float:
        worked = time.process_time()
        batch_load(client, {"orders": few})
        taken["tenth"].append(time.process_time() - worked)
        return taken["tenth"][-1]

    figures = in_turn(ROUNDS, {"ours": ours, "plain": plain, "again": plain, "tenth": a_tenth})
    figure, yardstick, again = (median(figures[kind]) for kind in ("ours", "plain", "again"))
    grown = median(taken["all"][1:]) / median(taken["tenth"][1:])
    return Benchmark(
        name="batch_load",
        figure=figure,
        yardstick=yardstick,
        unit="distinct keys/s on one core",
        ratio=figure / yardstick,
        expected=(DISTINCT + 2 * found) * (ROUNDS + 1),
        seen=seen,
        aa=again / yardstick,
        note=f"{KEYS} keys given, each {EACH} times; ten times the keys take {grown:.1f} times the processor;"
        f" the endpoint on the other core; median of {ROUNDS}",
    )


def key(number: int) -> dict[str, Any]:
    return {"customer": {"S": f"customer-{number % 5000:05}"}, "order_id": {"N": str(number)}}


def answer(request: bytes) -> bytes:
    """Answer BatchGetItem with items of about 300 bytes."""
    asked = orjson.loads(request)["RequestItems"]["orders"]["Keys"]
    items = [
        one | {"version": {"N": "7"}, "note": {"S": "n" * 180}, "tags": {"SS": ["red", "green"]}}
        for one in asked
        if int(one["order_id"]["N"]) % MISSING
    ]
    return orjson.dumps({"Responses": {"orders": items}, "UnprocessedKeys": {}})
