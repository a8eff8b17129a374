"""Counts how often each key was changed in a transaction, in bounded memory however long it is (I11)."""

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing

IN_MEMORY = 200_000


class KeyCounts:
    """``counts.next(table, key)`` returns 0, 1, 2 ... for each key. Up to ``in_memory`` keys are counted in memory."""

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self._in_memory = in_memory
        # By table and key; and the number of keys.
        self._counts: defaultdict[str, dict[bytes, int]] = defaultdict(dict)
        self._keys = 0
        self._file: sqlite3.Connection | None = None

    def next(self, table: str, key: bytes) -> int:
        """Return how often the key was counted before."""
        if self._file is not None:
            return self._next_in_file(table, key)
        counts = self._counts[table]
        if key in counts:
            counts[key] = n = counts[key] + 1
            return n - 1
        counts[key] = 1
        self._keys += 1
        if self._keys > self._in_memory:
            self._move_to_file()
        return 0

    def load(self, counts: Sequence[tuple[str, bytes, int]]) -> None:
        """Begin with keys that others have counted: table, key, and how often."""
        for table, key, count in counts:
            self._counts[table][key] = count
        self._keys = len(counts)
        if self._keys > self._in_memory:
            self._move_to_file()

    def clear(self) -> None:
        """Start again, for the next transaction."""
        if self._keys:
            self._counts.clear()
            self._keys = 0
        if self._file is not None:
            self._file.close()
            self._file = None

    def _move_to_file(self) -> None:
        # A database without a name is a temporary file that is removed when it is closed, even by a kill.
        self._file = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._file.executescript(
            "pragma journal_mode = off; pragma synchronous = off; pragma cache_size = -16384; begin;"
            "create table counts (t text, k blob, n integer not null, primary key (t, k)) without rowid;"
        )
        rows = ((table, key, n) for table, counts in self._counts.items() for key, n in counts.items())
        self._file.executemany("insert into counts values (?, ?, ?)", rows)
        self._counts.clear()
        self._keys = 0

    def _next_in_file(self, table: str, key: bytes) -> int:
        assert self._file is not None
        add = "insert into counts values (?, ?, 1) on conflict (t, k) do update set n = n + 1 returning n"
        with closing(self._file.execute(add, (table, key))) as answer:
            return int(answer.fetchone()[0]) - 1
