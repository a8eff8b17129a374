"""What the three sources send, made in advance, and the two steps that make changes of it: parse, then change."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from relay.change import Change, ChangeParts
from relay.config import MySQLConfig
from relay.dynamodb.raw_records import parse_answer
from relay.dynamodb.records import RecordFormat
from relay.gtid import parse
from relay.mysql import connection
from relay.mysql.binlog.stream import BinlogEvents
from relay.mysql.positions import BinlogPosition
from relay.mysql.relayed_tables import Layouts
from relay.mysql.transactions import ShardTransactions
from relay.mysql_dialect.followed_tables import FollowedTables
from relay.mysql_dialect.tables import Table, lay_out
from relay.table import TableSchema
from relay.vitess.client import EventKind, Vtgate
from relay.vitess.events import ShardEvents
from relay.vitess.moved_tables import TableMoves
from relay.vitess.position import VitessShard, VStreamPosition
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.reader import READ_AT_ONCE
from relay.vitess.settings import VStreamSettings
from relay.vitess.tables import Tables
from tests.benchmarks.get_records import PAGE, page
from tests.benchmarks.get_records import TABLE as ITEMS
from tests.mysql import encoder
from tests.mysql.scripted import Scripted, running
from tests.mysql.scripted_binlogs import GTID, HEAD, QUERY, TABLE_MAP, WRITE, XID, A
from tests.vitess.scripted import made

ROWS = 8000
"""Rows of an SQL source; those of ``backlog.SCHEMA``."""
_IN_ONE_EVENT = 40  # rows, as a database writes them
_NOTE = b"abcdefghij" * 18
_COLUMNS = [
    ("id", encoder.ColumnType(8, b"", struct.Struct("<q").pack)),
    ("owner", encoder.ColumnType(3, b"", struct.Struct("<i").pack)),
    ("price", encoder.decimal(10, 2)),
    ("note", encoder.ColumnType(15, b"\x20\x03", lambda raw: struct.pack("<H", len(raw)) + raw, collation=45)),
]
_FIELDS = pb.FieldEvent(
    table_name="item",
    fields=[
        pb.Field(name="id", flags=3, charset=63, column_type="bigint(20)"),
        pb.Field(name="owner", flags=1, charset=63, column_type="int(11)"),
        pb.Field(name="price", charset=63, column_type="decimal(10,2)"),
        pb.Field(name="note", charset=45, column_type="varchar(200)"),
    ],
    enum_set_string_values=True,
)


@dataclass(frozen=True)
class Fed:
    """``parse`` returns what ``change`` takes; ``table``: of the changes that it makes."""

    name: str
    table: TableSchema
    parse: Callable[[], Any]
    change: Callable[[Any], list[Change] | ChangeParts]


def fed() -> list[Fed]:
    return [dynamodb(), *(make(rows) for make in (vitess, binlog) for rows in (1, 100))]


def dynamodb() -> Fed:
    """Pages of 1,000 records, each with two images of about 450 bytes."""
    body, pages = page(), ROWS // PAGE
    records = RecordFormat(ITEMS, "orders/2026-01-01T00:00:00.000/shardId-00000001700000000000-0123abcd")

    def change(answers: list[Any]) -> list[Change] | ChangeParts:
        blocks = [made for answer in answers if (made := records.block(answer.records, 0))]
        if len(blocks) == len(answers):
            return ChangeParts([made.changes for made in blocks])
        return [records.change(record, 0) for answer in answers for record in answer.records]

    return Fed("dynamodb", ITEMS, lambda: [parse_answer(body) for _ in range(pages)], change)


def vitess(rows: int) -> Fed:
    """Inserts in transactions of ``rows`` rows, an answer for each, as vtgate sends them."""
    answers = [_answer(number, rows).SerializeToString() for number in range(ROWS // rows)]
    shard = VitessShard("s", "shop", "0", "s/shop/0")
    tables: list[Table] = []

    def layout(name: str, columns: Any, primary: Any) -> Table:
        tables.append(lay_out("s", name, columns, primary))
        return tables[-1]

    settings = VStreamSettings("shop", page_bytes=1 << 40)
    followed = FollowedTables("", lambda _: True, lambda _: {}, lambda: True)
    known = Tables(layout, {}, followed=followed, moves=TableMoves(Vtgate(""), shard, settings, {}))

    def join_answers() -> list[bytes]:
        """Return several small answers as one, as the stream reads them. The core parses and makes changes at once."""
        at_once = max(1, READ_AT_ONCE // len(answers[0]))
        return [b"".join(answers[first : first + at_once]) for first in range(0, len(answers), at_once)]

    def change(joined: list[bytes]) -> list[Change] | ChangeParts:
        events = ShardEvents(shard, settings, known, VStreamPosition("MariaDB/0-1-10"), floor=0, clock=time.time)
        for answer in joined:
            if not events.read_whole(answer):
                for event in pb.VStreamResponse.FromString(answer).events:
                    events.apply(event)
        return events.changes.take()

    change(join_answers())
    return Fed(f"vitess_{rows}", tables[0].schema, join_answers, change)


def _answer(number: int, rows: int) -> pb.VStreamResponse:
    about: dict[str, Any] = {"timestamp": 1_700_000_000 + number, "keyspace": "shop", "shard": "0"}
    about["event_gtid"] = f"0-1-{number + 11}"
    events = [pb.VEvent(type=EventKind.BEGIN, **about)]
    if number == 0:
        events.append(pb.VEvent(type=EventKind.FIELD, field_event=_FIELDS, **about))
    for first in range(number * rows, (number + 1) * rows, _IN_ONE_EVENT):
        changes = [
            pb.RowChange(after=made([b"%d" % id, b"%d" % (id % 7), b"%d.%02d" % (id // 100, id % 100), _NOTE]))
            for id in range(first, min(first + _IN_ONE_EVENT, (number + 1) * rows))
        ]
        events.append(
            pb.VEvent(type=EventKind.ROW, row_event=pb.RowEvent(table_name="item", row_changes=changes), **about)
        )
    end = pb.ShardGtid(keyspace="shop", shard="0", gtid=f"MariaDB/0-1-{number + 11}")
    events.append(pb.VEvent(type=EventKind.VGTID, vgtid=pb.VGtid(shard_gtids=[end]), keyspace="shop", shard="0"))
    return pb.VStreamResponse(events=[*events, pb.VEvent(type=EventKind.COMMIT, **about)])


def binlog(rows: int) -> Fed:
    """The same inserts as a MySQL server's binlog. Parsing includes reading them from a socket."""
    script = Scripted([*HEAD, *(event for number in range(ROWS // rows) for event in _transaction(number, rows))])
    config = MySQLConfig.model_validate(
        {"name": "s", "type": "mysql", "shards": {"-": ["localhost:3306"]}, "database": "shop", "user": "relay"}
    )
    layouts = Layouts(config)
    tables: list[Table] = []

    def layout(database: str, name: str, columns: Any, primary: Any) -> Table | None:
        tables.extend(filter(None, [layouts(database, name, columns, primary)]))
        return tables[-1]

    def parse_events() -> list[Any]:
        found: list[Any] = []
        with (
            running(script),
            closing(connection.connect("127.0.0.1", script.port, "relay", "secret")) as server,
            closing(BinlogEvents(server, parse(f"{A}:1-9"), layout, raw=True)) as stream,
        ):
            last = f"{A}:1-{9 + ROWS // rows}"
            while str(stream.executed) != last:
                found += stream.read(5)
        return found

    def change(events: Sequence[Any]) -> ChangeParts:
        position = BinlogPosition.from_json({"gtid": f"MySQL56/{A}:1-9"})
        transactions = ShardTransactions("-", layouts, position, 0, lambda _: False, time.time)
        transactions.feed(events)
        parts: list[Any] = []
        while transactions.has_events:
            transactions.consume()
            taken = transactions.take()[0]
            parts += taken.parts if isinstance(taken, ChangeParts) else [taken]
        return ChangeParts(parts)

    change(parse_events())
    return Fed(f"binlog_{rows}", tables[0].schema, parse_events, change)


def _transaction(number: int, rows: int) -> list[bytes]:
    """Return the events of a transaction."""
    events = [encoder.event(GTID, encoder.gtid(A, number + 10)), encoder.event(QUERY, encoder.query(b"BEGIN"))]
    for first in range(number * rows, (number + 1) * rows, _IN_ONE_EVENT):
        images = [
            (id, id % 7, Decimal(id) / 100, _NOTE)
            for id in range(first, min(first + _IN_ONE_EVENT, (number + 1) * rows))
        ]
        events.append(encoder.event(TABLE_MAP, encoder.table_map(7, "shop", "item", _COLUMNS)))
        events.append(encoder.event(WRITE, encoder.rows(7, _COLUMNS, images)))
    return [*events, encoder.event(XID, struct.pack("<Q", number))]
