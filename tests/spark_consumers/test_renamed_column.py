"""A column of a cache key that is renamed in the database (I6)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay.cache import RedisStore, entry_key, generation_key
from relay.services.mariadb import PASSWORD, USER
from tests.faults.harness import Relay
from tests.spark_consumers.spark_process import SparkProcess

pytestmark = pytest.mark.services


@pytest.mark.parametrize("engine", ["python", "spark"])
def test_changes_after_a_column_of_a_cache_key_was_renamed_invalidate_the_namespace(
    engine: str, mariadb: Any, kafka: Any, redis_server: Any, unique: str, tmp_path: Path, spark_process: SparkProcess
) -> None:
    """I6: entries under the old name's values would never be invalidated again. The log says what to do."""
    mariadb.execute(f"CREATE DATABASE {unique}")
    mariadb.execute(f"CREATE TABLE {unique}.users (id INT PRIMARY KEY, email VARCHAR(20), name VARCHAR(20))")
    path = tmp_path / "relay.yaml"
    source = {"name": "s", "type": "mysql", "database": unique, "shards": {"-": [mariadb.address]}}
    raw = {
        "name": unique,
        "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "partitions": 2},
        "sources": [source | {"tables": ["users"], "user": USER, "password": PASSWORD}],
        "cache": {"url": redis_server.url, "namespace": unique, "keys": {"users": ["user:{id}", "mail:{email}"]}},
    }
    path.write_text(yaml.safe_dump(raw))

    def relay(*arguments: str) -> str:
        log = tmp_path / f"{len(list(tmp_path.iterdir()))}.log"
        if "spark" in arguments:
            spark_process.relay(*arguments, "--until-caught-up", log=log)
            return log.read_text()
        process = Relay([sys.executable, "-m", "relay.cli", *arguments, "--until-caught-up"], log)
        assert process.wait(120) == 0, process.log()
        return process.log()

    consume = ["consume", "cache", str(path), "--engine", engine]
    consume += ["--checkpoint", str(tmp_path / "checkpoint")] if engine == "spark" else []
    relay("run", str(path))  # plans, and begins at the head
    mariadb.execute(f"INSERT INTO {unique}.users VALUES (1, 'ada@x', 'Ada')")
    relay("run", str(path))
    relay(*consume)
    with RedisStore(redis_server.url) as store:
        before = store.generation(generation_key(unique))
        mariadb.execute(f"ALTER TABLE {unique}.users RENAME COLUMN email TO mail")
        mariadb.execute(f"UPDATE {unique}.users SET name = 'Countess'")
        relay("run", str(path))
        said = relay(*consume)
        assert f"{unique} is invalidated" in said
        assert "users has no column `email`, which the cache key mail:{email} needs" in said
        assert store.generation(generation_key(unique)) != before
        (entry,), _ = store.read([entry_key(unique, "user:1")], generation_key(unique))
        assert entry is not None
    mariadb.execute(f"DROP DATABASE {unique}")
