"""Random tables, and streams of their rows as vtgate sends them, played with the compiled core and without."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import strategies as st

from relay.change import Change
from relay.config.protection import ColumnRule
from relay.errors import RelayError
from relay.mysql_dialect.followed_tables import FollowedTables
from relay.mysql_dialect.tables import Row, Table, lay_out
from relay.vitess.client import EventKind, Vtgate
from relay.vitess.events import ShardEvents
from relay.vitess.failures import BrokenStream
from relay.vitess.moved_tables import TableMoves
from relay.vitess.position import VitessShard, VStreamPosition
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.rows import decoder
from relay.vitess.settings import VStreamSettings
from relay.vitess.tables import Tables
from relay.vitess.vindex import keyspace_id
from tests.vitess.scripted import made

SHARD = VitessShard("s", "shop", "-80", "s/shop/-80")
START = VStreamPosition("MariaDB/0-1-10")
SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"

_integers = st.integers(-(1 << 63), (1 << 64) - 1).map(lambda number: b"%d" % number)
_texts = st.text(max_size=6).map(str.encode)
_odd = st.sampled_from([b"", b"+1", b"1_0", b" 1", b"-0", b"007", b"inf", b"1e400", b"\xff", b"9" * 40])
# By type: a collation, and the texts of usual values.
VALUES: dict[str, tuple[int, st.SearchStrategy[bytes]]] = {
    "bigint(20)": (63, _integers),
    "bigint(20) unsigned": (63, _integers),
    "int(8) unsigned zerofill": (63, st.integers(0, 1 << 33).map(lambda number: b"%08d" % number)),
    "tinyint(4)": (63, st.integers(-200, 200).map(lambda number: b"%d" % number)),
    "year(4)": (63, st.sampled_from([b"0000", b"2024"])),
    "decimal(10,2)": (63, st.decimals(-(10**8), 10**8, places=2).map(lambda number: f"{number:f}".encode())),
    "decimal(12,0)": (63, _integers),
    "decimal(65,30)": (63, st.decimals(0, 9, places=30).map(lambda number: f"{number:f}".encode())),
    "double": (63, st.floats(allow_nan=False).map(lambda number: repr(number).upper().encode())),
    "float": (63, st.sampled_from([b"3.99", b"1.5E+00", b"0.1"])),
    "varchar(20)": (45, _texts),
    "varchar(30)": (8, st.binary(max_size=4)),
    "json": (45, _texts),
    "datetime(6)": (63, st.sampled_from([b"0000-00-00 00:00:00.000000", b"2024-02-29 23:59:59.123456"])),
    "timestamp(3)": (63, st.sampled_from([b"2024-01-01 00:00:00.125", b"0000-00-00 00:00:00.000"])),
    "varbinary(10)": (63, st.binary(max_size=10)),
    "binary(4)": (63, st.binary(max_size=4)),
    "bit(9)": (63, st.binary(max_size=2)),
    "enum('a','b')": (45, st.sampled_from([b"a", b"b", b""])),
    "set('x','y')": (45, st.sampled_from([b"x", b"x,y", b""])),
    "uuid": (63, st.binary(min_size=1, max_size=16)),
}
KEYS = [
    "bigint(20)",
    "bigint(20) unsigned",
    "varchar(20)",
    "varbinary(10)",
    "binary(4)",
    "decimal(10,2)",
    "timestamp(3)",
]


@dataclass
class Shape:
    """A table ``name`` whose first ``keys`` columns are its primary key. ``columns``: type, and whether NOT NULL."""

    name: str
    keys: int
    columns: list[tuple[str, bool]]
    has_keyspace_id: bool = False
    rules: dict[str, ColumnRule] = field(default_factory=dict)
    where: dict[str, Any] = field(default_factory=dict)

    def event(self) -> pb.FieldEvent:
        fields = [
            pb.Field(
                name=f"c{at}",
                charset=VALUES[kind][0],
                column_type=kind,
                flags=(2 if at < self.keys else 0) | (1 if not_null else 0),
            )
            for at, (kind, not_null) in enumerate(self.columns)
        ]
        return pb.FieldEvent(table_name=self.name, fields=fields, enum_set_string_values=True)

    def layout(self, columns: Any, primary: Any) -> Table:
        def of_row(row: Row) -> bytes | None:
            return keyspace_id("xxhash", row[0]) if isinstance(row[0], (int, str, bytes)) else None

        compute = of_row if self.has_keyspace_id else None
        hashed = ["c0"] if self.has_keyspace_id else []
        made = lay_out("s", self.name, columns, primary, hash_key=hashed, rules=self.rules, where=self.where)
        return replace(made, keyspace_id=compute)


@st.composite
def shapes(draw: st.DrawFn, name: str) -> Shape:
    keys = draw(st.lists(st.tuples(st.sampled_from(KEYS), st.just(True)), min_size=1, max_size=2))
    others = draw(st.lists(st.tuples(st.sampled_from(list(VALUES)), st.booleans()), max_size=4))
    return Shape(name, len(keys), keys + others, draw(st.booleans()))


@st.composite
def rows(draw: st.DrawFn, shape: Shape) -> tuple[bytes | None, ...]:
    """Return the texts of a row, mostly usual ones, whose key is often that of another row."""
    few = st.sampled_from([b"7", b"8"])
    return tuple(
        draw(few | VALUES[kind][1] | few)
        if at < shape.keys
        else draw(st.one_of(st.none(), *[VALUES[kind][1]] * 6, _odd))
        for at, (kind, _) in enumerate(shape.columns)
    )


@st.composite
def answers(draw: st.DrawFn, tables: Sequence[Shape]) -> tuple[VStreamPosition, list[pb.VStreamResponse]]:
    """Return a position, and what vtgate sends after it: mostly transactions of the usual form.

    Each is in one answer, or in several.
    """
    mysql = draw(st.booleans())
    events = [pb.VEvent(type=EventKind.FIELD, field_event=shape.event()) for shape in tables]
    sent = [pb.VStreamResponse(events=events)]
    for number in range(11, 11 + draw(st.integers(1, 5))):
        gtid = f"{SERVER}:{number}" if mysql else f"0-1-{number}"
        position = draw(
            st.sampled_from([f"MySQL56/{SERVER}:1-{number}"] * 3 + [f"MySQL56/{SERVER.upper()}:1-5:7-{number}"])
            if mysql
            else st.sampled_from([f"MariaDB/{gtid}"] * 3 + [f"MariaDB/1-1-9,{gtid}"])
        )
        about: dict[str, Any] = {"timestamp": draw(st.sampled_from([1_700_000_000 - number, 1_700_000_000 + number]))}
        about["event_gtid"] = draw(st.sampled_from([gtid] * 5 + [""]))
        own = pb.ShardGtid(keyspace="shop", shard="-80", gtid=position)
        other = pb.ShardGtid(keyspace="shop", shard="80-", gtid="MariaDB/0-9-9")
        end = pb.VEvent(type=EventKind.VGTID, vgtid=pb.VGtid(shard_gtids=draw(st.permutations([own, other]))))
        if draw(st.integers(0, 7)) == 0:
            sent.append(pb.VStreamResponse(events=[end, pb.VEvent(type=EventKind.OTHER, **about)]))
            continue
        events = [pb.VEvent(type=EventKind.BEGIN, **about)]
        for _ in range(draw(st.integers(0, 3))):
            shape = draw(st.sampled_from(tables))
            event = pb.RowEvent(table_name=shape.name)
            for _ in range(draw(st.integers(1, 3))):
                before, after = draw(st.sampled_from([(False, True), (True, True), (True, False), (True, True)]))
                change = event.row_changes.add()
                if before:
                    change.before.CopyFrom(made(draw(rows(shape))))
                if after:
                    kept = made(draw(rows(shape))) if not before or draw(st.booleans()) else change.before
                    change.after.CopyFrom(kept)
            events.append(pb.VEvent(type=EventKind.ROW, row_event=event, **about))
        if draw(st.booleans()):
            events.append(pb.VEvent(type=EventKind.HEARTBEAT, timestamp=5))
        events += [end, pb.VEvent(type=EventKind.COMMIT, **about)]
        cut = draw(st.sampled_from([len(events)] * 3 + list(range(1, len(events)))))
        sent += [pb.VStreamResponse(events=part) for part in (events[:cut], events[cut:]) if part]
    return VStreamPosition(f"MySQL56/{SERVER}:1-10" if mysql else START.executed), sent


@dataclass
class Outcome:
    """What was made of a stream: parts of the changes, the state after them, and why it ended."""

    parts: list[Sequence[Change]] = field(default_factory=list)
    state: list[Any] = field(default_factory=list)
    error: str = ""

    @property
    def changes(self) -> list[Change]:
        return [change for part in self.parts for change in part]


def played(
    sent: Sequence[pb.VStreamResponse],
    tables: Sequence[Shape],
    *,
    compiled: bool,
    together: int = 1,
    room: int = 1 << 40,
    position: VStreamPosition = START,
    floor: int = 0,
    clock: Callable[[], float] = time.time,
) -> Outcome:
    """Play answers, ``together`` at once, to the end or to the first error. ``room``: bytes of a page of the core."""
    by_name = {shape.name: shape for shape in tables}
    followed = FollowedTables("", lambda _: True, lambda _: {}, lambda: True)
    settings = VStreamSettings("shop", page_bytes=room)
    moves = TableMoves(Vtgate(""), SHARD, settings, {})
    known = Tables(lambda name, *of: by_name[name].layout(*of), {}, followed=followed, moves=moves)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAY_NATIVE", "required" if compiled else "off")
        events = ShardEvents(SHARD, settings, known, position, floor=floor, clock=clock)
    outcome = Outcome()
    schemas: dict[str, Any] = {}

    def take() -> None:
        outcome.state.append((events.changes.size, events.rows.records, events.changes.tally.behind))
        events.changes.tally.behind = 0
        outcome.parts.append(events.changes.take())
        schemas.update(
            {one.table: one for one in events.rows.end_page(inside_transaction=not events.is_between_transactions)}
        )

    try:
        for first in range(0, len(sent), together):
            rest = b"".join(one.SerializeToString() for one in sent[first : first + together])
            while rest:
                if read := events.read_whole(rest):
                    rest = rest[read:]
                    if events.changes.size >= room:
                        take()
                    continue
                for event in pb.VStreamResponse.FromString(rest).events:
                    events.apply(event)
                rest = b""
    except (RelayError, BrokenStream) as error:
        outcome.error = f"{type(error).__name__}: {error}"
    take()
    totals = [sum(column) for column in zip(*outcome.state, strict=True)]
    outcome.state = [
        *totals,
        events.position,
        events.progress,
        events.changes.tally.token,
        events.changes.floor,
        events.is_active,
        events.is_between_transactions,
        events.resume_position(),
        schemas,
        {name: table.schema for name, table in followed.layouts.items()},
    ]
    return outcome


def table_of(shape: Shape) -> Table:
    found = decoder(shape.event(), lambda _, columns, primary: shape.layout(columns, primary))
    assert found is not None
    return found.table


Texts = tuple[bytes | None, ...]


def transaction(*changes: tuple[str, Texts | None, Texts | None], number: int = 11, **more: Any) -> pb.VStreamResponse:
    """Return a transaction in one answer."""
    about: dict[str, Any] = {"timestamp": 1_700_000_000 + number, "event_gtid": f"0-1-{number}", **more}
    events = [pb.VEvent(type=EventKind.BEGIN, **about)]
    for table, before, after in changes:
        row = pb.RowChange()
        if before is not None:
            row.before.CopyFrom(made(before))
        if after is not None:
            row.after.CopyFrom(made(after))
        events.append(
            pb.VEvent(type=EventKind.ROW, row_event=pb.RowEvent(table_name=table, row_changes=[row]), **about)
        )
    end = pb.ShardGtid(keyspace="shop", shard="-80", gtid=f"MariaDB/0-1-{number}")
    events.append(pb.VEvent(type=EventKind.VGTID, vgtid=pb.VGtid(shard_gtids=[end])))
    return pb.VStreamResponse(events=[*events, pb.VEvent(type=EventKind.COMMIT, **about)])


def fields_of(*tables: Shape) -> pb.VStreamResponse:
    return pb.VStreamResponse(events=[pb.VEvent(type=EventKind.FIELD, field_event=shape.event()) for shape in tables])
