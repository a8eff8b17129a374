"""A table whose database writes down each of its changes, in the same transaction: what was committed is known exactly.

Writers write straight into the shards' databases, so a commit whose answer a kill has swallowed is in the record all
the same. ``items (customer, line, version, note)``: a primary key of two columns, the first of which chooses the shard.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor

Item = tuple[int, int]
Connect = Callable[[], "Connection[Cursor]"]
"""Connects to the server of the shards, without a database."""

TABLE = "items"
ITEMS = (
    "create table items (customer bigint not null, line int not null, version bigint not null, note varchar(64),"
    " primary key (customer, line))"
)
_AUDIT = (
    "create table items_audit (seq bigint auto_increment primary key, customer bigint not null, line int not null,"
    " version bigint)",
    "create trigger items_i after insert on items for each row if @copying is null then"
    " insert into items_audit (customer, line, version) values (new.customer, new.line, new.version); end if",
    "create trigger items_d after delete on items for each row"
    " insert into items_audit (customer, line, version) values (old.customer, old.line, null)",
    "create trigger items_u after update on items for each row begin"
    " if old.line <> new.line then"
    "  insert into items_audit (customer, line, version) values (old.customer, old.line, null); end if;"
    " insert into items_audit (customer, line, version) values (new.customer, new.line, new.version); end",
)


def opened(connection: Connection[Cursor]) -> Connection[Cursor]:
    """Open a connection that was made with ``defer_connect``. PyMySQL itself leaves a local socket open that fails."""
    local = socket.socket(socket.AF_UNIX)
    try:
        local.settimeout(60.0)
        local.connect(str(connection.unix_socket))
    except BaseException:
        local.close()
        raise
    connection.connect(local)
    return connection


def audit(connect: Connect, databases: Iterable[str]) -> None:
    """Begin to write down the changes of ``items`` in each of ``databases``.

    Not in a session whose ``@copying`` is set.
    """
    with closing(connect()) as connection, connection.cursor() as cursor:
        for database in databases:
            cursor.execute(f"use `{database}`")
            for statement in _AUDIT:
                cursor.execute(statement)


class Writer(threading.Thread):
    """Writes to customers of its own: inserts, updates, deletes, lines that move, transactions of several rows.

    ``place``: the database that a customer is in now. ``gate``: held while a transaction is made, so that whoever
    takes it knows that none is.
    """

    def __init__(
        self, connect: Connect, place: Callable[[int], str], customers: Sequence[int], seed: int, pause: float = 0.02
    ) -> None:
        super().__init__(name=f"writer-{seed}", daemon=True)
        self.gate = threading.Lock()
        self.failure: BaseException | None = None
        self._connect = connect
        self._place = place
        self._customers = customers
        self._random = random.Random(seed)
        self._pause = pause
        self._version = seed * 1_000_000_000
        self._stopping = threading.Event()
        self._is_elsewhere = False

    def reconnect(self) -> None:
        """Go on where ``connect`` leads now. For whoever holds the gate."""
        self._is_elsewhere = True

    def end(self) -> None:
        """End it, if it was begun."""
        self._stopping.set()
        if self.ident is not None:
            self.join(60)

    def stop(self) -> None:
        """End it. Raises what made it fail."""
        self.end()
        if self.failure is not None:
            raise self.failure

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    with self.gate:
                        self._is_elsewhere = False
                        connection = self._connect()
                    with closing(connection):
                        while not self._stopping.is_set():
                            with self.gate:
                                if self._is_elsewhere:
                                    break
                                self._transaction(connection)
                            time.sleep(self._pause)
                except (pymysql.err.OperationalError, pymysql.err.InterfaceError, OSError):
                    time.sleep(0.1)  # the server was killed: the audit knows what became of the transaction
        except BaseException as error:
            self.failure = error

    def _transaction(self, connection: Connection[Cursor]) -> None:
        chance = self._random
        customer = chance.choice(self._customers)
        with connection.cursor() as cursor:
            cursor.execute(f"use `{self._place(customer)}`")
            cursor.execute("begin")
            for _ in range(chance.choice((1, 1, 1, 2, 5, 40))):
                self._change(cursor, customer, chance.randrange(12))
            cursor.execute(chance.choice(("commit",) * 19 + ("rollback",)))

    def _change(self, cursor: Cursor, customer: int, line: int) -> None:
        self._version += 1
        kind = self._random.random()
        if kind < 0.15:
            cursor.execute("delete from items where customer = %s and line = %s", (customer, line))
        elif kind < 0.25:
            with suppress(pymysql.err.IntegrityError):  # a line that is taken
                cursor.execute(
                    "update items set line = %s, version = %s where customer = %s and line = %s",
                    (self._random.randrange(12), self._version, customer, line),
                )
        else:
            cursor.execute(
                "insert into items (customer, line, version, note) values (%s, %s, %s, %s)"
                " on duplicate key update version = values(version), note = values(note)",
                (customer, line, self._version, f"näh {self._version}"),
            )


def history(connect: Connect, databases: Sequence[str]) -> dict[Item, list[int | None]]:
    """Return the versions of each item in their order, None for a delete; ``databases`` in the order of a reshard."""
    found: dict[Item, list[int | None]] = defaultdict(list)
    with closing(connect()) as connection, connection.cursor() as cursor:
        for database in databases:
            cursor.execute(f"select customer, line, version from `{database}`.items_audit order by seq")
            for customer, line, version in cursor.fetchall():
                found[customer, line].append(version)
    return found


def changes_in(truth: Mapping[Item, Sequence[int | None]]) -> int:
    """Return how many changes a `history` has."""
    return sum(map(len, truth.values()))


def problems(
    truth: Mapping[Item, Sequence[int | None]],
    changes: Sequence[tuple[int, int, Mapping[str, Any]]],
    hashed_by: tuple[str, ...] = ("customer",),
) -> list[str]:
    """Return what is wrong with the topic: ``changes`` are partition, offset and value, of ``items`` alone.

    ``hashed_by``: the columns that choose the partition.
    """
    said: list[str] = []
    doubled = [name for name, count in Counter(value["event_id"] for _, _, value in changes).items() if count > 1]
    if doubled:
        said.append(f"{len(doubled)} event ids are there twice, such as {doubled[0]}")
    told: dict[Item, list[int | None]] = defaultdict(list)
    partitions: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for partition, _, value in sorted(changes, key=lambda change: change[:2]):
        item = value["key"]["customer"], value["key"]["line"]
        told[item].append(None if value["new"] is None else value["new"]["version"])
        partitions[tuple(value["key"][column] for column in hashed_by)].add(partition)
    said += [
        f"{item}: {_difference(list(truth.get(item, ())), told.get(item, []))}"
        for item in truth.keys() | told.keys()
        if list(truth.get(item, ())) != told.get(item, [])
    ]
    said += [f"{hashed} is in {len(where)} partitions" for hashed, where in partitions.items() if len(where) > 1]
    return said


def _difference(truth: list[int | None], told: list[int | None]) -> str:
    at = next((n for n, (a, b) in enumerate(zip(truth, told, strict=False)) if a != b), min(len(truth), len(told)))
    there, here = truth[at : at + 4], told[at : at + 4]
    return f"{len(truth)} changes, {len(told)} on the topic; from number {at} on {there}, not {here}"
