"""A scene whose changes go to a cache, a log and a copy, and what these hold in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from deltalake import DeltaTable, QueryBuilder

from relay.config import load
from relay.demo.workload import CACHE_KEY, HASH_KEY, RANGE_KEY, Item, version_in
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
    """Read copy and log with delta-rs: a Spark takes ten seconds of CPU for that."""
    config = load(scene.path)
    assert config.copy_ is not None
    assert config.log is not None
    copy = f"{config.copy_.url.removeprefix('delta://')}/{config.sources[0].name}/{scene.table}"
    columns = f'"{HASH_KEY}", "{RANGE_KEY}", "item"'
    rows = _selected(copy, f"SELECT {columns} FROM found WHERE NOT _relay_deleted")
    copied = {(customer, str(order)): version_in(item) for customer, order, item in rows}
    return copied, [event_id for (event_id,) in _selected(config.log.path, "SELECT event_id FROM found")]


def _selected(path: str, statement: str) -> list[tuple[Any, ...]]:
    query = QueryBuilder().register("found", DeltaTable(path.removeprefix("file://")))
    rows = query.execute(statement).read_all()
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
