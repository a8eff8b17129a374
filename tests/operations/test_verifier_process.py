"""``relay verify --forever`` on real services: a cache in Redis, a copy in PostgreSQL, and the process itself."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from relay.cache import ConditionalWrite, Invalidator, LoadedValue, TokenCache, entry_key, generation_key, open_store
from relay.cache.keys import CacheRules
from relay.config import load
from relay.engine.kinds import kind_of
from relay.kafka.changes import Reception
from relay.observe.verifier import Accusation, VerifierObserver
from relay.operations.expected_values import LoadersTruth
from relay.operations.verify_forever import ForeverVerifier, WatchedCache, WatchedTables
from relay.records import Shard
from relay.services.mariadb import PASSWORD, USER
from relay.services.postgres import execute
from relay.source import Opening
from spark_consumers.kept_rows import kept_rows
from spark_consumers.sinks.postgres_values import OURS
from tests.clock import Clock
from tests.command_line import errors, relay
from tests.operations.verified_shop import Shop
from tests.operations.watched_orders import Progress, World, change
from tests.waiting import wait_until


@pytest.mark.services
def test_faults_of_a_cache_in_redis_and_a_copy_in_postgresql_are_accused(
    mariadb: Any, redis_server: Any, database_url: str, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6, I7: by reads of a real table; only time and the progress of the consumers are the test's."""
    mariadb.execute(f"CREATE DATABASE {unique}")
    mariadb.execute(f"CREATE TABLE {unique}.orders (id INT PRIMARY KEY, note VARCHAR(20))")
    rows = ", ".join(f"({id}, 'note {id}')" for id in range(1, 31))
    mariadb.execute(f"INSERT {unique}.orders VALUES {rows}")
    source = {"name": "shop", "type": "mysql", "database": unique, "user": USER, "password": PASSWORD}
    document = {
        "name": "shop",
        "kafka": {"bootstrap_servers": "127.0.0.1:9"},
        "sources": [{**source, "shards": {"-": [mariadb.address]}, "tables": ["orders"]}],
        "cache": {"url": redis_server.url, "namespace": unique, "keys": {"orders": ["order:{id}"]}},
        "copy": {"url": database_url},
    }
    path = tmp_path / "relay.yaml"
    path.write_text(json.dumps(document))
    config = load(path)
    assert config.cache is not None
    ours = ", ".join(f'"{name}" {kind}' for name, kind in OURS.items())
    execute(database_url, "CREATE SCHEMA shop")
    execute(database_url, f"CREATE TABLE shop._relay_rows_orders (id integer PRIMARY KEY, note text, {ours})")
    columns = "id, note, _relay_deleted, _relay_event_id, _relay_incomplete, _relay_updated_at, _relay_read_as_of"
    kept = f"INSERT INTO shop._relay_rows_orders ({columns})"
    execute(database_url, f"{kept} SELECT n, 'note ' || n, false, 'e', false, now(), 0 FROM generate_series(1, 30) n")

    clock, progress, told = Clock(), Progress(), list[Accusation]()
    store = open_store(redis_server.url)
    cache, invalidator = TokenCache(store, unique), Invalidator(store, unique)

    def notes(wanted: Any) -> dict[str, LoadedValue]:
        with mariadb.connect(database=unique) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id, note FROM orders")
            found = {f"order:{id}": note.encode() for id, note in cursor.fetchall()}
        spelt = {key: f"order:{int(key.partition(':')[2])}" for key in wanted}
        return {key: LoadedValue(found.get(each), {}, True, key == each) for key, each in spelt.items()}

    monkeypatch.setitem(sys.modules, unique, SimpleNamespace(notes=notes))
    observer = VerifierObserver("shop", ["cache", "copy"], tmp_path / "state" / "verify-cache-copy.json", clock)
    common = progress, observer, told.append, clock
    shard = Opening(Shard("-"), {})
    with kept_rows(config, "copy") as opened:
        watched = [
            WatchedCache(
                "cache", *common,
                store=store, namespace=unique, compare=LoadersTruth([f"{unique}:notes"]).compare,
                rules=CacheRules(config.cache, config.sources),
            ),
            WatchedTables(
                "copy", *common,
                sources={"shop": partial(kind_of(config.sources[0]).rows, config.sources[0], lambda: [shard])},
                tables={"orders": "shop"}, kept=opened,
            ),
        ]  # fmt: skip
        world = World(clock)
        world.progress = progress
        verifier = ForeverVerifier(
            watched,
            lambda: cast(Reception, world),
            observer,
            rate=20,
            say=world.said.append,
            clock=clock,
            sleep=world.sleep,
        )

        def rounds(minutes: float) -> None:
            end = clock() + minutes * 60
            while clock() < end:
                verifier.round()

        cache.get_many([f"order:{id}" for id in range(1, 25)], notes)
        rounds(1)
        planted: Any = SimpleNamespace(table=unique, store=store)
        plant = partial(Shop.plant, planted)
        for number, id in enumerate((1, 3, 5, 6, 10)):
            mariadb.execute(f"UPDATE {unique}.orders SET note = 'new' WHERE id = {id}")
            execute(database_url, f"UPDATE shop._relay_rows_orders SET note = 'new' WHERE id = {id}")
            found = change(number, id, "UPDATE", f"note {id}", "new", clock())
            world.passing.append(found)
            invalidator.apply([(f"order:{id}", found.token)])
        plant("order:1", b"note 1")  # after the invalidation
        plant("order:02", b"note 2")
        execute(database_url, "DELETE FROM shop._relay_rows_orders WHERE id = 3")
        execute(database_url, f"{kept} VALUES (77, 'never was', false, 'e', false, now(), 0)")
        execute(database_url, "UPDATE shop._relay_rows_orders SET note = 'other' WHERE id = 5")
        mariadb.execute(f"DELETE FROM {unique}.orders WHERE id = 6")  # and a replay brings back what it was
        world.passing.append(change(9, 6, "DELETE", "new", None, clock()))
        name = entry_key(unique, "order:10")  # its tombstone is evicted, and a late reader fills the cache
        (stored,), _ = store.read([name], generation_key(unique))
        store.compare_and_set([ConditionalWrite(name, stored and stored.meta, None, None, 0.0)])
        plant("order:10", b"note 10")
        rounds(9)
        assert told == []
        others = "datname = current_database() AND pid <> pg_backend_pid()"
        execute(database_url, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")
        rounds(26)
    store.close()
    assert {(each.sink, each.kind, next(iter(each.key.values()))) for each in told} == {
        ("cache", "stale", "order:1"),
        ("cache", "misplaced", "order:02"),
        ("cache", "stale", "order:10"),
        ("copy", "missing", "3"),
        ("copy", "extra", "77"),
        ("copy", "different", "5"),
        ("copy", "extra", "6"),
    }
    kept_file = json.loads((tmp_path / "state" / "verify-cache-copy.json").read_text())
    assert len(kept_file) == 7
    (row,) = [each for each in kept_file if each["key"] == {"id": "6"}]
    assert [each["what"] for each in row["history"]][:2] == ["UPDATE", "DELETE"]
    assert "other" not in json.dumps(kept_file)


@pytest.mark.services
def test_the_process_serves_its_metrics_and_ends_with_sigterm(
    dynamodb: Any, kafka: Any, redis_server: Any, unique: str, tmp_path: Path
) -> None:
    shop = Shop(unique, dynamodb.endpoint_url, redis_server.url, tmp_path)
    shop.configure(name=unique, kafka={"bootstrap_servers": kafka.bootstrap_servers, "partitions": 1})
    keys = [shop.put(number, 1) for number in range(3)]
    assert relay("run", shop.config, "--until-caught-up").exit_code == 0
    consumed = relay("consume", "cache", shop.config, "--engine", "python", "--until-caught-up")
    assert consumed.exit_code == 0, consumed.output
    for key in keys:
        shop.cache.get_or_load(key, shop.loader.load)
    command = [sys.executable, "-m", "relay", "verify", str(shop.config), "--forever", "--http", "127.0.0.1:0"]
    log = tmp_path / "verify.log"
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            address = wait_until(lambda: re.search(r"status.json at (\S+)", log.read_text()), 60)[1]

            def metrics() -> str | None:
                assert process.poll() is None, log.read_text()
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
                    body: str = response.read().decode()
                return body if 'outcome="consistent",sink="cache"} 3.0' in body else None

            body = wait_until(metrics, 60)
            assert 'relay_consistency_ratio{bound="1m",sink="cache"} 1.0' in body
            assert 'relay_verify_blind_seconds{sink="cache"} 0.0' in body
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
    assert "watching cache" in log.read_text()
    shop.store.close()
    shop.client.delete_table(TableName=unique)


CONFIG = """
name: shop
kafka: {bootstrap_servers: "127.0.0.1:9"}
sources: [{name: orders, type: dynamodb, table: orders, region: eu-west-1}]
"""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--forever", "--within", "5"], "--within: cannot be used with --forever: omit it"),
        (["--forever", "--sample", "5"], "--sample: cannot be used with --forever: omit it"),
        (["--rate", "5"], "--rate: cannot be used without --forever: omit it"),
        (["--http", "127.0.0.1:9420"], "--http: cannot be used without --forever: omit it"),
        (["--forever", "--http", "nowhere"], "--http: 'nowhere' is not an address to listen on, such as"),
        (["--forever"], "the config has neither a `cache:` nor a `copy:` section: add one to verify it"),
        (["copy", "--forever"], "the config has no `copy:` section: add one to verify the copy"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path: Path, options: list[str], message: str) -> None:
    path = tmp_path / "relay.yaml"
    path.write_text(CONFIG)
    result = relay("verify", path, *options)
    assert result.exit_code == 2
    assert errors(result)[0].startswith(message)
