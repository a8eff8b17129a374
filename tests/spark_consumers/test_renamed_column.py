"""A column of a cache key that is renamed in the database (I6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from relay.cache import RedisStore, entry_key, generation_key
from relay.services.mariadb import PASSWORD, USER
from tests.command_line import relay, run_until_caught_up
from tests.spark_consumers.spark_process import SparkProcess
from tests.traces import no_traces_left

pytestmark = pytest.mark.services


@pytest.mark.parametrize(
    "engine",
    ["python", pytest.param("spark", marks=pytest.mark.faults("one rule for both: [python], test_invalidate.py"))],
)
def test_changes_after_a_column_of_a_cache_key_was_renamed_invalidate_the_namespace(
    engine: str,
    mariadb: Any,
    kafka: Any,
    redis_server: Any,
    unique: str,
    tmp_path: Path,
    spark_process: SparkProcess,
    caplog: pytest.LogCaptureFixture,
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

    def consume() -> str:
        arguments = ("consume", "cache", str(path), "--engine", engine, "--until-caught-up")
        if engine == "spark":
            log = tmp_path / f"{len(list(tmp_path.iterdir()))}.log"
            spark_process.relay(*arguments, "--checkpoint", str(tmp_path / "checkpoint"), log=log)
            return log.read_text()
        caplog.clear()
        with no_traces_left():
            assert relay(*arguments).exit_code == 0
        return caplog.text

    run_until_caught_up(path)  # plans, and begins at the head
    mariadb.execute(f"INSERT INTO {unique}.users VALUES (1, 'ada@x', 'Ada')")
    run_until_caught_up(path)
    consume()
    with RedisStore(redis_server.url) as store:
        before = store.generation(generation_key(unique))
        mariadb.execute(f"ALTER TABLE {unique}.users RENAME COLUMN email TO mail")
        mariadb.execute(f"UPDATE {unique}.users SET name = 'Countess'")
        run_until_caught_up(path)
        said = consume()
        assert f"{unique} is invalidated" in said
        assert "users has no column `email`, which the cache key mail:{email} needs" in said
        assert store.generation(generation_key(unique)) != before
        (entry,), _ = store.read([entry_key(unique, "user:1")], generation_key(unique))
        assert entry is not None
    mariadb.execute(f"DROP DATABASE {unique}")
