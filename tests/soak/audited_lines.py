"""The MariaDB part: an audited table on a primary and its replica, which are killed and change places.

Versions are numbers given out by the writers; a delete is -1.
"""

from __future__ import annotations

import math
import random
import threading
import time
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from functools import partial
from typing import Any, NamedTuple, Self

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor, SSCursor

from relay.cache import LoadedValue, QueriesLoader, Tokens
from relay.errors import Unavailable
from relay.mysql import ReplicationWatcher
from relay.services.mariadb import PASSWORD, USER, MariaDB, SQLServer
from tests.faults.audited import TABLE, Writer
from tests.faults.replicated import DATABASE, Replicated
from tests.soak.part import Fault, Item

DELETED = -1

_SOURCE = "audited"
SHARD = f"{_SOURCE}/{DATABASE}/-"
CACHE_KEY = "line:{customer}:{line}"
_WRITERS = 2
_CUSTOMERS = 60
_LINES = 12
_BULKS = (50, 200, 500)  # rows
_PAUSE = 0.002  # seconds between two transactions
_FAIL_OVER_WITHIN = 300.0
_ERRORS = (pymysql.err.OperationalError, pymysql.err.InterfaceError, pymysql.err.InternalError, OSError, Unavailable)


class Transaction(NamedTuple):
    """``first``, ``last``: the versions that it gave out. ``wrote``: whether a commit of rows was answered."""

    who: str
    first: int
    last: int
    begun: float
    wrote: bool


class BulkWriter(Writer):
    """Makes some of its transactions, ``bulk_share``, of one statement with many rows.

    ``rate``: the most changes a second. ``transactions``: all that were begun.
    """

    rate = math.inf
    bulk_share = 0.2

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.transactions: list[Transaction] = []

    def _transaction(self, connection: Connection[Cursor]) -> None:
        before, begun, is_bulk = self._version, time.time(), self._random.random() < self.bulk_share
        returned = False
        try:
            if is_bulk:
                self._bulk(connection)
            else:
                super()._transaction(connection)
            returned = True
        finally:
            self.transactions.append(Transaction(self.name, before + 1, self._version, begun, is_bulk and returned))
        self._pause = max(_PAUSE, (self._version - before) / self.rate)

    def _bulk(self, connection: Connection[Cursor]) -> None:
        chance, rows = self._random, []
        for _ in range(chance.choice(_BULKS)):
            self._version += 1
            rows.append(f"({chance.choice(self._customers)},{chance.randrange(_LINES)},{self._version},'bulk')")
        with connection.cursor() as cursor:
            cursor.execute(
                f"insert into `{self._place(0)}`.{TABLE} (customer, line, version, note) values {','.join(rows)}"
                " on duplicate key update version = values(version), note = values(note)"
            )
            cursor.execute("commit")


class PrimaryReader:
    """Loads rows from the primary of now, with its tokens. For one thread."""

    def __init__(self) -> None:
        self._open: ExitStack | None = None
        self._loader: QueriesLoader | None = None
        self._watcher: ReplicationWatcher | None = None

    def load(self, primary: SQLServer, key: str, compare: Tokens | None) -> LoadedValue:
        try:
            if self._watcher is None or self._watcher.error is not None:
                self.close()
                self._connect(primary)
            assert self._loader is not None
            return self._loader.load(key, compare)
        except _ERRORS as error:
            self.close()
            raise Unavailable(f"the primary at {primary.address} is away: {error}") from error

    def close(self) -> None:
        opened, self._open, self._loader, self._watcher = self._open, None, None, None
        if opened is not None:
            with suppress(*_ERRORS):  # it may be closed already
                opened.close()

    def _connect(self, primary: SQLServer) -> None:
        with ExitStack() as stack:
            watcher = ReplicationWatcher.of(primary.host, primary.port, USER, PASSWORD, SHARD)
            stack.enter_context(watcher)
            self._watcher = watcher
            connect = partial(primary.connect, USER, connect_timeout=5, read_timeout=30)
            self._loader = stack.enter_context(closing(QueriesLoader(connect, watcher, read_lines, key=CACHE_KEY)))
            self._open = stack.pop_all()


def read_lines(cursor: Any, keys: Sequence[str]) -> list[tuple[dict[str, Any], bytes]]:
    """Return the lines that are there, with their versions."""
    found: list[tuple[dict[str, Any], bytes]] = []
    for key in keys:
        _, customer, line = key.split(":")
        cursor.execute(
            f"select customer, line, version from {DATABASE}.{TABLE} where customer = %s and line = %s",
            (int(customer), int(line)),
        )
        for number, of_line, version in cursor.fetchall():
            found.append(({"customer": number, "line": of_line}, str(version).encode()))
    return found


