"""Reading a shard of a real server to its head, and what was read, in short."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from relay.change import Change
from relay.config import MySQLConfig
from relay.lineage import Checkpoint, Shard, ShardState
from relay.mysql.source import MySQLSource
from relay.services.server import EmbeddedServer
from relay.services.sql_server import PASSWORD, USER
from relay.source import Page, ShardReader

PATIENCE = 30.0  # seconds


def config(database: str, shards: Mapping[str, Sequence[str]], **settings: Any) -> MySQLConfig:
    return MySQLConfig.model_validate(
        {
            "name": "shop",
            "type": "mysql",
            "database": database,
            "user": USER,
            "password": PASSWORD,
            "shards": {name: list(servers) for name, servers in shards.items()},
            **settings,
        }
    )


def source_of(database: str, *servers: EmbeddedServer, **settings: Any) -> MySQLSource:
    """A connected source of one unsharded database."""
    source = MySQLSource(config(database, {"-": [server.address for server in servers]}, **settings))
    source.connect()
    return source


def begin(source: MySQLSource) -> Mapping[str, Mapping[str, Any]]:
    return source.begin(source.shards(), time.time()).shards


def open_at(
    source: MySQLSource,
    position: Mapping[str, Any],
    shard: Shard | None = None,
    parents: Mapping[str, Checkpoint] | None = None,
    floor: int = 0,
) -> ShardReader:
    shard = shard or source.shards()[0]
    return source.open(shard, position, None, floor, 0.0, parents or {})


def resume(source: MySQLSource, position: Mapping[str, Any], shard: Shard | None = None) -> ShardReader:
    checkpoint = Checkpoint(ShardState.READING, dict(position))
    return source.open(shard or source.shards()[0], {}, checkpoint, 0, 0.0, {})


def read_until(
    reader: ShardReader, done: Callable[[list[Change]], bool], *, passing: bool = False
) -> tuple[list[Change], list[Page]]:
    """Read until ``done`` of the changes so far. ``passing``: go on when nothing can be read for now."""
    changes: list[Change] = []
    pages: list[Page] = []
    deadline = time.monotonic() + PATIENCE
    while not done(changes):
        page = reader.read()
        assert passing or page.failed is None, page.failed
        pages.append(page)
        changes += page.changes
        assert time.monotonic() < deadline, f"only {len(changes)} changes: {short(changes[-3:])}, {pages[-1].failed}"
        if page.failed:
            time.sleep(0.1)
    return changes, pages


def read_to_head(reader: ShardReader, *, passing: bool = False) -> tuple[list[Change], list[Page]]:
    """Read all that was committed before the call."""
    asked = time.time()
    pages: list[Page] = []

    def done(_: list[Change]) -> bool:
        return any(page.reached is not None and page.reached >= asked for page in pages)

    changes: list[Change] = []
    deadline = time.monotonic() + PATIENCE
    while not done(changes):
        page = reader.read()
        assert passing or page.failed is None, page.failed
        pages.append(page)
        changes += page.changes
        assert time.monotonic() < deadline, f"not at the head: {pages[-1].failed}"
        if page.failed:
            time.sleep(0.1)
    return changes, pages


def short(changes: Iterable[Change]) -> list[tuple[str, Any, Any]]:
    """Operation, first column of the key, and the value of ``v`` after the change, of each."""
    found = []
    for change in changes:
        key = next(iter(change.key.values())) if change.key else None
        found.append((change.operation.value, key, (change.new or {}).get("v")))
    return found


def ids(changes: Iterable[Change]) -> list[str]:
    return [change.event_id for change in changes]
