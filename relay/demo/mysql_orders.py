"""The demo's table in MariaDB: it has rows before the relay starts, and its primary is killed during the load."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from contextlib import ExitStack, closing
from typing import Any, ClassVar

from pymysql.connections import Connection
from pymysql.constants import CR, ER
from pymysql.cursors import Cursor

from relay.cache import Load
from relay.cache.loaders import PrimaryLoader
from relay.demo.orders import TABLE, Incident, Orders
from relay.demo.sql_orders import DEFINITION, SQLTable, SQLWriter
from relay.demo.workload import CACHE_KEY, Item, Workload
from relay.services.mariadb import PASSWORD, USER, MariaDB

DATABASE = "shop"
_OLD_ORDERS = 3_000
"""The orders that nobody changes any more."""
_PACE = 500  # rows that the snapshot reads in a second, so that it runs beside writers
_NEW_PRIMARY_TIMEOUT = 60.0  # seconds
_LOST = (CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST, ER.SERVER_SHUTDOWN)


class MySQLOrders(SQLTable, Orders):
    title = "MariaDB"
    jars = ("mariadb",)
    has_rows_before = True
    # A lost connection, too: commits waited when the primary was killed, so nothing that was not answered is committed.
    retryable: ClassVar[Collection[int]] = (*SQLTable.retryable, *_LOST)

    def __init__(self) -> None:
        self._condition = threading.Condition()  # guards the primary; never held during a call to a server
        self._primary: MariaDB | None = None  # None between a primary's end and the promotion of its replica

    def start(self, stack: ExitStack) -> None:
        self._stack = stack
        primary, self._replica = (stack.enter_context(MariaDB()) for _ in range(2))
        self._servers = [primary.address, self._replica.address]
        self._primary = primary
        primary.execute(f"CREATE DATABASE {DATABASE}")
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(DEFINITION)
        self._replica.replicate_from(primary)
        self._workload = super().workload(pause=0)
        old = [(f"customer-{n % 25:03}", str(10**9 + n)) for n in range(_OLD_ORDERS)]
        for number, writer in enumerate(self._workload.writers):
            assert isinstance(writer, SQLWriter)
            # Half of a writer's rows, which it changes later, and rows that nobody changes any longer.
            before = [*writer.items[::2], *old[number :: len(self._workload.writers)]]
            writer.store([(item, writer.version(item)) for item in before])
            writer.begin_stream()
        self._start_position = primary.gtid

    @property
    def address(self) -> str:
        return " and ".join(self._servers)

    def source(self) -> dict[str, Any]:
        return {
            "name": "orders",
            "type": "mysql",
            "shards": {"-": self._servers},
            "user": USER,
            "password": PASSWORD,
            "database": DATABASE,
            "tables": [TABLE],
            "start": {"gtid": {"-": f"MariaDB/{self._start_position}"}},
            "snapshot_rows_per_second": _PACE,
        }

    def workload(self, *, pause: float) -> Workload:
        for writer in self._workload.writers:
            writer.pause = pause
        return self._workload

    def load(self) -> Load:
        loader = PrimaryLoader(self.connect, self.read, key=CACHE_KEY)
        self._stack.callback(loader.close)
        return loader.load

    def incidents(self) -> list[Incident]:
        return [Incident(0.5, self._fail_over)]

    def record_key(self, item: Item) -> object:
        return item

    def connect(self) -> Connection[Cursor]:
        """Return a new connection to the primary; wait while there is none."""
        with self._condition:
            if not self._condition.wait_for(lambda: self._primary is not None, _NEW_PRIMARY_TIMEOUT):
                raise TimeoutError(f"no server was promoted within {_NEW_PRIMARY_TIMEOUT:.0f} s")
            primary = self._primary
        assert primary is not None
        return primary.connect(database=DATABASE)

    def _fail_over(self) -> str:
        """Kill the primary, and promote its replica. Commits wait from before that has everything until it is dead."""
        started = time.monotonic()
        killed = self._primary
        assert killed is not None
        with closing(killed.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("FLUSH TABLES WITH READ LOCK")
            self._replica.wait_for(killed.gtid)
            with self._condition:
                self._primary = None
            killed.kill()
        self._replica.promote()
        with self._condition:
            self._primary = self._replica
            self._condition.notify_all()
        paused = time.monotonic() - started
        killed.restart()
        killed.replicate_from(self._replica)
        return (
            f"the primary {killed.address} was killed and {self._replica.address} promoted; its writers waited "
            f"{paused * 1000:.0f} ms"
        )
