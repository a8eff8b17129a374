"""The layouts of a source's tables, which its readers share: each layout is made once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from concurrent.futures import Future
from functools import partial

from relay.errors import Unavailable
from relay.mysql_dialect.catalog import Definition
from relay.mysql_dialect.tables import Table, Unfit
from relay.table import Column

log = logging.getLogger(__name__)

_KEPT = 10_000
_PATIENCE = 60.0  # seconds, more than the calls to vtgate for one layout take

Layout = tuple[str, tuple[Column, ...], tuple[str, ...]]
"""The basis of a layout: the table's name, its columns, and its primary key."""

Make = Callable[[str, tuple[Column, ...], tuple[str, ...]], Table | None]


class LostKey(Unavailable):
    """A ``table`` has no key: its changes are left out until it has one, and are a gap if it was relayed (I9).

    Not raised for tables in the config: they stop their readers. ``was_relayed``: may change by another shard's rows.
    """

    def __init__(self, skipped: SkippedTables, table: str) -> None:
        super().__init__(f"source {skipped.source}: the table {table} is left out until it has a primary key")
        self.table = table
        self.was_relayed = partial(skipped.was_relayed, table)


def lost_rows(table: str, *, is_left: bool, is_moved: bool = False) -> str:
    """Return the reason of a gap where a table's rows are left out (I9). ``is_moved``: to another keyspace."""
    without_key = "it has no primary key" if is_left else "it had no primary key"
    why = "it was moved to another keyspace" if is_moved else without_key
    return f"left out {'from here on' if is_left else 'up to here'}, as {why}: table {table}"


class LayoutCache:
    """Calls ``make`` once for each table with its columns and primary key. Thread-safe.

    Callers get the same object, and compare layouts by identity. Others wait only for the layout that is being made, up
    to ``patience`` seconds. A failure is raised to all who wait, and is not kept. ``skipped``: takes the tables that
    ``make`` refuses with `Unfit`. ``detailed``: other details of the columns are another layout.
    """

    def __init__(
        self, make: Make, skipped: SkippedTables, patience: float = _PATIENCE, *, detailed: bool = False
    ) -> None:
        self._make = make
        self._detailed = detailed
        self._skipped = skipped
        self._patience = patience
        # Those that are being made, too. Shared by the threads, under the lock, which is not held while one is made.
        self._made: dict[tuple[Layout, tuple[str, ...]], Future[Table | None]] = {}
        self._lock = threading.Lock()

    def __call__(self, table: str, columns: Sequence[Column], primary: Sequence[str]) -> Table | None:
        """Return the layout, or None. Raises as ``make`` does, `LostKey`, and ``Unavailable`` after ``patience``."""
        try:
            return self._get(table, columns, primary)
        except Unfit as error:
            if not self._skipped.skip(table, error.why, lacks_key=error.lacks_key):
                raise
            if error.lacks_key:  # I1: another shard may relay the table meanwhile, and then its rows are a gap
                raise LostKey(self._skipped, table) from None
            return None

    def of_tables(self, found: Mapping[str, Definition]) -> dict[str, Table]:
        """Return the layouts of relayed tables. Raises `Unfit` with all tables that should be relayed but cannot."""
        layouts, unfit = dict[str, Table](), dict[str, str]()
        for name, each in found.items():
            try:
                if each.problem:
                    raise Unfit.of(self._skipped.source, name, each.problem)
                table = self._get(name, each.columns, each.primary)
            except Unfit as error:
                if not self._skipped.skip(name, error.why, lacks_key=error.lacks_key):
                    unfit[name] = error.why
                continue
            if table is not None:
                layouts[name] = table
        self._skipped.skip_all(unfit)
        return layouts

    def _get(self, table: str, columns: Sequence[Column], primary: Sequence[str]) -> Table | None:
        layout = table, tuple(columns), tuple(primary)
        known = layout, tuple(column.detail for column in columns) if self._detailed else ()
        with self._lock:
            made, is_first = self._made.get(known), known not in self._made
            if made is None:
                if len(self._made) >= _KEPT:  # I11
                    self._made = {kept: made for kept, made in self._made.items() if not made.done()}
                made = self._made[known] = Future()
        if is_first:
            try:
                made.set_result(self._make(*layout))
            except BaseException as error:
                with self._lock:
                    self._made.pop(known, None)
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
    """The tables that are left out because they cannot be relayed, though the config includes them. Thread-safe.

    ``named``: the tables that the config names, which are never skipped. ``reasons``: by table, never changed.
    """

    def __init__(self, source: str, database: str, named: Iterable[str] | None) -> None:
        self.source = source
        self.reasons: Mapping[str, str] = {}
        self.is_quiet = False
        self._database = database
        self._named = self._kept = frozenset(named or ())
        self._keyless: frozenset[str] = frozenset()  # the tables in ``reasons`` that lack a key
        self._lock = threading.Lock()

    def was_relayed(self, table: str) -> bool:
        return table in self._kept

    def keep(self, relayed: Iterable[str]) -> None:
        """Skip no table that was ``relayed`` before: what it lacks from then on would be lost (I1)."""
        with self._lock:
            if not self._kept.issuperset(relayed):
                self._kept = self._kept.union(relayed)
                stays = self._keyless | (self.reasons.keys() - self._kept)  # I12
                self.reasons = {table: why for table, why in self.reasons.items() if table in stays}

    def take_back(self, table: str, *, has_gap: bool = False) -> None:
        """Stop skipping a table, and warn of what was left out. ``has_gap``: it came after relayed changes."""
        if table in self.reasons and (has_gap or table not in self._kept):
            self.forget(table)
            name, todo = f"{self._database}.{table}", "Those before are missing: run `relay snapshot`"
            log.warning("source %s: changes of %s are relayed from here on. %s", self.source, name, todo)

    def forget(self, table: str) -> None:
        """Forget why a table is left out: it is emptied, or read again, so nothing of it is missing."""
        if table in self.reasons:
            with self._lock:
                self.reasons = {other: why for other, why in self.reasons.items() if other != table}
                self._keyless -= {table}

    def measured(self, there: Set[str], tables: Collection[str] | None) -> list[str]:
        """Return which ``tables``, None for all, a snapshot cannot read. ``there``: those with a key in every shard."""
        self.has_keys(there if tables is None else there & set(tables))
        return sorted(table for table in self.reasons if tables is None or table in tables)

    def has_keys(self, tables: Set[str]) -> None:
        """Leave out none of ``tables`` for want of a key. Others were left out for another reason."""
        for table in self._keyless & tables:  # I12: no row may come that says so
            self.forget(table)

    def skip_all(self, unfit: Mapping[str, str]) -> None:
        """Leave out tables that cannot be relayed, with reasons. Raises `Unfit` with all that must be relayed."""
        if kept := [str(Unfit.of(self.source, *each)) for each in unfit.items() if not self.skip(*each)]:
            raise Unfit("; ".join(kept))

    def skip(self, table: str, why: str, *, lacks_key: bool = False) -> bool:
        """Whether a table that cannot be relayed is left out (I12). Warns once per table (I1).

        ``lacks_key``: leave it out even if it was relayed, because other shards may already have its key.
        """
        if table in (self._named if lacks_key else self._kept):
            return False
        with self._lock:
            self._keyless |= {table} if lacks_key else set()
            if table not in self.reasons:
                self.reasons = {**self.reasons, table: why}
                name = f"{self._database}.{table}"
                if not self.is_quiet:
                    log.warning("source %s: changes of %s are not relayed: the table %s", self.source, name, why)
        return True
