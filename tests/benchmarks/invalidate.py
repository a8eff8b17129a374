"""Invalidates keys in Redis from a topic, against a plain loop of pipelined compare-and-set.

The yardstick has finished keys and tokens in memory: it neither reads Kafka nor decodes anything. Each key is new to
Redis and comes once, so folding saves nothing.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import redis
import yaml
from confluent_kafka import Producer

from relay.avro.registry import TopicSchemas
from relay.cache import Invalidator, RedisStore
from relay.config import Config, load
from relay.demo.watching import BatchLog
from relay.kafka import topics
from relay.kafka.topic_writer import TopicWriter
from relay.services.kafka import KafkaBroker
from relay.services.redis import RedisServer
from relay.token import EventToken
from tests.benchmarks.changes import TABLE, change, finished
from tests.benchmarks.harness import Benchmark, median

BATCH = 50_000
CHANGES = 5 * BATCH
ROUNDS = 3
KEY = "order:{customer}:{order_id}"


def run(engine: str = "spark") -> Benchmark:
    with KafkaBroker() as broker, RedisServer() as server, tempfile.TemporaryDirectory() as folder:
        return _run(Path(folder), broker.bootstrap_servers, server.url, engine)


def _run(folder: Path, bootstrap_servers: str, url: str, engine: str) -> Benchmark:
    path = folder / "relay.yaml"
    path.write_text(yaml.safe_dump(_config(bootstrap_servers, url)))
    config = load(path)
    pairs = _fill(config)
    redis_client = redis.Redis.from_url(url)
    # Half of the yardstick's rounds run before, half after, so a drift of the machine shows in A/A.
    before = [_loop(url, pairs) for _ in range(ROUNDS + 1)][1:]
    figure, seen = _consume(folder, path, config, redis_client, engine)
    after = [_loop(url, pairs) for _ in range(ROUNDS)]
    redis_client.close()
    yardstick = median([*before, *after])
    return Benchmark(
        name="invalidate" if engine == "spark" else f"invalidate_{engine}",
        figure=figure,
        yardstick=yardstick,
        unit="rows/s",
        ratio=figure / yardstick,
        expected=CHANGES,
        seen=seen,
        aa=median(after) / median(before),
        note="new keys, the first batch not counted; the consumer, Redis and the broker share the cores",
    )


def _config(bootstrap_servers: str, url: str) -> dict[str, Any]:
    source = {"name": "orders", "type": "dynamodb", "table": "orders", "region": "us-east-1"}
    cache = {"url": url, "namespace": "spark", "keys": {"orders": [KEY]}}
    kafka = {"bootstrap_servers": bootstrap_servers, "partitions": 4}
    return {"name": "bench", "kafka": kafka, "sources": [source], "cache": cache}


def _fill(config: Config) -> list[tuple[str, EventToken | None]]:
    """Write the changes to the topic, and return their invalidations."""
    admin = topics.connect(config)
    topics.create_missing(admin, config, ["orders"])
    client = config.kafka.client()
    outbox = TopicWriter(
        TABLE, config.topic("orders"), config.kafka.partitions, "hash", TopicSchemas(client, config.internal("schemas"))
    )
    changes = [change(number) for number in range(CHANGES)]
    producer = Producer({**client, "enable.idempotence": True, "linger.ms": 50, "compression.type": "lz4"})
    for value, key, partition, headers in finished(outbox, changes):
        while True:
            try:
                producer.produce(outbox.topic, value, key, partition, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    return [(KEY.format(**one.key or {}), one.token) for one in changes]


def _loop(url: str, pairs: list[tuple[str, EventToken | None]]) -> float:
    """Invalidate all of ``pairs`` in a new namespace. Return rows/s."""
    store = RedisStore(url)
    invalidator = Invalidator(store, f"loop-{secrets.token_hex(4)}", tombstone_ttl=3600.0)
    begun = time.perf_counter()
    for at in range(0, len(pairs), BATCH):
        invalidator.apply(pairs[at : at + BATCH])
    rate = len(pairs) / (time.perf_counter() - begun)
    client = redis.Redis.from_url(url)
    client.flushdb()
    client.close()
    store.close()
    return rate


def _consume(folder: Path, path: Path, config: Config, client: Any, engine: str) -> tuple[float, int]:
    """Run the consumer to the end of the topic. Return rows/s after its first batch, and the keys in Redis."""
    log = folder / "cache.log"
    command = [sys.executable, "-m", "relay.cli", "consume", "cache", str(path), "--until-caught-up"]
    command += ["--checkpoint", str(folder / "checkpoint")] if engine == "spark" else ["--engine", engine]
    with log.open("wb") as out:
        subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=True)
    batches = BatchLog(log, config.topic("orders"))
    batches.refresh()
    (first, _), *rest = batches.times
    seconds = rest[-1][0] - first
    seen = sum(1 for _ in client.scan_iter("spark:order:*", count=10_000))
    client.flushdb()
    return sum(rows for _, rows in rest) / seconds, seen
