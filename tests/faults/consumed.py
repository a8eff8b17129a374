"""A scene whose changes go to a cache, a log and a copy, and what these hold in the end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import yaml

from relay.demo.workload import CACHE_KEY, Item
from tests.faults.harness import Scene

CONSUMERS = ("cache", "log", "copy")


def add_consumers(scene: Scene, folder: Path, redis_url: str, namespace: str) -> None:
    """Write the cache, the log and the copy into the config of ``scene``."""
    raw = yaml.safe_load(scene.path.read_text())
    raw["cache"] = {"url": redis_url, "namespace": namespace, "keys": {scene.table: [CACHE_KEY]}}
    raw["log"] = {"path": f"file://{folder}/log"}
    raw["copy"] = {"url": f"delta://{folder}/copy"}
    scene.path.write_text(yaml.safe_dump(raw))


def read_back(scene: Scene) -> tuple[dict[Item, int], list[str]]:
    """Read copy and log in a process of their own: py4j leaves its sockets to the collector, which is a warning."""
    script = f"""
import json, pathlib, sys
from relay.config import load
from relay.demo.tables import read_copy, read_log, spark

config = load(pathlib.Path({str(scene.path)!r}))
with spark() as session:
    copied, logged = read_copy(session, config, {scene.table!r}), read_log(session, config)
json.dump([[[*item, version] for item, version in copied.items()], logged], sys.stdout)
"""
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=600, check=True)
    copied, logged = json.loads(answer.stdout)
    return {(customer, order): version for customer, order, version in copied}, logged
