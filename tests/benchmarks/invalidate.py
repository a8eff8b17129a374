"""Invalidates keys in Redis from a topic, against a plain loop of pipelined compare-and-set.

The yardstick has finished keys and tokens in memory: it neither reads Kafka nor decodes anything. Each key is new to
Redis and comes once, so folding saves nothing.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import redis
import yaml
from confluent_kafka import Producer

from relay.avro.topic_schemas import TopicSchemas
from relay.cache import Invalidator, RedisStore
from relay.config import Config, load
from relay.demo.watching import BatchLog
from relay.errors import RelayError
from relay.kafka import topics
from relay.kafka.topic_writer import TopicWriter
from relay.services.redis import RedisServer
from relay.token import EventToken
from tests.benchmarks.changes import TABLE, change, finished
from tests.benchmarks.harness import Benchmark, median
from tests.services.brokers import OptimisedBroker

BATCH = 50_000
CHANGES = 5 * BATCH
ROUNDS = 3
_LOOK = 0.02  # seconds
KEY = "order:{customer}:{order_id}"


def run(engine: str = "spark") -> Benchmark:
    with OptimisedBroker() as broker, RedisServer() as server, tempfile.TemporaryDirectory() as folder:
        return _run(Path(folder), broker.bootstrap_servers, server.url, engine)


class _Cost(NamedTuple):
    """What a row takes, in microseconds: of the clock, of the CPU of a process with its children, and of Redis's."""

    clock: float
    cpu: float
    redis: float


def _run(folder: Path, bootstrap_servers: str, url: str, engine: str) -> Benchmark:
    path = folder / "relay.yaml"
    path.write_text(yaml.safe_dump(_config(bootstrap_servers, url)))
    config = load(path)
    pairs = _fill(config)
    client = redis.Redis.from_url(url, socket_timeout=60)  # a flush of so many keys takes seconds on a busy machine
    _loop(url, client, pairs)
    loops, consumers, seen = [_loop(url, client, pairs)], [], 0
    for number in range(ROUNDS):
        cost, keys = _consume(folder, path, config, client, engine, number)
        consumers.append(cost)
        seen += keys
        loops.append(_loop(url, client, pairs))
    floor = ""
    if engine == "spark":
        cost, _ = _consume(folder, path, config, client, "handover", ROUNDS)
        floor = f", a consumer on Spark that drops what it is handed {cost.cpu:.1f}"
    client.close()
    figure, yardstick = median([each.clock for each in consumers]), median([each.clock for each in loops])
    return Benchmark(
        name="invalidate" if engine == "spark" else f"invalidate_{engine}",
        figure=1e6 / figure,
        yardstick=1e6 / yardstick,
        unit="rows/s",
        ratio=yardstick / figure,
        expected=ROUNDS * CHANGES,
        seen=seen,
        aa=median([each.clock for each in loops[::2]]) / median([each.clock for each in loops[1::2]]),
        note=(
            f"CPU us a row: consumer {_cpu(consumers)}, loop {_cpu(loops)}{floor}; new keys, the first batch not "
            "counted; the consumer, Redis and the broker share the cores"
        ),
    )


def _cpu(costs: list[_Cost]) -> str:
    return f"{median([each.cpu for each in costs]):.1f} + {median([each.redis for each in costs]):.1f} of Redis"


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


def _loop(url: str, client: Any, pairs: list[tuple[str, EventToken | None]]) -> _Cost:
    """Invalidate all of ``pairs`` in a new namespace."""
    store = RedisStore(url)
    invalidator = Invalidator(store, f"loop-{secrets.token_hex(4)}", tombstone_ttl=3600.0)
    begun, cpu, of_redis = time.perf_counter(), time.process_time(), _redis_seconds(client)
    for at in range(0, len(pairs), BATCH):
        invalidator.apply(pairs[at : at + BATCH])
    seconds = time.perf_counter() - begun, time.process_time() - cpu, _redis_seconds(client) - of_redis
    client.flushdb()
    store.close()
    return _Cost(*(1e6 * each / len(pairs) for each in seconds))


def _consume(folder: Path, path: Path, config: Config, client: Any, engine: str, number: int) -> tuple[_Cost, int]:
    """Run the consumer to the end of the topic. Return what a row took after the first batch, and the keys in Redis."""
    log = folder / f"cache-{number}.log"
    checkpoint = str(folder / f"checkpoint-{number}")
    command = [sys.executable, "-m", "relay.cli", "consume", "cache", str(path), "--until-caught-up"]
    command += ["--checkpoint", checkpoint] if engine == "spark" else ["--engine", engine]
    if engine == "handover":
        command = [sys.executable, "-m", "tests.benchmarks.noop_consumer", str(path), checkpoint, "--handover"]
    batches = BatchLog(log, config.topic("orders"))
    used: dict[int, tuple[float, float]] = {}  # the CPU seconds of the consumer and of Redis, by batches applied
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as process:
        while process.poll() is None:
            if (applied := len(batches.refresh().times)) not in used:
                used[applied] = tree_seconds(process.pid), _redis_seconds(client)
            time.sleep(_LOOK)
    if process.returncode:
        raise RelayError(f"the consumer ended with {process.returncode}: {log.read_text()[-2000:]}")
    seen = sum(1 for _ in client.scan_iter("spark:order:*", count=10_000))
    client.flushdb()
    if engine != "handover":
        admin = topics.connect(config)
        for group in admin.delete_consumer_groups([f"{config.name}.cache"]).values():
            group.result()
    # Only what was looked at in time; the last look may miss the end.
    numbers = sorted(n for n in used if n)
    first, last = numbers[0], numbers[-1]
    times = batches.refresh().times
    rows = sum(rows for _, rows in times[first:])
    looked = sum(rows for _, rows in times[first:last])
    clock = (times[-1][0] - times[first - 1][0]) / rows
    cpu, of_redis = ((b - a) / looked for a, b in zip(used[first], used[last], strict=True))
    return _Cost(1e6 * clock, 1e6 * cpu, 1e6 * of_redis), seen


def _redis_seconds(client: Any) -> float:
    used = client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


def tree_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and of what it started, as far as it still runs."""
    ticks = 0
    parents = {int(each): _stat(int(each)) for each in os.listdir("/proc") if each.isdigit()}
    wanted = [pid]
    for process in wanted:
        wanted += [child for child, stat in parents.items() if stat and int(stat[1]) == process]
        if stat := parents.get(process):
            ticks += int(stat[11]) + int(stat[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the state on; none if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
