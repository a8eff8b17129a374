"""The layouts of a source's tables, shared by its readers: each is made once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from relay.errors import Unavailable
from relay.mysql_dialect.tables import Table
from relay.table import Column

log = logging.getLogger(__name__)

_KEPT = 10_000
_PATIENCE = 60.0  # seconds; more than the calls to vtgate that one layout takes

Layout = tuple[str, tuple[Column, ...], tuple[str, ...]]
"""What a layout is made of: the table's name, its columns, and its primary key."""

Make = Callable[[str, tuple[Column, ...], tuple[str, ...]], Table | None]


class LayoutCache:
    """Calls ``make`` once for each table with its columns and primary key. Thread-safe.

    The same layout is the same object for all callers, so they compare layouts by identity. ``make`` may ask a server:
    other callers wait only if they need the layout that it is making, for up to ``patience`` seconds, and share its
    result. A failure is raised to all who wait, and is not kept.
    """

    def __init__(self, make: Make, patience: float = _PATIENCE) -> None:
        self._make = make
        self._patience = patience
        # Those that are being made, too. Shared by the threads, under the lock, which is not held while one is made.
        self._made: dict[Layout, Future[Table | None]] = {}
        self._lock = threading.Lock()

    def __call__(self, table: str, columns: Sequence[Column], primary: Sequence[str]) -> Table | None:
        """Return the layout, or None if the table is not relayed.

        Raises what ``make`` raises, and ``Unavailable`` when another caller's ``make`` takes too long.
        """
        layout = table, tuple(columns), tuple(primary)
        with self._lock:
            made, is_first = self._made.get(layout), layout not in self._made
            if made is None:
                if len(self._made) >= _KEPT:  # I11
                    self._made = {kept: made for kept, made in self._made.items() if not made.done()}
                made = self._made[layout] = Future()
        if is_first:
            try:
                made.set_result(self._make(*layout))
            except BaseException as error:
                with self._lock:
                    self._made.pop(layout, None)
                made.set_exception(error)
        try:
            return made.result(self._patience)
        except TimeoutError:
            if made.done():
                return made.result()
            raise Unavailable(
                f"the layout of table {table} is not known: the lookup that another reader began has not ended after "
                f"{self._patience:g} s"
            ) from None


class SkippedTables:
    """The tables that are not relayed although nothing says so. Thread-safe. ``database``: or keyspace.

    ``is_quiet``: somebody else warns.
    """

    def __init__(self, source: str, database: str) -> None:
        self.source = source
        self.database = database
        self.is_quiet = False
        # Shared by the threads, under the lock.
        self._warned_of: set[str] = set()
        self._lock = threading.Lock()

    def __contains__(self, table: str) -> bool:
        return table in self._warned_of

    def warn(self, table: str, columns: Sequence[Column]) -> None:
        """Warn, once for each table, that its changes are not relayed for lack of a key (I1)."""
        some = columns[0].name if columns else "id"
        self.warn_because(
            table,
            f"the table has no primary key. Name the columns that identify a row, such as `key: {{{table}: [{some}]}}`",
        )

    def warn_because(self, table: str, why: str) -> None:
        """Warn, once for each table, that its changes are not relayed (I1)."""
        with self._lock:
            if self.is_quiet or table in self._warned_of:
                return
            self._warned_of.add(table)
        log.warning("source %s: changes of %s.%s are not relayed: %s", self.source, self.database, table, why)
