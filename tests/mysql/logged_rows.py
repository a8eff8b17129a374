"""Random tables, rows and damage as the row events of a binlog have them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from relay.mysql.binlog.events import (
    COMMIT,
    DELETE,
    UPDATE,
    WRITE,
    BinlogEvent,
    BinlogPlace,
    RawRows,
    Statement,
    TransactionBegin,
)
from relay.mysql.binlog.rows import RowDecoder, columns_of
from relay.mysql.binlog.table_map import parse
from relay.mysql.relayed_tables import Layouts
from relay.mysql_dialect.tables import Table
from tests.mysql.encoder import ColumnType, rows, table_map
from tests.mysql.row_cases import CASES, UTF8MB4, Case, decimals, fixed, text, whole
from tests.mysql.shards import config

BIGINT, TEXT, PRICE = Case(fixed("q", 8), "long", whole(64, False)), text(50, UTF8MB4), decimals(10, 2)

LOCAL = "0-9-"
PLACE = BinlogPlace("localhost:3306", "binlog.000001", 1000, "")
KEYS = [case for case in CASES if case.carried in ("long", "string", "bytes")]
OTHER_KEYS = [case for case in CASES if case.carried in ("timestamp", "decimal(10,2)", "double")]
UTF16 = Case(
    replace(CASES[-2].type, kind=252, meta=b"\x02", collation=54, members=(), encode=lambda text: text_of(text)),
    "string",
    st.text(st.characters(codec="utf-16-be"), max_size=5),
)
FLOAT = Case(
    ColumnType(4, b"\x04", struct.Struct("<f").pack),
    "float",
    st.floats(width=32, allow_nan=False, allow_infinity=False),
)
JSON = Case(
    ColumnType(245, b"\x04", lambda raw: struct.pack("<I", len(raw)) + raw),
    "json",
    # A literal, an int16, and an empty object.
    st.sampled_from([b"\x04\x01", b"\x05\x07\x00", b"\x00\x00\x00\x04\x00"]),
)
ALL = [*CASES, UTF16, FLOAT, JSON]


def text_of(text: str) -> bytes:
    raw = text.encode("utf-16-be")
    return struct.pack("<H", len(raw)) + raw


@dataclass
class Logged:
    """A table as a binlog has it."""

    table: Table
    decoder: RowDecoder
    columns: list[tuple[str, ColumnType]]
    cases: list[Case]
    keys: int

    def rows(self, operation: str, images: Sequence[Sequence[Any]], damage: Any = None) -> RawRows:
        """Return their event. ``damage``: makes other bytes of it."""
        front = 11 + self.decoder.bitmap * (2 if operation == UPDATE else 1)
        body = rows(7, self.columns, images, 2 if operation == UPDATE else 1)[front:]
        body = body if damage is None else damage(body)
        return RawRows(self.table, self.decoder, operation, b"before" + body + b"after", 6, 6 + len(body), PLACE)


class Tables:
    """The layouts of one source, some with other columns than before."""

    def __init__(self) -> None:
        self.layouts = Layouts(config("d", {"-": ["localhost:3306"]}, where={"some": {"c0": 7}}))

    def table(self, name: str, cases: Sequence[Case], keys: int = 1) -> Logged:
        columns = [(f"c{at}", case.type) for at, case in enumerate(cases)]
        mapped = parse(table_map(7, "d", name, columns, range(keys))[8:], is_mariadb=False)
        made = self.layouts("d", name, columns_of(mapped), mapped.primary)
        assert made is not None
        return Logged(made, RowDecoder(mapped), columns, list(cases), keys)


@st.composite
def tables_of(draw: st.DrawFn, tables: Tables) -> list[Logged]:
    found = []
    for name in ("t", "t", "u"):
        keys = draw(st.lists(st.sampled_from(KEYS * 3 + OTHER_KEYS), min_size=1, max_size=2))
        others = draw(st.lists(st.sampled_from(ALL), max_size=8))
        found.append(tables.table(name, [*keys, *others], len(keys)))
    return [*found, tables.table("some", [BIGINT, TEXT])]


@st.composite
def images_of(draw: st.DrawFn, logged: Logged, count: int) -> list[list[Any]]:
    """Return rows, some of which have the key of the one before."""
    images: list[list[Any]] = []
    while len(images) < count:
        key = [draw(case.values) for case in logged.cases[: logged.keys]]
        is_same: bool = draw(st.booleans())
        if images and is_same:
            key = images[-1][: logged.keys]
        images.append([*key, *(draw(case.values | st.none()) for case in logged.cases[logged.keys :])])
    return images


@st.composite
def damages(draw: st.DrawFn) -> Any:
    """Return what cuts an event, makes it longer, or changes a byte of it."""
    at, byte, kind = (
        draw(st.integers(0, 200)),
        draw(st.integers(0, 255)),
        draw(st.sampled_from(["cut", "more", "flip"])),
    )

    def damaged(body: bytes) -> bytes:
        where = at % (len(body) or 1)
        if kind == "cut":
            return body[:where]
        if kind == "more":
            return body + bytes([byte]) * (at % 9)
        return body[:where] + bytes([byte]) + body[where + 1 :]

    return damaged


@st.composite
def binlogs(draw: st.DrawFn, tables: list[Logged]) -> list[BinlogEvent]:
    """Return mostly whole transactions of rows; others have no end, a statement, a GTID of one server, or damage."""
    events: list[BinlogEvent] = []
    for number in range(101, 101 + draw(st.integers(1, 5))):
        gtid = f"{draw(st.sampled_from(['0-1-'] * 6 + [LOCAL]))}{number}"
        time = 1000 + draw(st.integers(-5, 5))
        committed_at = draw(st.none() | st.just(time * 1_000_000 + 7))
        events.append(TransactionBegin(gtid, f"MariaDB/{gtid}", time, committed_at))
        for _ in range(draw(st.integers(0, 4))):
            logged = draw(st.sampled_from(tables))
            operation = draw(st.sampled_from([WRITE, UPDATE, DELETE]))
            count = draw(st.integers(0, 3)) * (2 if operation == UPDATE else 1)
            damage = draw(damages()) if not draw(st.integers(0, 19)) else None
            event = logged.rows(operation, draw(images_of(logged, count)), damage)
            # Some come from a stream that decodes them itself.
            events.append(event if damage is not None or draw(st.integers(0, 9)) else event.decoded())
        ending = draw(st.integers(0, 9))
        if ending == 0 and isinstance(events[-1], TransactionBegin):
            continue  # the server died; it sends no rows of such a transaction
        if ending == 1:
            events.append(Statement("CREATE TABLE d.x (id int primary key)", "d", time, 0))
        events.append(COMMIT)
    return events