class AuditedLines:
    """The part that is a ``Part``: servers, writers, and what happens to them."""

    table = TABLE
    cache_key = CACHE_KEY

    def __init__(self, seed: int, rate: float, writers: int = _WRITERS, customers: int = _CUSTOMERS) -> None:
        self.items: Sequence[Item] = [(customer, line) for customer in range(customers) for line in range(_LINES)]
        self.gate: AbstractContextManager[Any] = threading.Lock()
        self._chance = random.Random(f"lines/{seed}")
        self._seed, self._rate, self._count, self._customers = seed, rate, writers, customers
        self._stack = ExitStack()
        self._reader = PrimaryReader()
        self._written = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._servers = Replicated(stack.enter_context(MariaDB()), stack.enter_context(MariaDB()))
            connect, count = self._servers.connect, self._count
            self._writers = [
                BulkWriter(connect, lambda _: DATABASE, range(n, self._customers, count), self._seed % 1000 * 10 + n)
                for n in range(count)
            ]
            for writer in self._writers:
                writer.rate = self._rate / self._count
            stack.callback(self._end)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _end(self) -> None:
        for writer in self._writers:
            writer.end()
        self._reader.close()

    def source(self) -> dict[str, Any]:
        # Called before anything is written: not "current", which is where the relay happens to begin.
        start = {"gtid": {"-": f"MariaDB/{self._servers.primary.gtid}"}}
        return {**self._servers.source(_SOURCE), "tables": [TABLE], "start": start}

    def start(self) -> None:
        for writer in self._writers:
            writer.start()

    def stop(self) -> None:
        for writer in self._writers:
            writer.stop()

    def written(self) -> int:
        with suppress(*_ERRORS):  # as of the last time then
            ((count,),) = self._servers.primary.execute(f"select max(seq) from {DATABASE}.{TABLE}_audit")
            self._written = count or 0
        return self._written

    # ------------------------------------------------------------------ faults

    def faults(self) -> list[Fault]:
        return [
            Fault("primary", 0.6, lambda: self._restart(self._servers.primary)),
            Fault("replica", 0.6, lambda: self._restart(self._servers.replica)),
            Fault("switch", 0.4, lambda: self._fail_over(kill=False)),
            Fault("failover", 0.4, lambda: self._fail_over(kill=True)),
        ]

    def relent(self) -> None:
        """None of its faults lasts."""

    def _restart(self, server: SQLServer) -> None:
        server.kill()
        time.sleep(self._chance.uniform(0.0, 1.0))
        server.restart()

    def _fail_over(self, *, kill: bool) -> None:
        self._servers.fail_over(self._paused(), self._move, kill=kill, timeout=_FAIL_OVER_WITHIN)

    def _paused(self) -> ExitStack:
        with ExitStack() as stack:
            stack.enter_context(self.gate)
            for writer in self._writers:
                stack.enter_context(writer.gate)
            return stack.pop_all()

    def _move(self) -> None:
        self._reader.close()
        for writer in self._writers:
            writer.reconnect()

    # ------------------------------------------------------------------ the truth

    def history(self) -> Mapping[Item, Sequence[int]]:
        found: dict[Item, array[int]] = defaultdict(lambda: array("q"))
        with closing(self._servers.connect()) as connection, connection.cursor(SSCursor) as cursor:
            cursor.execute(f"select customer, line, version from {DATABASE}.{TABLE}_audit order by seq")
            for customer, line, version in cursor:
                found[customer, line].append(DELETED if version is None else version)
        return found

    def transactions(self) -> Iterator[Transaction]:
        """Yield what the writers began."""
        return (transaction for writer in self._writers for transaction in writer.transactions)

    def times(self) -> Mapping[tuple[Item, int], float]:
        begun = {version: each.begun for each in self.transactions() for version in range(each.first, each.last + 1)}
        return {
            (item, number): begun.get(number, 0.0) for item, numbers in self.history().items() for number in numbers
        }

    def told(self, change: Mapping[str, Any]) -> tuple[Item, int]:
        new = change["new"]
        return (change["key"]["customer"], change["key"]["line"]), DELETED if new is None else new["version"]

    def row(self, number: int) -> int | None:
        return None if number == DELETED else number

    # ------------------------------------------------------------------ the application

    def key_of(self, item: Item) -> str:
        assert isinstance(item, tuple)
        return f"line:{item[0]}:{item[1]}"

    def load(self, key: str, compare: Tokens | None) -> LoadedValue:
        return self._reader.load(self._servers.primary, key, compare)

    def version_in(self, value: bytes) -> int:
        return int(value)

    def item_in(self, row: Mapping[str, Any]) -> tuple[Item, int]:
        return (int(row["customer"]), int(row["line"])), int(row["version"])
