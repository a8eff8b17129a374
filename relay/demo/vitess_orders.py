"""The demo's table in Vitess: created, written, loaded into the cache, altered, resharded, and read back.

The relay sees the same as in Vitess' own Reshard: the source's stream ends with a journal that names the targets and
the positions to start at in them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Any, ClassVar

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER
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
ADDED = "note"
"""The column that is added during the load."""

_VINDEX = "xxhash"
_VSCHEMA = {
    "sharded": True,
    "vindexes": {_VINDEX: {"type": _VINDEX}},
    "tables": {TABLE: {"column_vindexes": [{"column": HASH_KEY, "name": _VINDEX}]}},
}
# During an ALTER, which vtgate runs in all shards at once, writers to several shards may wait for each other.
_FLAGS = {"queryserver-config-transaction-timeout": "10s"}
_SCHEMA_TIMEOUT = 30.0  # seconds for vtgate to learn of a new column
_TRANSACTION_TIMEOUT = 3024
"""The error when vttablet interrupts a statement whose transaction lasted too long (MySQL's ER_QUERY_TIMEOUT)."""


class VitessOrders(SQLTable, Orders):
    title = "Vitess"
    jars = ("mariadb",)
    tables = tuple(f"{keyspace}.{TABLE}" for keyspace in KEYSPACES)
    retryable: ClassVar[Collection[int]] = (*SQLTable.retryable, _TRANSACTION_TIMEOUT)

    def __init__(self) -> None:
        self.placement = Placement()
        # Whether rows have the added column. Set by the main thread, read by the writers.
        self.is_altered = False

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

    def added_values(self, version: int | None) -> dict[str, Any]:
        return {ADDED: f"note {version}"} if self.is_altered else {}

    def load(self) -> Load:
        loader = VitessLoader(self.vitess.connect, BEFORE, self.read, key=CACHE_KEY)
        self._stack.callback(loader.close)
        return loader.load

    def incidents(self) -> list[Incident]:
        return [Incident(0.3, self._alter), Incident(0.5, self._split)]

    def problems(self, changes: Iterable[ReceivedChange]) -> list[str]:
        changes = list(changes)
        shards = {change.token.shard for change in changes if change.token}
        has_column = {ADDED in change.new for change in changes if change.new}
        wanted = [*KEYSPACES[BEFORE], *(f"{AFTER}/{shard}" for shard in TARGETS)]
        found = [f"no change came from shard {each}" for each in wanted if f"orders/{BEFORE}/{each}" not in shards]
        if len(has_column) < 2:
            found.append(f"all rows came {'with' if True in has_column else 'without'} the column {ADDED}")
        return found

    def _alter(self) -> str:
        for keyspace in KEYSPACES:
            self.vitess.execute(f"ALTER TABLE {TABLE} ADD COLUMN {ADDED} VARCHAR(20) NULL", keyspace)
            self._await_column(keyspace)
        self.is_altered = True
        return f"ALTER TABLE {TABLE} ADD COLUMN {ADDED}: new rows have another column"

    def _await_column(self, keyspace: str) -> None:
        """Wait until vtgate knows the new column; the tablets report it a moment later."""
        deadline = time.monotonic() + _SCHEMA_TIMEOUT
        while True:
            try:
                self.vitess.execute(f"SELECT {ADDED} FROM {TABLE} WHERE {HASH_KEY} = ''", keyspace)
                return
            except pymysql.err.OperationalError as error:
                if error.args[0] != ER.BAD_FIELD_ERROR or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

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
