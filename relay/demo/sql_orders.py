"""The demo's table in any SQL database: its definition, and the statements of its writers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, ClassVar

import orjson
import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER
from pymysql.cursors import Cursor

from relay.demo.orders import TABLE
from relay.demo.workload import HASH_KEY, RANGE_KEY, Item, Planned, Writer

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


class SQLWriter(Writer):
    """Writes one row or several, by single statements and by transactions.

    ``connect`` returns a new connection with autocommit.
    """

    retryable: ClassVar[Collection[int]] = (ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT)
    """After these errors, no part of a statement, or of its transaction, is committed."""

    def __init__(self, connect: Callable[[], Connection[Cursor]], number: int, **options: Any) -> None:
        super().__init__(number, **options)
        self._connect = connect
        self._connection = connect()

    def close(self) -> None:
        self._connection.close()

    def write_once(self) -> None:
        kinds = ("one", "delete", "many", "transaction", "increment", "rekey")
        kind = self.random.choices(kinds, (52, 12, 10, 8, 8, 10))[0]
        item = self.random.choice(self.items)
        if kind == "delete" and self.exists(item):
            self.store([(item, None)])
        elif kind in ("many", "transaction"):
            self.store(self.plan(self.choose_items(10)), in_transaction=kind == "transaction")
        elif kind == "increment":
            self._increment(self.choose_items(10))
        elif kind == "rekey":
            self._rekey(item)
        else:
            self.save(item)

    @abstractmethod
    def write(self, planned: Planned, statements: Statements, *, in_transaction: bool = False) -> None:
        """Run the statements for the items by ``run_all``, and record them."""

    def run_all(self, statements: Sequence[Statement], *, in_transaction: bool) -> None:
        """Run the statements, and again after an error that left nothing behind."""
        if in_transaction:
            self._attempt([("BEGIN", ()), *statements, ("COMMIT", ())])
            return
        for statement in statements:  # each commits by itself, so a failure of the next must not repeat it
            self._attempt([statement])

    def _attempt(self, statements: Sequence[Statement]) -> None:
        for attempts_left in reversed(range(_ATTEMPTS)):
            with self._connection.cursor() as cursor:
                try:
                    for sql, arguments in statements:
                        cursor.execute(sql, arguments)
                    return
                except pymysql.err.OperationalError as error:
                    if error.args[0] not in self.retryable or not attempts_left:
                        raise
            # The server rolls back what it still can. A ROLLBACK would fail where the transaction has ended already.
            self._connection.close()
            self._connection = self._connect()

    # ------------------------------------------------------------------ statements

    def save(self, item: Item) -> None:
        planned = [(item, self.version(item))]
        if not self.exists(item):
            self.store(planned)
            return

        def update(table: str, part: Planned) -> Iterable[Statement]:
            values = self.values(*part[0])
            changes = ", ".join(f"{name} = %s" for name in values)
            yield f"UPDATE {table} SET {changes} WHERE {_IS_ITEM}", (*values.values(), *item)

        self.write(planned, update)

    def store(self, planned: Planned, *, in_transaction: bool = False) -> None:
        """Run one INSERT ... ON DUPLICATE KEY UPDATE for the items with a version, and one DELETE for the others."""

        def statements(table: str, part: Planned) -> Iterable[Statement]:
            rows = [{**key(item), **self.values(item, version)} for item, version in part if version is not None]
            if rows:
                names = ", ".join(rows[0])
                values = ", ".join([f"({', '.join(['%s'] * len(rows[0]))})"] * len(rows))
                changes = ", ".join(f"{name} = VALUES({name})" for name in rows[0] if name not in (HASH_KEY, RANGE_KEY))
                yield (
                    f"INSERT INTO {table} ({names}) VALUES {values} ON DUPLICATE KEY UPDATE {changes}",
                    [value for row in rows for value in row.values()],
                )
            if deleted := [item for item, version in part if version is None]:
                yield f"DELETE FROM {table} WHERE {_ARE_ITEMS}", _arguments(deleted)

        self.write(planned, statements, in_transaction=in_transaction)

    def _increment(self, items: Sequence[Item]) -> None:
        planned: Planned = [(item, self.version(item)) for item in items if self.exists(item)]
        if not planned:
            return

        def increment(table: str, part: Planned) -> Iterable[Statement]:
            arguments = _arguments([item for item, _ in part])
            yield f"UPDATE {table} SET version = version + 1 WHERE {_ARE_ITEMS}", arguments

        self.write(planned, increment)

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

    def values(self, item: Item, version: int | None) -> dict[str, Any]:
        columns = self.columns()
        values = {"version": version, "amount": columns["amount"], "tags": orjson.dumps(columns["tags"]).decode()}
        return values | {"payload": columns["payload"]}


def key(item: Item) -> dict[str, Any]:
    return {HASH_KEY: item[0], RANGE_KEY: int(item[1])}


def read_order(cursor: Cursor, table: str, item: Item) -> list[tuple[dict[str, Any], bytes]]:
    """Return the item's row, and its JSON, as the cache holds it; nothing if there is no such row."""
    cursor.execute(f"SELECT * FROM {table} WHERE {_IS_ITEM}", item)
    names = [column[0] for column in cursor.description]
    rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return [(row, orjson.dumps(row, default=str)) for row in rows]


def _arguments(items: Sequence[Item]) -> tuple[Any, ...]:
    """Return the arguments of ``_ARE_ITEMS``."""
    return sorted({customer for customer, _ in items}), [(customer, int(order)) for customer, order in items]
