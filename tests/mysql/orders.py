"""The table `orders.t` of a primary and its replica, of either flavour: written, read, watched."""

from __future__ import annotations

import random
import threading
from contextlib import closing
from functools import partial
from typing import Any

from relay.gtid import parse
from relay.mysql.connection import connect
from relay.mysql.reader import BinlogShardReader
from relay.mysql.source import MySQLSource
from relay.mysql.watcher import ReplicationWatcher
from relay.services.mariadb import PASSWORD, USER
from relay.token import EventToken
from tests.mysql.shards import begin, open_at
from tests.waiting import wait_until

DATABASE = "orders"
SHARD = f"shop/{DATABASE}/-"
SELECT = f"SELECT v FROM {DATABASE}.t WHERE id = %s"


def put(server: Any, *keys: int, v: str = "a") -> None:
    for key in keys:
        server.execute(f"REPLACE {DATABASE}.t VALUES (%s, %s)", (key, v))


def opened(source: MySQLSource) -> BinlogShardReader:
    reader = open_at(source, begin(source)["-"])
    assert isinstance(reader, BinlogShardReader)
    return reader


def load(server: Any, stop: threading.Event, seed: int) -> threading.Thread:
    """Write in a thread until ``stop`` is set."""

    def write() -> None:
        random_ = random.Random(seed)
        with closing(server.connect(autocommit=False)) as connection, connection.cursor() as cursor:
            for at in range(10**9):
                if stop.is_set():
                    return
                for _ in range(random_.choice([1, 3, 20])):
                    key = random_.randrange(50)
                    statements = [
                        f"REPLACE {DATABASE}.t (id, v) VALUES ({key}, '{random_.random()}')",
                        f"DELETE FROM {DATABASE}.t WHERE id = {key}",
                        f"UPDATE IGNORE {DATABASE}.t SET id = {key + 1} WHERE id = {key}",
                        f"UPDATE {DATABASE}.t SET v = CONCAT(id, 'x') WHERE id BETWEEN {key} AND {key + 5}",
                    ]
                    cursor.execute(random_.choice(statements))
                connection.commit()
                if random_.random() < 0.02:
                    cursor.execute(f"ALTER TABLE {DATABASE}.t ADD COLUMN c{seed}_{at} INT")

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    return thread


def watch(server: Any) -> ReplicationWatcher:
    return ReplicationWatcher(partial(connect, server.host, server.port, USER, PASSWORD), SHARD)


def wait_for(watcher: ReplicationWatcher, gtid: str) -> EventToken:
    def reached() -> EventToken | None:
        token = watcher.token
        assert token is not None, watcher.error
        return token if parse(token.position).contains(parse(gtid)) else None

    return wait_until(reached)
