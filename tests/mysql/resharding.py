"""A small replication from shards to the shards that take their place, and a small worker that follows it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from pymysql.cursors import Cursor

from relay.change import Change
from relay.engine.journals import record_of, shards_of
from relay.gtid import parse
from relay.keyrange import KeyRange
from relay.lineage import Checkpoint, Lineage, Plan, Shard, ShardState
from relay.mysql.binlog.events import Commit, Rows, TransactionBegin
from relay.mysql.binlog.stream import BinlogEvents
from relay.mysql.connection import connect
from relay.mysql.source import MySQLSource
from relay.services.mariadb import MariaDB
from relay.services.sql_server import PASSWORD, USER
from relay.source import Opening, Page, ShardReader, Unreadable
from relay.sql.tables import Table, lay_out
from relay.table import Column
from tests.mysql.shards import config

VITESS = (
    "CREATE TABLE {meta} (id INT AUTO_INCREMENT PRIMARY KEY, source BLOB, pos TEXT, state VARCHAR(100),"
    " transaction_timestamp BIGINT)"
)
PLAIN = "CREATE TABLE {meta} (source_shard VARCHAR(64) PRIMARY KEY, position TEXT)"


def in_range(shard: str, key: int) -> bool:
    return KeyRange.parse(shard).contains(bytes([key * 37 % 256]))


class Replication:
    """Replicates the rows of one shard that are another's, with a row that says how far, in the same transaction."""

    def __init__(
        self,
        database: str,
        meta: str,
        source: tuple[str, MariaDB],
        target: tuple[str, MariaDB],
        *,
        silent: bool = False,
    ) -> None:
        self.database = database
        self.meta = meta
        self.shard, self.source = source
        self.target_shard, self.target = target
        self.silent = silent
        self.is_vitess = "source" in {row[0] for row in self.target.execute(f"SHOW COLUMNS FROM {meta}")}
        self._stop = threading.Event()
        self._random = random.Random(self.target_shard)

    def copy(self) -> None:
        """Copy the rows there are. Nothing may be written meanwhile."""
        rows = self.source.execute(f"SELECT id, v FROM {self.database}.t")
        with closing(self.target.connect()) as connection, connection.cursor() as cursor:
            for row in rows:
                if in_range(self.target_shard, row[0]):
                    cursor.execute(f"INSERT {self.database}.t VALUES (%s, %s)", row)
        self.position = f"MariaDB/{self.source.gtid}"
        name = f'keyspace:"{self.database}" shard:"{self.shard}"' if self.is_vitess else self.shard
        columns = "source, pos, state" if self.is_vitess else "source_shard, position"
        values = (name, self.position, "Running") if self.is_vitess else (name, self.position)
        self.target.execute(f"INSERT {self.meta} ({columns}) VALUES ({', '.join(['%s'] * len(values))})", values)

    def start(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def wait(self) -> None:
        deadline = time.monotonic() + 20
        while not parse(self.position).contains(parse(self.source.gtid)):
            assert self._thread.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def _layout(self, _: str, table: str, columns: Sequence[Column], primary: Sequence[str]) -> Table:
        return lay_out("replication", table, columns, primary)

    def _run(self) -> None:
        server = connect(self.source.host, self.source.port, USER, PASSWORD)
        wanted = (self.database, "t")
        events = BinlogEvents(server, parse(self.position), self._layout, lambda *name: name == wanted)
        with closing(server), closing(events), closing(self.target.connect(autocommit=False)) as connection:
            cursor = connection.cursor()
            rows: list[tuple[Any, Any]] = []
            begun: TransactionBegin | None = None
            while not self._stop.is_set():
                for event in events.read(0.05):
                    if isinstance(event, TransactionBegin):
                        begun, rows = event, []
                    elif isinstance(event, Rows):
                        rows += event.changes
                    elif isinstance(event, Commit) and begun is not None:
                        self._apply(cursor, begun, rows)
                        connection.commit()
                        self.position = begun.position

    def _apply(self, cursor: Cursor, begun: TransactionBegin, rows: Sequence[tuple[Any, Any]]) -> None:
        first = self._random.random() < 0.3
        if first:
            self._write_down(cursor, begun)
        for before, after in rows:
            was = before is not None and in_range(self.target_shard, before[0])
            stays = after is not None and in_range(self.target_shard, after[0])
            if was and stays:
                values = (after[0], after[1], before[0])
                cursor.execute(f"UPDATE {self.database}.t SET id = %s, v = %s WHERE id = %s", values)
            elif was:
                cursor.execute(f"DELETE FROM {self.database}.t WHERE id = %s", (before[0],))
            elif stays:
                cursor.execute(f"INSERT {self.database}.t (id, v) VALUES (%s, %s)", after[:2])
        if not first:
            self._write_down(cursor, begun)

    def _write_down(self, cursor: Cursor, begun: TransactionBegin) -> None:
        if self.silent:
            return
        if self.is_vitess:
            statement = f"UPDATE {self.meta} SET pos = %s, transaction_timestamp = %s WHERE source LIKE %s"
            cursor.execute(statement, (begun.position, begun.timestamp, f'%shard:"{self.shard}"%'))
        else:
            cursor.execute(
                f"UPDATE {self.meta} SET position = %s WHERE source_shard = %s", (begun.position, self.shard)
            )


class Load:
    """Writes to shards; the values of a key only ever grow, whatever shard it is written to."""

    def __init__(self, database: str, seed: int) -> None:
        self.database = database
        self.value = 0
        self._random = random.Random(seed)
        self._stop = threading.Event()

    def transaction(self, server: MariaDB, shard: str) -> None:
        with closing(server.connect(autocommit=False)) as connection, connection.cursor() as cursor:
            for _ in range(self._random.choice([1, 1, 2, 8])):
                self.value += 1
                key = self._random.randrange(60)
                if not in_range(shard, key):
                    continue
                other = self._random.randrange(60)
                choice = self._random.random()
                if choice < 0.6:
                    cursor.execute(f"REPLACE {self.database}.t VALUES (%s, %s)", (key, self.value))
                elif choice < 0.8:
                    keys = (key, other if in_range(shard, other) else key)
                    update = f"UPDATE {self.database}.t SET v = %s WHERE id IN (%s, %s)"
                    cursor.execute(update, (self.value, *keys))
                elif choice < 0.9:
                    cursor.execute(f"DELETE FROM {self.database}.t WHERE id = %s", (key,))
                elif in_range(shard, other):
                    move = f"UPDATE IGNORE {self.database}.t SET id = %s, v = %s WHERE id = %s"
                    cursor.execute(move, (other, self.value, key))
            connection.commit()

    def start(self, servers: Mapping[str, MariaDB]) -> None:
        self._stop.clear()

        def run() -> None:
            while not self._stop.is_set():
                for shard, server in servers.items():
                    self.transaction(server, shard)
                self._stop.wait(0.002)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


class World:
    """The shards of one source, as a worker sees them: planned once, read to their ends, restarted at random."""

    def __init__(self, database: str, meta: str, shards: Mapping[str, MariaDB], seed: int) -> None:
        self.database = database
        self.meta = meta
        self.source = MySQLSource(self._config(shards))
        self.stream = self.source.connect()
        begin = self.source.starting_points(self.source.shards(), time.time)
        self.plan = Plan("current", time.time(), dict(begin.shards), {})
        self.checkpoints: dict[str, Checkpoint] = {}
        self.lineage = Lineage(self.stream)
        self.readers: dict[str, ShardReader] = {}
        self.published: list[Change] = []
        self.failures: list[str] = []
        self._random = random.Random(seed)

    def _config(self, shards: Mapping[str, MariaDB]) -> Any:
        servers = {shard: [server.address] for shard, server in shards.items()}
        return config(self.database, servers, reshard_checkpoint_table=self.meta)

    def reload(self, shards: Mapping[str, MariaDB]) -> None:
        self.source.reload(self._config(shards))

    def step(self) -> None:
        """Read a page of every shard that may be read."""
        self.lineage.update(shards_of(self.plan, self.checkpoints))
        for shard in self.lineage.ready(self.checkpoints, self.plan.shards):
            if shard.id not in self.readers:
                parents = {parent: self.checkpoints[parent] for parent in shard.parents}
                floor = self.lineage.floor(shard, self.checkpoints)
                committed = self.checkpoints.get(shard.id)
                opening = Opening(shard, self.plan.start_of(shard), committed, floor, parents=parents)
                self.readers[shard.id] = self.source.open(opening)
            page = self.readers[shard.id].read()
            if not isinstance(page, Page):
                assert isinstance(page, Unreadable)
                self.failures.append(page.reason)
                continue
            assert page.gap is None
            self._commit(shard, page)
            if page.finished or self._random.random() < 0.05:
                self.readers.pop(shard.id).close()

    def _commit(self, shard: Shard, page: Page) -> None:
        self.published += page.changes
        before = self.checkpoints.get(shard.id) or Checkpoint(ShardState.PLANNED, parents=shard.parents)
        journal = record_of(page.journal, shard, self.plan, self.checkpoints) if page.journal else None
        state = ShardState.FINISHED if page.finished else ShardState.READING
        token = page.token or before.token
        self.checkpoints[shard.id] = Checkpoint.from_json(
            replace(before, state=state, position=page.position, token=token, journal=journal).to_json()
        )

    def run(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 40
        while not done():
            self.step()
            assert time.monotonic() < deadline, (self.checkpoints, self.failures[-1:])

    def is_at(self, shard: str, server: MariaDB) -> bool:
        checkpoint = self.checkpoints.get(shard)
        return checkpoint is not None and (checkpoint.position or {}).get("gtid") == f"MariaDB/{server.gtid}"

    def close(self) -> None:
        for reader in self.readers.values():
            reader.close()
