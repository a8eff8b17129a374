"""A cache that is in use while Vitess copies its tables (I6)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay.cache import RedisStore, TokenCache, VitessLoader
from relay.config import load
from relay.kafka import topics
from tests.faults.harness import Relay
from tests.waiting import wait_until

pytestmark = pytest.mark.services

TEMPLATE = "row:{id}"


@contextmanager
def running(*arguments: str, log: Path) -> Iterator[Relay]:
    process = Relay([sys.executable, "-m", "relay.cli", *arguments], log)
    try:
        yield process
    finally:
        process.kill()


def test_what_changed_before_its_row_was_copied_is_invalidated_also_if_it_was_deleted(
    vitess: Any, kafka: Any, redis_server: Any, unique: str, tmp_path: Path
) -> None:
    """I6: the stream has no changes of a table that is not copied yet. Nor is there a gap."""
    vitess.execute(f"ALTER VSCHEMA ON {unique} ADD VINDEX hash(id) USING hash")
    vitess.execute(f"CREATE TABLE {unique} (id BIGINT PRIMARY KEY, v BIGINT)")
    vitess.execute(f"INSERT INTO {unique} (id, v) VALUES (1, 10), (2, 10), (3, 10)")
    path = tmp_path / "relay.yaml"
    source = {"name": "s", "type": "vitess", "vtgate": vitess.vtgate, "keyspace": "commerce", "tables": [unique]}
    raw = {
        "name": unique,
        "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "partitions": 2},
        "sources": [source | {"start": "copy"}],
        "cache": {"url": redis_server.url, "namespace": unique, "keys": {unique: [TEMPLATE]}},
    }
    path.write_text(yaml.safe_dump(raw))
    config = load(path)
    topics.create_missing(topics.connect(config), config, [unique])

    def read(cursor: Any, keys: Sequence[str]) -> list[tuple[dict[str, Any], bytes]]:
        cursor.execute(f"SELECT id, v FROM {unique} WHERE id IN %s", ([int(key[4:]) for key in keys],))
        return [({"id": number}, str(v).encode()) for number, v in cursor.fetchall()]

    consume = ("consume", "cache", str(path), "--engine", "python")
    with (
        RedisStore(redis_server.url) as store,
        closing(VitessLoader(lambda: vitess.connect("commerce"), "commerce", read, key=TEMPLATE)) as rows,
        running(*consume, log=tmp_path / "consumer.log") as consumer,
    ):
        wait_until(lambda: consumer.has_logged('"started"'), 60)
        cache = TokenCache(store, unique)

        def values() -> dict[str, bytes | None]:
            return {
                key: found.value for key, found in cache.get_many(["row:1", "row:2", "row:3"], rows.load_many).items()
            }

        assert values() == {"row:1": b"10", "row:2": b"10", "row:3": b"10"}
        vitess.execute(f"UPDATE {unique} SET v = 11 WHERE id = 1")
        vitess.execute(f"DELETE FROM {unique} WHERE id = 2")
        assert values() == {"row:1": b"10", "row:2": b"10", "row:3": b"10"}  # the relay has not seen it yet
        with running("run", str(path), log=tmp_path / "relay.log") as relay:
            try:
                wait_until(lambda: values() == {"row:1": b"11", "row:2": None, "row:3": b"10"} or None, 60)
            except AssertionError as failure:
                failure.add_note(f"{values()}\n{relay.log()}\n{consumer.log()}")
                raise
