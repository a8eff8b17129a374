"""The demo's table in Vitess: created, written, loaded into the cache, resharded, and read back.

The relay sees the same as in Vitess' own Reshard: the source's stream ends with a journal that names the targets and
the positions to start at in them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Any, ClassVar

from pymysql.connections import Connection
from pymysql.cursors import Cursor

from relay.cache import Load, VitessLoader
from relay.demo.orders import TABLE, Incident, Orders
from relay.demo.sql_orders import DEFINITION, SQLTable
from relay.demo.workload import CACHE_KEY, HASH_KEY
from relay.kafka.changes import ReceivedChange
from relay.keyrange import KeyRange
from relay.services.vitess import Vitess
from relay.services.vitess_build import vtcombo
from relay.vitess.vindex import keyspace_id

BEFORE, AFTER = "shop", "resharded"
KEYSPACES = {BEFORE: ("-40", "40-80", "80-c0", "c0-"), AFTER: ("-c0", "c0-e0", "e0-")}
SPLIT, TARGETS = "c0-", ("c0-e0", "e0-")

_VINDEX = "xxhash"
_VSCHEMA = {
    "sharded": True,
    "vindexes": {_VINDEX: {"type": _VINDEX}},
    "tables": {TABLE: {"column_vindexes": [{"column": HASH_KEY, "name": _VINDEX}]}},
}
# A transaction that waits for longer is ended, and its writer repeats it.
_FLAGS = {"queryserver-config-transaction-timeout": "10s"}
_TRANSACTION_TIMEOUT = 3024
"""The error when vttablet interrupts a statement whose transaction lasted too long (MySQL's ER_QUERY_TIMEOUT)."""


class VitessOrders(SQLTable, Orders):
    title = "Vitess"
    jars = ("mariadb",)
    tables = tuple(f"{keyspace}.{TABLE}" for keyspace in KEYSPACES)
    retryable: ClassVar[Collection[int]] = (*SQLTable.retryable, _TRANSACTION_TIMEOUT)

    def __init__(self) -> None:
        self.placement = Placement()

    def prepare(self) -> None:
        vtcombo()

    def start(self, stack: ExitStack) -> None:
        schemas = dict.fromkeys(KEYSPACES, (DEFINITION, _VSCHEMA))
        self.vitess = stack.enter_context(Vitess(keyspaces=KEYSPACES, schemas=schemas, flags=_FLAGS))
        self._stack = stack
        self._start_position = self.vitess.position

    @property
    def address(self) -> str:
        return self.vitess.vtgate

    def source(self) -> dict[str, Any]:
        return {
            "name": "orders",
            "type": "vitess",
            "vtgate": self.vitess.vtgate,
            "keyspace": BEFORE,
            "tables": [TABLE],
            "start": {"vgtid": [{"shard": shard, "gtid": self._start_position} for shard in KEYSPACES[BEFORE]]},
        }

    def connect(self) -> Connection[Cursor]:
        return self.vitess.connect(BEFORE)

    def table_of(self, customer: str) -> str:
        return f"{self.placement.keyspace(customer)}.{TABLE}"

    def writing(self, customers: Collection[str]) -> AbstractContextManager[None]:
        return self.placement.writing(customers)

    def load(self) -> Load:
        loader = VitessLoader(self.vitess.connect, BEFORE, self.read, key=CACHE_KEY)
        self._stack.callback(loader.close)
        return loader.load

    def incidents(self) -> list[Incident]:
        return [Incident(0.5, self._split)]

    def problems(self, changes: Iterable[ReceivedChange]) -> list[str]:
        shards = {change.token.shard for change in changes if change.token}
        wanted = [*KEYSPACES[BEFORE], *(f"{AFTER}/{shard}" for shard in TARGETS)]
        return [f"no change came from shard {each}" for each in wanted if f"orders/{BEFORE}/{each}" not in shards]

    def _split(self) -> str:
        started = time.monotonic()
        copied, journal = self.placement.move(self._reshard)
        paused = time.monotonic() - started
        # As at the end of a reshard. The relay must not relay these deletes.
        self.vitess.execute(f"DELETE FROM {TABLE}", f"{BEFORE}:{SPLIT}")
        targets = " and ".join(f"{AFTER}/{shard}" for shard in TARGETS)
        return (
            f"shard {BEFORE}/{SPLIT} is split: {copied} rows are copied to {targets}, journal {journal} is written; "
            f"its writers waited {paused * 1000:.0f} ms"
        )

    def _reshard(self) -> tuple[int, int]:
        """Copy the shard's rows, and end it with a journal. Return the number of rows and the journal's id.

        The relay does not see the copied rows: the journal names positions in the targets that come after them.
        """
        with closing(self.vitess.connect(f"{BEFORE}:{SPLIT}")) as source, source.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {TABLE}")
            rows = cursor.fetchall()
            names = [column[0] for column in cursor.description]
        with closing(self.vitess.connect(AFTER)) as target, target.cursor() as cursor:
            placeholders = ", ".join(["%s"] * len(names))
            cursor.executemany(f"INSERT INTO {TABLE} ({', '.join(names)}) VALUES ({placeholders})", rows)
        return len(rows), self.vitess.journal([(BEFORE, SPLIT)], [(AFTER, shard) for shard in TARGETS])


class Placement:
    """The keyspace of each customer's orders, and the move of one shard to the other keyspace. Threads may share it."""

    def __init__(self) -> None:
        self._moved_range = KeyRange.parse(SPLIT)
        self._condition = threading.Condition()  # guards the rest; never held during a call to the database
        self._keyspace: str | None = BEFORE  # of the moved range; None while it moves
        self._writers = 0  # the writers of orders of the moved range

    def keyspace(self, customer: str) -> str:
        return AFTER if self._keyspace == AFTER and self._is_in_moved_range(customer) else BEFORE

    def _is_in_moved_range(self, customer: str) -> bool:
        return self._moved_range.contains(keyspace_id(_VINDEX, customer))

    @contextmanager
    def writing(self, customers: Collection[str]) -> Iterator[None]:
        """Keep the orders of these customers from moving."""
        is_affected = any(map(self._is_in_moved_range, customers))
        with self._condition:
            self._condition.wait_for(lambda: not is_affected or self._keyspace is not None)
            self._writers += is_affected
        try:
            yield
        finally:
            with self._condition:
                self._writers -= is_affected
                self._condition.notify_all()

    def move(self, copy: Callable[[], tuple[int, int]]) -> tuple[int, int]:
        """Call ``copy``, which moves the shard, while nobody writes to it. Return its result."""
        with self._condition:
            self._keyspace = None
            self._condition.wait_for(lambda: not self._writers)
        copied = copy()  # if it fails, the demo ends
        with self._condition:
            self._keyspace = AFTER
            self._condition.notify_all()
        return copied
