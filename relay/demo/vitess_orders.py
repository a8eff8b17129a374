"""The demo's table in Vitess: created, written, loaded into the cache, altered, resharded, and read back.

The keyspace has four shards. One of them is split during the load into two shards of a second keyspace, since the
embedded Vitess cannot change the shards of a running keyspace. The relay sees what it would see of Vitess' own Reshard:
the source's stream ends with a journal that names the targets and the positions to start at in them.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any, ClassVar

import pymysql
from pymysql.constants import ER
from pymysql.cursors import Cursor

from relay.cache import Load, VitessLoader
from relay.demo.orders import TABLE, Incident, Orders
from relay.demo.sql_orders import DEFINITION, SQLWriter, Statements, read_order
from relay.demo.truth import PublishedChange
from relay.demo.workload import CACHE_KEY, HASH_KEY, RANGE_KEY, Item, Planned, Workload, item_of
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


class VitessOrders(Orders):
    title = "Vitess"
    jars = ("mariadb",)

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

    def workload(self, pause: float) -> Workload:
        return Workload(partial(VitessWriter, self), pause=pause)

    def load(self) -> Load:
        loader = VitessLoader(self.vitess.connect, BEFORE, self._read, key=CACHE_KEY)
        self._stack.callback(loader.close)
        return loader.load

    def versions(self) -> dict[Item, int]:
        return {
            (customer, str(order)): version
            for keyspace in KEYSPACES
            for customer, order, version in self.vitess.execute(
                f"SELECT {HASH_KEY}, {RANGE_KEY}, version FROM {TABLE}", keyspace
            )
        }

    def incidents(self) -> list[Incident]:
        return [Incident(0.3, self._alter), Incident(0.5, self._split)]

    def problems(self, changes: Iterable[PublishedChange]) -> list[str]:
        shards, has_column = set(), set()
        for change in changes:
            shards.add(change.shard)
            has_column |= {ADDED in change.columns} if change.version is not None else set()
        wanted = [*KEYSPACES[BEFORE], *(f"{AFTER}/{shard}" for shard in TARGETS)]
        missing = [shard for shard in wanted if f"orders/{BEFORE}/{shard}" not in shards]
        found = [f"no change came from shard {shard}" for shard in missing]
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
        """Wait until vtgate knows the new column; the tablets tell it a moment later."""
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

    def _read(self, cursor: Cursor, keys: Sequence[str]) -> list[tuple[dict[str, Any], bytes]]:
        found: list[tuple[dict[str, Any], bytes]] = []
        for key in keys:
            customer, order = item_of(key)
            keyspace = ""
            # Repeated if the orders moved during the read. In a real reshard vtgate handles that.
            while keyspace != (keyspace := self.placement.keyspace(customer)):
                rows = read_order(cursor, f"{keyspace}.{TABLE}", (customer, order))
            found += rows
        return found


class Placement:
    """The keyspace of each customer's orders, and the move of one shard to the other keyspace. Threads may share it."""

    def __init__(self) -> None:
        self._moved_range = KeyRange.parse(SPLIT)
        self._condition = threading.Condition()  # guards the rest; never held during a call to the database
        self._is_moving = self._has_moved = False
        self._writers = 0  # the writers of orders of the moved range

    def keyspace(self, customer: str) -> str:
        with self._condition:
            has_moved = self._has_moved
        return AFTER if has_moved and self._is_in_moved_range(customer) else BEFORE

    def _is_in_moved_range(self, customer: str) -> bool:
        return self._moved_range.contains(keyspace_id(_VINDEX, customer))

    @contextmanager
    def writing(self, customers: Collection[str]) -> Iterator[None]:
        """Keep the orders of these customers from moving."""
        is_affected = any(map(self._is_in_moved_range, customers))
        with self._condition:
            self._condition.wait_for(lambda: not (is_affected and self._is_moving))
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
            self._is_moving = True
            self._condition.wait_for(lambda: not self._writers)
        has_moved = False
        try:
            copied = copy()
            has_moved = True
        finally:
            with self._condition:
                self._has_moved = has_moved
                self._is_moving = False
                self._condition.notify_all()
        return copied


class VitessWriter(SQLWriter):
    retryable: ClassVar[Collection[int]] = (*SQLWriter.retryable, _TRANSACTION_TIMEOUT)

    def __init__(self, table: VitessOrders, number: int, **options: Any) -> None:
        super().__init__(partial(table.vitess.connect, BEFORE), number, **options)
        self.table = table

    def write(self, planned: Planned, statements: Statements, *, in_transaction: bool = False) -> None:
        """Run the statements for each keyspace with some of the items, and retry after a deadlock or timeout."""
        started = time.time()
        placement = self.table.placement
        with placement.writing({customer for (customer, _), _ in planned}):
            parts: defaultdict[str, list[tuple[Item, int | None]]] = defaultdict(list)
            for item, version in planned:
                parts[placement.keyspace(item[0])].append((item, version))
            run = [each for keyspace, part in parts.items() for each in statements(f"{keyspace}.{TABLE}", part)]
            self.run_all(run, in_transaction=in_transaction)
            self.record(started, *planned)

    def values(self, item: Item, version: int | None) -> dict[str, Any]:
        return super().values(item, version) | ({ADDED: f"note {version}"} if self.table.is_altered else {})
