"""A small replication from shards to those that replace them, a small worker that follows it, and checks of both."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from pymysql.cursors import Cursor

from relay.change import Change
from relay.gtid import parse
from relay.keyrange import KeyRange
from relay.mysql.binlog.events import Commit, Rows, TransactionBegin
from relay.mysql.binlog.stream import BinlogEvents
from relay.mysql.connection import connect
from relay.mysql.source import MySQLSource
from relay.mysql_dialect.tables import Table, lay_out
from relay.records import CommittedStream, Lineage, Plan, Shard, ShardCheckpoint, ShardState
from relay.services.mariadb import PASSWORD, USER, MariaDB
from relay.source import Opening, Page, ShardReader, Unreadable
from relay.stream.journals import check_participants, shards_of
from relay.table import Column
from tests.mysql.shards import config, ids, open_at, read_to_head
from tests.waiting import wait_until

VITESS = (
    "CREATE TABLE {meta} (id INT AUTO_INCREMENT PRIMARY KEY, source BLOB, pos TEXT, state VARCHAR(100),"
    " transaction_timestamp BIGINT)"
)
PLAIN = "CREATE TABLE {meta} (source_shard VARCHAR(64) PRIMARY KEY, position TEXT)"


def in_range(shard: str, key: int) -> bool:
    return KeyRange.parse(shard).contains(bytes([key * 37 % 256]))


class Replication:
    """Replicates the rows of a key range from one shard to another, with its position in the same transaction."""

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
        """Copy the present rows. Nothing may be written meanwhile."""
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
        def has_all() -> bool:
            found = parse(self.position).contains(parse(self.source.gtid))
            assert found or self._thread.is_alive()
            return found

        wait_until(has_all)

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
            self._write_position(cursor, begun)
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
            self._write_position(cursor, begun)

    def _write_position(self, cursor: Cursor, begun: TransactionBegin) -> None:
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
    """Writes to shards; the values of a key only grow, on whichever shard it is written."""

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
    """A worker with the shards of one source: plans them, reads them to their ends, reopens readers at random."""

    def __init__(self, database: str, meta: str, shards: Mapping[str, MariaDB], seed: int) -> None:
        self.database = database
        self.meta = meta
        self.source = MySQLSource(self._config(shards))
        self.stream = self.source.connect()
        begin = self.source.starting_points(self.source.shards())
        self.plan = Plan("current", time.time(), dict(begin.shards), {})
        committed = CommittedStream(self.stream)
        committed.plan, self.checkpoints = self.plan, committed.checkpoints
        self.lineage = Lineage(committed)
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
        """Read a page of every shard that is ready."""
        self.lineage.update(shards_of(self.plan, self.checkpoints))
        for shard in self.lineage.ready():
            if shard.id not in self.readers:
                parents = {parent: self.checkpoints[parent] for parent in shard.parents}
                floor = self.lineage.floor(shard)
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
        before = self.checkpoints.get(shard.id) or ShardCheckpoint(ShardState.PLANNED, parents=shard.parents)
        if page.journal:
            check_participants(page.journal, shard, self.plan, self.checkpoints)
        state = ShardState.FINISHED if page.finished else ShardState.READING
        token = page.token or before.token
        self.checkpoints[shard.id] = ShardCheckpoint.from_json(
            replace(before, state=state, position=page.position, token=token, journal=page.journal).to_json()
        )

    def run(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 600
        while not done():
            self.step()
            assert time.monotonic() < deadline, (self.checkpoints, self.failures[-1:])

    def is_at(self, shard: str, server: MariaDB) -> bool:
        checkpoint = self.checkpoints.get(shard)
        return checkpoint is not None and (checkpoint.position or {}).get("gtid") == f"MariaDB/{server.gtid}"

    def close(self) -> None:
        for reader in self.readers.values():
            reader.close()


def create_tables(servers: Sequence[MariaDB], database: str, table: str = VITESS) -> str:
    """Create the database and a checkpoint table of the test's own. Return the name of the latter."""
    for server in servers:
        server.execute(f"CREATE DATABASE {database}")
        server.execute(f"CREATE DATABASE meta_{database}")
        server.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v INT)")
        server.execute(table.format(meta=f"meta_{database}.vreplication"))
    return f"meta_{database}.vreplication"


def check_changes(found: Sequence[Change], made: Sequence[Change]) -> None:
    """Assert that every change of an origin was published once, with its event id there, and in order for each key."""
    assert len(set(ids(found))) == len(found)
    published = {change.event_id: change for change in found}
    for change in made:
        assert change.event_id in published, change
        copy = published[change.event_id]
        assert (copy.operation, copy.key, copy.new) == (change.operation, change.key, change.new)
        assert copy.old == change.old
    values: dict[int, int] = defaultdict(int)
    images: dict[int, object] = {}
    for change in found:
        assert change.key
        key = change.key["id"]
        if key in images:
            assert change.old == images[key], change
        images[key] = change.new
        if change.new is not None:
            assert change.new["v"] >= values[key]
            values[key] = change.new["v"]


def all_changes(database: str, shard: str, server: MariaDB, position: dict[str, str]) -> list[Change]:
    """Return all changes of an origin, read in one pass."""
    source = MySQLSource(config(database, {shard: [server.address]}, keyrange=shard))
    source.connect()
    reader = open_at(source, position)
    changes, _ = read_to_head(reader)
    reader.close()
    return changes


def reshard_under_load(servers: Sequence[MariaDB], unique: str, seed: int, table: str, before: str, after: str) -> None:
    """Reshard under load from the shards ``before`` to those ``after``, and check what was published."""
    random_ = random.Random(seed)
    meta = create_tables(servers, unique, table)
    names = before.split(), after.split()
    old = dict(zip(names[0], servers, strict=False))
    new = dict(zip(names[1], servers[len(old) :], strict=False))
    load = Load(unique, seed)
    begins = {shard: {"gtid": f"MariaDB/{server.gtid}"} for shard, server in old.items()}
    world = World(unique, meta, old, seed)
    for _ in range(20):
        for shard, server in old.items():
            load.transaction(server, shard)
    replications = [
        Replication(unique, meta, source, target)
        for source in old.items()
        for target in new.items()
        if KeyRange.parse(source[0]).intersects(KeyRange.parse(target[0]))
    ]
    for replication in replications:
        replication.copy()
        replication.start()
    load.start(old)
    for _ in range(random_.randrange(3, 15)):
        world.step()
    world.reload(old | new)
    world.run(lambda: new.keys() <= world.checkpoints.keys())
    for _ in range(10):
        world.step()
    load.stop()
    for replication in replications:
        replication.wait()
        replication.stop()
    load.start(new)
    for _ in range(10):
        world.step()
    load.stop()
    world.run(lambda: all(world.is_at(shard, server) for shard, server in new.items()))
    world.close()
    made = [change for shard, server in old.items() for change in all_changes(unique, shard, server, begins[shard])]
    check_changes(world.published, made)
    by_id = {change.event_id: change for change in made}
    moved = [change for change in world.published if change.token and change.token.origin]
    assert moved
    for change in moved:
        origin = by_id[change.event_id]
        assert change.token
        assert change.token.origin
        assert origin.token
        assert (change.token.origin.shard, change.token.origin.position) == (origin.token.shard, origin.token.position)
        if table is VITESS:
            assert change.committed_at == origin.committed_at
    direct = [change for change in world.published if change.event_id not in by_id]
    assert direct
    assert all(change.token and change.token.origin is None for change in direct)
