"""How often the layout of a table is asked for by its TABLE_MAPs."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from relay.errors import RelayError
from relay.mysql import relayed_tables
from relay.mysql.binlog.events import BinlogPlace
from relay.mysql.binlog.known_tables import KnownTables
from relay.mysql_dialect.layout_cache import LostKey, SkippedTables
from relay.mysql_dialect.tables import Table, lay_out
from relay.table import Column
from tests.mysql.encoder import ColumnType, table_map
from tests.mysql.scripted_binlogs import COLUMNS, INT
from tests.mysql.shards import config

PLACE = BinlogPlace("server", "file", 4, "")
BARE, KEYED = (table_map(7, "shop", "t", COLUMNS, keys)[8:] for keys in ((), (0,)))


class Layouts:
    """``asked``: how often. A table without a key is left out."""

    def __init__(self) -> None:
        self.skipped = SkippedTables("s", "shop", None)
        self.asked = 0
        self.tables = KnownTables(self._layout, None, None, None, None, is_mariadb=False)

    def meets(self, raw: bytes) -> bool:
        """Return whether rows of a table are relayed. Raises ``LostKey``."""
        if raw not in self.tables.by_map:
            self.tables.learn(raw, PLACE)
        return self.tables.by_map[raw] is not None

    def _layout(self, database: str, table: str, columns: Sequence[Column], primary: Sequence[str]) -> Table:
        self.asked += 1
        if not primary:
            raise LostKey(self.skipped, table)
        return lay_out("s", table, columns, primary)


def test_a_table_without_a_key_that_nobody_relays_is_looked_up_once() -> None:
    layouts = Layouts()
    assert not any(layouts.meets(BARE) for _ in range(3))
    assert layouts.asked == 1
    layouts.tables.look_again()
    assert not layouts.meets(BARE)
    assert layouts.asked == 1


def test_a_table_without_a_key_is_lost_as_soon_as_another_shard_has_relayed_it() -> None:
    """I1"""
    layouts = Layouts()
    assert not layouts.meets(BARE)
    layouts.skipped.keep(["t"])
    layouts.tables.look_again()
    for _ in range(2):
        with pytest.raises(LostKey):
            layouts.meets(BARE)


def test_a_table_without_a_key_is_lost_after_rows_with_a_key_that_are_not_published_yet() -> None:
    """I1"""
    layouts = Layouts()
    assert not layouts.meets(BARE)
    assert layouts.meets(KEYED)
    with pytest.raises(LostKey):
        layouts.meets(BARE)
    assert layouts.meets(KEYED)


def test_a_protected_column_that_was_dropped_and_added_again_cannot_be_renamed_unnoticed() -> None:
    """I8: its values would be published in clear."""
    text = ColumnType(15, struct.pack("<H", 100), bytes, collation=255)
    protected, dropped, renamed = (
        table_map(7, "shop", "t", [("id", INT), *((name, text) for name in names)])[8:]
        for names in (["email"], [], ["mail"])
    )
    layouts = relayed_tables.Layouts(
        config("shop", {"-": ["db1:3306"]}, tables=["t"], protect={"t": {"email": "mask"}})
    )
    tables = KnownTables(layouts, layouts.wanted, layouts.is_relayed, layouts.spares, None, is_mariadb=False)
    for raw in (protected, dropped, protected):
        if raw not in tables.by_map:
            tables.learn(raw, PLACE)
    with pytest.raises(RelayError, match="no longer has column email, which `protect` names"):
        tables.learn(renamed, PLACE)
