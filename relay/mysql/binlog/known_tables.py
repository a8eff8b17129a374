"""The tables whose TABLE_MAP events were read: how the rows behind each are decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from relay.mysql.binlog.events import BinlogPlace
from relay.mysql.binlog.rows import RowDecoder, columns_of
from relay.mysql.binlog.table_map import BadTableMap, UnfitColumn, name_in, parse
from relay.mysql.errors import NotCarried
from relay.mysql_dialect.layouts import LostKey
from relay.mysql_dialect.tables import Table
from relay.table import Column

if TYPE_CHECKING:
    from relay.native._core import BinlogScanner

Layout = Callable[[str, str, Sequence[Column], Sequence[str]], Table | None]
"""``layout(database, table, columns, primary)``: the layout of rows, or None for a table that is not relayed."""

Wanted = Callable[[str, str], bool]
"""``wanted(database, table)``. Rows and columns of other tables are never decoded. ``table``: "" for any of them."""

Spares = Callable[[str, str, str], bool]
"""``spares(database, table, why)``: whether a table whose rows cannot be read is left out, instead of refused."""

_MOST = 10_000


class KnownTable(NamedTuple):
    """The table of one TABLE_MAP: how its rows are decoded, and the caller's layout of them."""

    decoder: RowDecoder
    table: Table


class KnownTables:
    """The tables by the bodies of their TABLE_MAPs, ``by_map``, without ids and flags; None for unrelayed ones.

    ``scanner`` is told about them, too. ``relayed``: the wanted ones, without those that have no layout.
    """

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
        # The tables without a key that are taken for unrelayed ones, and those that had a key in this stream.
        self._keyless: dict[str, LostKey] = {}
        self._keyed: set[str] = set()
        self._scanner = scanner
        self._is_mariadb = is_mariadb

    def learn(self, raw: bytes, place: BinlogPlace) -> None:
        """Decode the new TABLE_MAP ``raw`` at ``place``. Raises ``NotCarried``, also for what ``layout`` refuses.

        Raises `LostKey` for a table without a key that was relayed, each time that it comes.
        """
        if len(self.by_map) >= _MOST:
            self._forget()
        try:
            database, name = name_in(raw)
        except BadTableMap as fault:
            raise NotCarried(f"{place}: {fault}. Start after this position") from None
        try:
            known = self._known(raw, database, name, place) if self.wanted(database, name) else None
        except LostKey as lost:
            if name in self._keyed or lost.was_relayed():  # I1: its rows before may be among those not yet published
                raise
            known, self._keyless[name] = None, lost
        if known is not None:
            self._keyed.add(name)
            if name in self._keyless:
                self._forget()
        self.by_map[raw] = known
        if self._scanner is not None:
            self._scanner.know(raw, None if known is None else (known, known.decoder.width))

    def look_again(self) -> None:
        """Take no table without a key for an unrelayed one that another shard has relayed meanwhile."""
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
