"""Relays of a scripted DynamoDB stream: their config, their runs, and what they publish."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import orjson
import yaml

from relay.avro.registry import open_schemas
from relay.config import load
from tests.command_line import relay
from tests.dynamodb.endpoint import TABLE, ScriptedStream
from tests.faults.harness import Relay
from tests.topic_changes import read_changes

Histories = dict[str, list[int]]


class SplittingTable:
    """Items that are written while their shards split under them."""

    def __init__(self, stream: ScriptedStream, seed: int) -> None:
        self.stream = stream
        self.random = random.Random(seed)
        self.histories: Histories = defaultdict(list)
        self.leaves: dict[str, list[str]] = {"root": [f"item-{n}" for n in range(24)]}
        stream.shard("root")

    def write(self, times: int, created: int | None = None) -> None:
        """Write items. ``created``: when, in seconds since the epoch, if not now."""
        for _ in range(times):
            shard = self.random.choice(list(self.leaves))
            item = self.random.choice(self.leaves[shard])
            version = len(self.histories[item]) + 1
            self.stream.put(shard, item, version, created=created, old=version - 1 or None)
            self.histories[item].append(version)

    def split(self) -> None:
        shard = self.random.choice([s for s, items in self.leaves.items() if len(items) > 1])
        items = self.leaves.pop(shard)
        self.random.shuffle(items)
        cut = self.random.randint(1, len(items) - 1)
        left, right = f"{shard[-18:]}.0", f"{shard[-18:]}.1"
        self.stream.split(shard, left, right)
        self.leaves |= {left: items[:cut], right: items[cut:]}


def write_config(
    folder: Path,
    stream: ScriptedStream,
    bootstrap_servers: str,
    name: str,
    *,
    transaction_timeout: int = 2000,
    **source: Any,
) -> Path:
    """Write a config. ``transaction_timeout``: in milliseconds. ``source``: more keys of its source."""
    path = folder / "relay.yaml"
    entry = {"name": "s", "type": "dynamodb", "table": TABLE, "region": "us-east-1", "endpoint_url": stream.url}
    kafka = {"bootstrap_servers": bootstrap_servers, "producer": {"transaction.timeout.ms": transaction_timeout}}
    path.write_text(yaml.safe_dump({"name": name, "kafka": kafka, "sources": [{**entry, **source}]}))
    return path


def start_relay(config: Path, *arguments: str) -> Relay:
    log = config.parent / f"relay-{time.monotonic_ns()}.log"
    return Relay([sys.executable, "-m", "relay.cli", "run", str(config), *arguments], log)


def published_versions(path: Path) -> tuple[Histories, Counter[str]]:
    """Return the versions per item in topic order, and how often each event id occurs."""
    config = load(path)
    histories: Histories = defaultdict(list)
    ids: Counter[str] = Counter()
    changes = read_changes(config.kafka.client(), config.topic(TABLE), open_schemas(config))
    for _, _, change in sorted(changes, key=lambda found: found[:2]):
        histories[change["key"]["id"]].append(int(orjson.loads(change["new"])["version"]["N"]))
        ids[change["event_id"]] += 1
    return histories, ids


def tail_topic(path: Path, topic: str) -> list[Any]:
    """Return what `relay tail` prints of all records on a topic."""
    result = relay("tail", path, topic, "--from-beginning", "--exit-at-end", "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    return [orjson.loads(line) for line in result.stdout.splitlines()]
