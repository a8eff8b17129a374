"""The layouts of a source's tables: each made once, and shared by all readers of the source.

May be changed here: what is said of a table that cannot be keyed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from relay.sql.tables import Table
from relay.table import Column

log = logging.getLogger(__name__)

_KEPT = 10_000

Make = Callable[[str, tuple[Column, ...], tuple[str, ...]], Table | None]


class MadeOnce:
    """Calls ``make`` once for each table with its columns and primary key. May be used by several threads.

    The same layout is the same object for all, so that nobody has to compare what it says.
    """

    def __init__(self, make: Make) -> None:
        self._make = make
        self._made: dict[tuple[str, tuple[Column, ...], tuple[str, ...]], Table | None] = {}
        self._lock = threading.Lock()

    def __call__(self, table: str, columns: Sequence[Column], primary: Sequence[str]) -> Table | None:
        identity = table, tuple(columns), tuple(primary)
        with self._lock:
            if identity not in self._made:
                if len(self._made) >= _KEPT:  # I11
                    self._made.clear()
                self._made[identity] = self._make(*identity)
            return self._made[identity]


class LeftOut:
    """The tables of which was said that they are not relayed. ``database``: or keyspace."""

    def __init__(self, source: str, database: str) -> None:
        self.source = source
        self.database = database
        self._said: set[str] = set()

    def say(self, table: str, columns: Sequence[Column]) -> None:
        """I1: say once, and so that nobody can miss it, that the changes of ``table`` are not relayed."""
        if table in self._said:
            return
        self._said.add(table)
        log.warning(
            "source %s: CHANGES OF %s.%s ARE NOT RELAYED: it has no primary key. Name the columns that stand for one, "
            "such as `key: {%s: [%s]}`",
            self.source,
            self.database,
            table,
            table,
            columns[0].name if columns else "id",
        )
