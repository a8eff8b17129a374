"""Measures an idle worker with 1,000 open shards, against a boto3 loop that polls as often.

A figure is CPU seconds per second. Both poll a stream without changes. The note says how often the worker polls, which
bounds how late it sees a change.
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

SHARDS = 1000
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


def run() -> Benchmark:
    os.environ |= {name.upper(): value for name, value in CREDENTIALS.items()}
    with KafkaBroker() as broker, serving(answer, core=None) as url, tempfile.TemporaryDirectory() as folder:
        os.environ["RELAY_STATE"] = f"{folder}/state"
        ours, rate, seen = _relay(broker.bootstrap_servers, url, Path(folder))
        yardstick, again = _boto3(url, rate), _boto3(url, rate)
    return Benchmark(
        name="idle_cost",
        figure=ours,
        yardstick=yardstick,
        unit="CPU s/s",
        ratio=ours / yardstick,
        expected=SHARDS,
        seen=seen,
        aa=again / yardstick,
        note=f"{SHARDS} idle shards, {rate:.0f} GetRecords/s in all; yardstick a loop of boto3 that makes as many",
    )


def _relay(servers: str, url: str, folder: Path) -> tuple[float, float, int]:
    """Return CPU seconds per second, calls per second, and the number of shards being read."""
    name, source = f"bench-{secrets.token_hex(4)}", table(SHARDS, 1)
    entry = {"name": "s", "type": "dynamodb", "table": source, "region": "us-east-1", "endpoint_url": url}
    path = folder / "relay.yaml"
    path.write_text(yaml.safe_dump({"name": name, "kafka": {"bootstrap_servers": servers}, "sources": [entry]}))
    log = folder / "relay.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "relay.cli", "run", str(path)], stdout=out, stderr=subprocess.STDOUT
        )
    try:
        time.sleep(SETTLING)
        begun, used, calls = time.monotonic(), _cpu(process.pid), _asked(url)
        time.sleep(SECONDS)
        taken = time.monotonic() - begun
        used, calls = _cpu(process.pid) - used, _asked(url) - calls
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
    if code:
        raise RelayError(f"the relay ended with {code}: {log.read_text()[-2000:]}")
    return used / taken, calls / taken, log.read_text().count("reading shard")


def _boto3(url: str, rate: float) -> float:
    command = [sys.executable, "-c", YARDSTICK, url, "arn", str(rate), str(SECONDS / 2)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _asked(url: str) -> int:
    with urllib.request.urlopen(url, b'{"Calls":true}', timeout=60) as reply:
        return int(reply.read())


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
