"""The tables in TABLE_MAP events that were read, and how the rows after each are decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from relay.mysql.binlog.events import BinlogPlace
from relay.mysql.binlog.rows import RowDecoder, columns_of
from relay.mysql.binlog.table_map import BadTableMap, UnfitColumn, name_in, parse
from relay.mysql.errors import NotCarried
from relay.mysql_dialect.layout_cache import LostKey
from relay.mysql_dialect.tables import Table
from relay.table import Column

if TYPE_CHECKING:
    from relay.native._core import BinlogScanner

# ``layout(database, table, columns, primary)``: returns the layout of rows, or None for an unrelayed table.
Layout = Callable[[str, str, Sequence[Column], Sequence[str]], Table | None]
# ``wanted(database, table)``. Rows and columns of unwanted tables are never decoded. ``table``: "" for any table.
Wanted = Callable[[str, str], bool]
# ``spares(database, table, why)``: whether a table whose rows cannot be read is left out instead of refused.
Spares = Callable[[str, str, str], bool]
_MOST = 10_000


class KnownTable(NamedTuple):
    """The table of one TABLE_MAP: how its rows are decoded, and the caller's layout for them."""

    decoder: RowDecoder
    table: Table


class KnownTables:
    """The tables, None if not relayed, by their TABLE_MAPs without id and flags. ``relayed``: those with a layout."""

    def __init__(
        self,
        layout: Layout | None,
        wanted: Wanted | None,
        relayed: Wanted | None,
        spares: Spares | None,
        scanner: BinlogScanner | None,
        *,
        is_mariadb: bool,
    ) -> None:
        self.layout = layout
        self.spares = spares or (lambda _database, _table, _why: False)
        self.wanted = wanted or (lambda _database, _table: layout is not None)
        self.relayed = relayed or self.wanted
        self.by_map: dict[bytes, KnownTable | None] = {}
        # The tables without a key that are treated as unrelayed, and the last layouts of those that had a key.
        self._keyless: dict[str, LostKey] = {}
        self._keyed: dict[str, Table] = {}
        self._scanner = scanner
        self._is_mariadb = is_mariadb

    def learn(self, raw: bytes, place: BinlogPlace) -> None:
        """Decode a TABLE_MAP. Raises ``NotCarried``, and `LostKey` each time for a relayed table without a key."""
        if len(self.by_map) >= _MOST:
            self._forget()
        try:
            database, name = name_in(raw)
        except BadTableMap as fault:
            raise NotCarried(f"{place}: {fault}. Start after this position") from None
        try:
            known = self._known(raw, database, name, place) if self.wanted(database, name) else None
        except LostKey as lost:
            if name in self._keyed or lost.was_relayed():  # I1: its earlier rows may not be published yet
                raise
            known, self._keyless[name] = None, lost
        if known is not None:
            # I8: an earlier layout that returns is asked for again, because the next one is compared with it.
            if name in self._keyless or self._keyed.get(name, known.table) is not known.table:
                self._forget()
            self._keyed[name] = known.table
        self.by_map[raw] = known
        if self._scanner is not None:
            self._scanner.know(raw, None if known is None else (known, known.decoder.width))

    def look_again(self) -> None:
        """Stop treating a table without a key as unrelayed if another shard has relayed it meanwhile."""
        if any(lost.was_relayed() for lost in self._keyless.values()):  # I1
            self._forget()

    def _forget(self) -> None:
        self.by_map.clear()
        self._keyless.clear()
        if self._scanner is not None:
            self._scanner.forget()

    def _known(self, raw: bytes, database: str, name: str, place: BinlogPlace) -> KnownTable | None:
        try:
            table = parse(raw, self._is_mariadb)
            columns = columns_of(table)
        except BadTableMap as fault:
            if isinstance(fault, UnfitColumn) and self.spares(database, name, f"cannot be read: {fault}"):
                return None
            raise NotCarried(
                f"{place}: rows of {database}.{name} cannot be read: {fault}. Start after this position, or exclude "
                "the table"
            ) from None
        layout = self.layout(database, name, columns, table.primary) if self.layout is not None else None
        return None if layout is None else KnownTable(RowDecoder(table), layout)
