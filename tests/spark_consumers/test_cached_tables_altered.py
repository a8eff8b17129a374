"""A cache whose table is altered, and exchanged for another, while relay and consumer run (I6)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay.cache import Cached, LoadedValue, Outcome, RedisStore, TokenCache
from relay.services.mariadb import PASSWORD, USER
from relay.services.vitess import Vitess, database
from tests import needs
from tests.faults.harness import Relay
from tests.waiting import wait_until

pytestmark = pytest.mark.services

# Each makes another row of row 1 without a change of it. Between the last two nothing has the name.
ALTERED = (
    ("ALTER TABLE {table} ADD COLUMN w INT NOT NULL DEFAULT 7",),
    ("ALTER TABLE {table} MODIFY v DECIMAL(5,1)",),
    ("ALTER TABLE {table} DROP COLUMN w, ADD INDEX (v)",),
    ("RENAME TABLE {table} TO {table}_old, {table}_new TO {table}",),
    ("RENAME TABLE {table} TO {table}_new", "RENAME TABLE {table}_old TO {table}"),
)


class CachedRow:
    """The row 1 of ``table``, as an application reads it through ``cache``, from the primary."""

    def __init__(self, cache: TokenCache, execute: Callable[[str], Any], table: str) -> None:
        self._cache = cache
        self._execute = execute
        self._table = table

    def truth(self) -> bytes | None:
        """Return the row in the database."""
        rows = self._execute(f"SELECT * FROM {self._table} WHERE id = 1")
        return repr(rows).encode() if rows else None

    def found(self) -> Cached:
        return self._cache.get_or_load("row:1", lambda key, held: LoadedValue(self.truth(), {}, fresher=True))

    def is_served_as_it_is_after(self, *statements: str) -> None:
        """Execute statements after which the row is another, and wait until that one is served."""
        wait_until(lambda: self.found().outcome is Outcome.HIT, 60)
        before = self.truth()
        for statement in statements:
            self._execute(statement.format(table=self._table))
        assert self.truth() != before
        wait_until(lambda: self.found().value == self.truth(), 15)


@contextmanager
def cached(
    source: dict[str, Any], execute: Callable[[str], Any], table: str, engine: str, kafka: Any, url: str, folder: Path
) -> Iterator[CachedRow]:
    """Run a relay and a consumer. The row is there, and its INSERT is applied."""
    path = folder / "relay.yaml"
    raw = {
        "name": table,
        "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "partitions": 2},
        "sources": [source | {"tables": [table]}],
        "cache": {"url": url, "namespace": table, "keys": {table: ["row:{id}"]}},
    }
    path.write_text(yaml.safe_dump(raw))
    commands = {"relay": ["run", str(path)], "consumer": ["consume", "cache", str(path), "--engine", engine]}
    if engine == "spark":
        commands["consumer"] += ["--checkpoint", str(folder / "checkpoint")]
    with ExitStack() as stack:
        store = stack.enter_context(RedisStore(url))

        def start(name: str, says: str) -> Relay:
            process = Relay([sys.executable, "-m", "relay.cli", *commands[name]], folder / f"{name}.log")
            stack.callback(process.kill)
            wait_until(lambda: process.has_logged(says), 120)
            return process

        processes = [start("relay", " shard "), start("consumer", '"started"')]
        execute(f"INSERT INTO {table} (id, v) VALUES (1, '7.50')")
        wait_until(lambda: processes[1].has_logged('"applied": 1'), 120)
        try:
            yield CachedRow(TokenCache(store, table), execute, table)
        except AssertionError as failure:
            failure.add_note("\n".join(process.log() for process in processes))
            raise


@pytest.mark.parametrize(
    ("kind", "engine"),
    [
        ("mariadb", "python"),
        pytest.param("mariadb", "spark", marks=pytest.mark.faults("one rule for both: test_invalidate.py")),
        pytest.param("mysql", "python", marks=pytest.mark.faults("as on MariaDB")),
    ],
)
def test_a_cache_serves_no_row_from_before_its_table_was_altered_or_exchanged(
    kind: str, engine: str, request: pytest.FixtureRequest, kafka: Any, redis_server: Any, unique: str, tmp_path: Path
) -> None:
    """I6: no change of a row shows it."""
    server = request.getfixturevalue(kind)
    server.execute(f"CREATE DATABASE {unique}")

    def execute(sql: str) -> Any:
        return server.execute(sql.replace(f" {unique}", f" {unique}.{unique}"))

    for table in (unique, f"{unique}_new"):
        execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(20))")
    execute(f"INSERT INTO {unique}_new VALUES (1, 'other')")
    account = {"database": unique, "user": USER, "password": PASSWORD}
    source = {"name": "s", "type": "mysql", "shards": {"-": [server.address]}, **account}
    with cached(source, execute, unique, engine, kafka, redis_server.url, tmp_path) as row:
        for statements in ALTERED:
            row.is_served_as_it_is_after(*statements)
    server.execute(f"DROP DATABASE {unique}")


def test_a_cache_serves_no_row_from_before_its_table_in_vitess_was_altered_or_exchanged(
    kafka: Any, redis_server: Any, unique: str, tmp_path: Path
) -> None:
    """I6: each shard executes the statement, as with an Online DDL."""
    needs.vitess()
    vschema = {
        "sharded": True,
        "vindexes": {"hash": {"type": "hash"}},
        "tables": {unique: {"column_vindexes": [{"column": "id", "name": "hash"}]}},
    }
    schema = f"create table {unique} (id bigint primary key, v varchar(20))"
    with Vitess(keyspaces={"shop": ["-80", "80-"]}, schemas={"shop": (schema, vschema)}) as cluster:

        def execute(sql: str) -> Any:
            # Row 1 is in the first shard. vtgate would expand the asterisk to the columns of before.
            for shard in ("-80",) if sql.startswith(("SELECT", "INSERT")) else ("80-", "-80"):
                place = database("shop", shard)
                with closing(cluster.mariadb.connect(database=place, autocommit=True)) as db, db.cursor() as cursor:
                    cursor.execute(sql)
                    rows = cursor.fetchall()
            return rows

        execute(f"CREATE TABLE {unique}_new (id BIGINT PRIMARY KEY, v VARCHAR(20))")
        execute(f"INSERT INTO {unique}_new VALUES (1, 'other')")
        source = {"name": "s", "type": "vitess", "vtgate": cluster.vtgate, "keyspace": "shop"}
        with cached(source, execute, unique, "python", kafka, redis_server.url, tmp_path) as row:
            for statements in ALTERED:
                row.is_served_as_it_is_after(*statements)
