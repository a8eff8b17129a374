"""Measures an idle worker with 1 to 4,096 open shards, against a boto3 loop that polls as often.

A figure is CPU seconds per second. Both poll a stream without changes. The note says how often the worker polls, which
bounds how late it sees a change, how long it took from its start until it read all shards, and its memory.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import yaml

from relay.errors import RelayError
from relay.services.kafka import KafkaBroker
from tests.benchmarks.harness import Benchmark
from tests.benchmarks.service import CREDENTIALS, serving
from tests.benchmarks.stream_service import answer as backlog
from tests.benchmarks.stream_service import table

SHARDS = (1, 8, 64, 512, 1000, 4096)
STARTING = 300.0  # seconds until all shards are read, at most
SETTLING = 25.0
SECONDS = 30.0
YARDSTICK = """
import sys, time, resource, boto3
url, arn, rate, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
client = boto3.client("dynamodbstreams", endpoint_url=url, region_name="us-east-1")
client.get_records(ShardIterator="idle")
cpu = lambda: sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
begun, used, calls = time.monotonic(), cpu(), 0
while (now := time.monotonic() - begun) < seconds:
    if calls < now * rate:
        client.get_records(ShardIterator="idle")
        calls += 1
    else:
        time.sleep(0.001)
print((cpu() - used) / seconds)
"""
_calls = 0


def answer(request: bytes) -> bytes:
    """Answer for a stream whose shards are open and have no records. ``Calls`` returns the number of GetRecords."""
    global _calls
    asked: dict[str, Any] = orjson.loads(request)
    if "ShardIterator" in asked:
        _calls += 1
        return b'{"Records":[],"NextShardIterator":"idle"}'
    if "ShardIteratorType" in asked:
        return b'{"ShardIterator":"idle"}'
    if "Calls" in asked:
        return orjson.dumps(_calls)
    found = backlog(request)
    # No shard is closed.
    return re.sub(rb',"EndingSequenceNumber":"2"', b"", found)


def run() -> list[Benchmark]:
    os.environ |= {name.upper(): value for name, value in CREDENTIALS.items()}
    with KafkaBroker() as broker, serving(answer, core=None) as url, tempfile.TemporaryDirectory() as folder:
        os.environ["RELAY_STATE"] = f"{folder}/state"
        return [_benchmark(broker.bootstrap_servers, url, Path(folder), shards) for shards in SHARDS]


def _benchmark(servers: str, url: str, folder: Path, shards: int) -> Benchmark:
    ours = _relay(servers, url, folder, shards)
    yardstick, again = _boto3(url, ours.rate), _boto3(url, ours.rate)
    return Benchmark(
        name=f"idle_cost_{shards}",
        figure=ours.cpu,
        yardstick=yardstick,
        unit="CPU s/s",
        ratio=ours.cpu / yardstick,
        expected=shards,
        seen=ours.shards,
        aa=again / yardstick,
        note=f"{shards} idle shards, {ours.rate:.1f} GetRecords/s in all; all read {ours.start:.1f} s after the start; "
        f"{ours.memory:.0f} MB at its peak; yardstick a loop of boto3 that makes as many calls",
    )


@dataclass(frozen=True)
class Idle:
    """CPU seconds per second, calls per second, shards that are read, seconds until they were, megabytes."""

    cpu: float
    rate: float
    shards: int
    start: float
    memory: float


def _relay(servers: str, url: str, folder: Path, shards: int) -> Idle:
    name, source = f"bench-{secrets.token_hex(4)}", table(shards, 1)
    entry = {"name": "s", "type": "dynamodb", "table": source, "region": "us-east-1", "endpoint_url": url}
    path = folder / "relay.yaml"
    path.write_text(yaml.safe_dump({"name": name, "kafka": {"bootstrap_servers": servers}, "sources": [entry]}))
    log = folder / "relay.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "relay.cli", "run", str(path)], stdout=out, stderr=subprocess.STDOUT
        )
    try:
        started = time.monotonic()
        while (start := time.monotonic() - started) < STARTING and log.read_text().count("reading shard") < shards:
            time.sleep(0.1)
        time.sleep(SETTLING)
        begun, used, calls = time.monotonic(), _cpu(process.pid), _asked(url)
        time.sleep(SECONDS)
        taken = time.monotonic() - begun
        used, calls = _cpu(process.pid) - used, _asked(url) - calls
        memory = _peak(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
    if code:
        raise RelayError(f"the relay ended with {code}: {log.read_text()[-2000:]}")
    return Idle(used / taken, calls / taken, log.read_text().count("reading shard"), start, memory)


def _boto3(url: str, rate: float) -> float:
    command = [sys.executable, "-c", YARDSTICK, url, "arn", str(rate), str(SECONDS / 2)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _asked(url: str) -> int:
    with urllib.request.urlopen(url, b'{"Calls":true}', timeout=60) as reply:
        return int(reply.read())


def _peak(pid: int) -> float:
    """Return the peak of a process' memory in megabytes."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
