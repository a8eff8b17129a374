"""Opens shards of real servers, reads them to their head, and shows what was read in short form."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import pytest

from relay.change import Change
from relay.config import MySQLConfig
from relay.mysql.errors import NotCarried
from relay.mysql.source import MySQLSource
from relay.records import Shard, ShardCheckpoint, ShardState
from relay.services.mariadb import PASSWORD, USER
from relay.services.server import EmbeddedServer
from relay.source import Opening, Page, ShardReader

PATIENCE = 600.0  # seconds


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
    """Return a connected source of one unsharded database."""
    source = MySQLSource(config(database, {"-": [server.address for server in servers]}, **settings))
    source.connect()
    return source


def begin(source: MySQLSource) -> Mapping[str, Mapping[str, Any]]:
    return source.starting_points(source.shards()).shards


def open_at(
    source: MySQLSource,
    position: Mapping[str, Any],
    shard: Shard | None = None,
    parents: Mapping[str, ShardCheckpoint] | None = None,
    floor: int = 0,
) -> ShardReader:
    shard = shard or source.shards()[0]
    return source.open(Opening(shard, position, floor=floor, parents=parents or {}))


def resume(source: MySQLSource, position: Mapping[str, Any], shard: Shard | None = None) -> ShardReader:
    checkpoint = ShardCheckpoint(ShardState.READING, dict(position))
    return source.open(Opening(shard or source.shards()[0], {}, checkpoint))


def read_until(
    reader: ShardReader, done: Callable[[list[Change]], bool], *, passing: bool = False
) -> tuple[list[Change], list[Page]]:
    """Read until ``done`` with the changes so far. ``passing``: retry when nothing can be read for now."""
    changes: list[Change] = []
    pages = []
    reads = _reads(reader, passing)
    while not done(changes):
        page = next(reads)
        pages.append(page)
        changes += page.changes
    return changes, pages


def read_to_head(reader: ShardReader, *, passing: bool = False) -> tuple[list[Change], list[Page]]:
    """Read everything that was committed before the call."""
    asked = time.time()
    pages: list[Page] = []
    for page in _reads(reader, passing):
        pages.append(page)
        if page.reached is not None and page.reached >= asked:
            break
    return [change for page in pages for change in page.changes], pages


def check_refused(source: MySQLSource, start: Mapping[str, Any], match: str) -> None:
    """Check that reading from ``start`` ends with an error of what is not carried."""
    with closing(open_at(source, start)) as reader, pytest.raises(NotCarried, match=match):
        read_to_head(reader)


def _reads(reader: ShardReader, passing: bool) -> Iterator[Page]:
    deadline = time.monotonic() + PATIENCE
    while True:
        result = reader.read()
        assert time.monotonic() < deadline, f"it took longer than {PATIENCE} s; the last read: {result}"
        if isinstance(result, Page):
            yield result
        else:
            assert passing, result
            time.sleep(0.1)


def short(changes: Iterable[Change]) -> list[tuple[str, Any, Any]]:
    """Return the operation, the first key column and the new value of ``v`` of each change."""
    found = []
    for change in changes:
        key = next(iter(change.key.values())) if change.key else None
        found.append((change.operation.value, key, (change.new or {}).get("v")))
    return found


def ids(changes: Iterable[Change]) -> list[str]:
    return [change.event_id for change in changes]
