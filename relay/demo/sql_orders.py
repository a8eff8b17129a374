"""The demo's table in any SQL database: its definition, and the statements of its writers."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from typing import Any, ClassVar

import orjson
import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER
from pymysql.cursors import Cursor

from relay.demo.orders import TABLE
from relay.demo.workload import HASH_KEY, RANGE_KEY, Item, Planned, Workload, Writer, item_of

DEFINITION = f"""
    CREATE TABLE {TABLE} (
        {HASH_KEY} VARCHAR(32) NOT NULL,
        {RANGE_KEY} BIGINT UNSIGNED NOT NULL,
        version INT NOT NULL,
        amount DECIMAL(20, 1) NOT NULL,
        tags JSON NOT NULL,
        payload VARCHAR(100) NOT NULL,
        PRIMARY KEY ({HASH_KEY}, {RANGE_KEY})
    )
"""
Statement = tuple[str, Sequence[Any]]
"""SQL and its arguments."""
Statements = Callable[[str, Planned], Iterable[Statement]]
"""Returns the statements to run on a table for some items."""

_ATTEMPTS = 10
_IS_ITEM = f"{HASH_KEY} = %s AND {RANGE_KEY} = %s"
# The condition on the customers selects the shards; given only pairs, vtgate would query all shards.
_ARE_ITEMS = f"{HASH_KEY} IN %s AND ({HASH_KEY}, {RANGE_KEY}) IN %s"


class SQLTable(ABC):
    """The table in one database, as its writers and readers see it."""

    tables: ClassVar[Sequence[str]] = (TABLE,)
    """The tables that may contain its rows."""
    retryable: ClassVar[Collection[int]] = (ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT)
    """After these errors, no part of a statement, or of its transaction, is committed."""

    @abstractmethod
    def connect(self) -> Connection[Cursor]:
        """Return a new connection with autocommit."""

    def table_of(self, customer: str) -> str:
        """Return the table in ``tables`` that now has the customer's orders."""
        return TABLE

    def writing(self, customers: Collection[str]) -> AbstractContextManager[None]:
        """Keep the orders of these customers where they are."""
        return nullcontext()

    def workload(self, *, pause: float) -> Workload:
        return Workload(partial(SQLWriter, self), pause=pause)

    def versions(self) -> dict[Item, int]:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            found: dict[Item, int] = {}
            for table in self.tables:
                cursor.execute(f"SELECT {HASH_KEY}, {RANGE_KEY}, version FROM {table}")
                found |= {(customer, str(order)): version for customer, order, version in cursor.fetchall()}
            return found

    def read(self, cursor: Cursor, keys: Sequence[str]) -> list[tuple[dict[str, Any], bytes]]:
        """Return the rows of cache keys, each with its JSON as the cache stores it."""
        found: list[tuple[dict[str, Any], bytes]] = []
        for item in map(item_of, keys):
            table, rows = "", []
            # Repeated if the orders moved during the read. In a real reshard, vtgate handles that.
            while table != (table := self.table_of(item[0])):
                cursor.execute(f"SELECT * FROM {table} WHERE {_IS_ITEM}", item)
                names = [column[0] for column in cursor.description]
                rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
            found += [(row, orjson.dumps(row, default=str)) for row in rows]
        return found


class SQLWriter(Writer):
    def __init__(self, table: SQLTable, number: int, **options: Any) -> None:
        super().__init__(number, **options)
        self._table = table
        self._connection = table.connect()

    def close(self) -> None:
        self._connection.close()

    def write_once(self) -> None:
        if self.random.random() < 0.1:
            self._rekey(self.random.choice(self.items))
        else:
            super().write_once()

    def write(self, planned: Planned, statements: Statements, *, in_transaction: bool = False) -> None:
        """Run the statements on each table that has some of the items, and repeat those undone by an error."""
        started = time.time()
        with self._table.writing({customer for (customer, _), _ in planned}):
            parts: defaultdict[str, list[tuple[Item, int | None]]] = defaultdict(list)
            for item, version in planned:
                parts[self._table.table_of(item[0])].append((item, version))
            run = [each for table, part in parts.items() for each in statements(table, part)]
            if in_transaction:
                self._attempt([("BEGIN", ()), *run, ("COMMIT", ())])
            else:
                for statement in run:  # each commits by itself, so a failure of the next must not repeat it
                    self._attempt([statement])
            self.record(started, *planned)

    def _attempt(self, statements: Sequence[Statement]) -> None:
        for attempts_left in reversed(range(_ATTEMPTS)):
            with self._connection.cursor() as cursor:
                try:
                    for sql, arguments in statements:
                        cursor.execute(sql, arguments)
                    return
                except pymysql.err.OperationalError as error:
                    if error.args[0] not in self._table.retryable or not attempts_left:
                        raise
            # The server rolls back what it still can. A ROLLBACK would fail if the transaction has already ended.
            self._connection.close()
            self._connection = self._table.connect()

    def store(self, planned: Planned, *, in_transaction: bool = False) -> None:
        """Run one INSERT ... ON DUPLICATE KEY UPDATE for the items with a version, and one DELETE for the others."""

        def statements(table: str, part: Planned) -> Iterable[Statement]:
            rows = [
                {HASH_KEY: item[0], RANGE_KEY: int(item[1]), **self._values(version)}
                for item, version in part
                if version is not None
            ]
            if rows:
                names, values = ", ".join(rows[0]), ", ".join(["%s"] * len(rows))
                changes = ", ".join(f"{name} = VALUES({name})" for name in rows[0] if name not in (HASH_KEY, RANGE_KEY))
                insert = f"INSERT INTO {table} ({names}) VALUES {values} ON DUPLICATE KEY UPDATE {changes}"
                yield insert, [tuple(row.values()) for row in rows]
            if deleted := [(item[0], int(item[1])) for item, version in part if version is None]:
                yield (f"DELETE FROM {table} WHERE {_ARE_ITEMS}", (sorted({each for each, _ in deleted}), deleted))

        self.write(planned, statements, in_transaction=in_transaction)

    def _rekey(self, item: Item) -> None:
        """Run an UPDATE of the primary key, which turns one item into another."""
        free = [other for other in self.items if other[0] == item[0] and not self.exists(other)]
        if not free or not self.exists(item):
            self.save(item)
            return
        other = self.random.choice(free)

        def rekey(table: str, part: Planned) -> Iterable[Statement]:
            yield f"UPDATE {table} SET {RANGE_KEY} = %s, version = %s WHERE {_IS_ITEM}", (other[1], part[1][1], *item)

        self.write([(item, None), (other, self.version(other))], rekey)

    def _values(self, version: int | None) -> dict[str, Any]:
        columns = self.columns()
        columns["tags"] = orjson.dumps(columns["tags"]).decode()
        return {"version": version, **columns}
