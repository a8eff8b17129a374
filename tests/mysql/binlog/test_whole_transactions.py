"""Whole transactions that the compiled core finds in a binlog, against plain Python: the same events and changes."""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relay.errors import RelayError
from relay.gtid import parse
from relay.mysql import connection
from relay.mysql.binlog.events import COMMIT, BinlogEvent, Commit, Heartbeat, RawRows, RawTransactions
from relay.mysql.binlog.stream import BinlogEvents
from relay.mysql.positions import BinlogPosition
from relay.mysql.relayed_tables import Layouts
from relay.mysql.transactions import ShardTransactions
from tests import needs
from tests.examples import examples
from tests.mysql.encoder import event, gtid, query, rows, table_map
from tests.mysql.scripted import SETTINGS, Scripted, running
from tests.mysql.scripted_binlogs import COLUMNS, GTID, HEAD, QUERY, TABLE_MAP, XID, A, B
from tests.mysql.shards import config

MARIADB_GTID = 162
DATABASE = "shop"
START = {False: f"MySQL56/{A}:1-9", True: "MariaDB/0-1-9,3-1-4"}
LOSES = ("wrong checksum", "checksums of the unknown type", "but its header says")
"""Errors before which a plain stream does not return what has arrived in the same buffer."""


@pytest.fixture(autouse=True)
def core() -> None:
    needs.compiled_core()


def begin(number: int, server: str, is_mariadb: bool, flags: int = 12) -> list[bytes]:
    if is_mariadb:
        domain = {A: 0, B: 3}[server]
        return [event(MARIADB_GTID, struct.pack("<QIB6x", number, domain, flags), 1000 + number, 4 * number)]
    immediate = {0: 0, 1: number}.get(number % 3, 1 << 40)
    made = gtid(server, number, immediate=immediate, original=7 if number % 3 == 2 else None)
    return [event(GTID, made, 1000 + number, 4 * number), event(QUERY, query(b"BEGIN"))]


def logged(is_mariadb: bool, table: str, kind: int, images: Sequence[Any], number: int = 7) -> list[bytes]:
    """Return the events of rows. ``kind``: 0 to 2, of a write, an update and a delete."""
    body = rows(number, COLUMNS, images, 2 if kind == 1 else 1)
    if is_mariadb:
        body = body[:8] + body[10:]  # the first version has no extra data
    changed = event((23 if is_mariadb else 30) + kind, body, position=0 if kind == 2 else 1000 + kind)
    return [event(TABLE_MAP, table_map(number, DATABASE, table, COLUMNS)), changed]


def damaged(whole: bytes, at: int, byte: int) -> bytes:
    """Return an event with another byte and the right checksum."""
    at = at % (len(whole) - 4)
    if 9 <= at < 13:
        return whole  # its length
    body = whole[:at] + bytes([byte]) + whole[at + 1 : -4]
    return body + struct.pack("<I", zlib.crc32(body))


@st.composite
def binlogs(draw: st.DrawFn, is_mariadb: bool, *, damages: bool) -> list[bytes]:
    """Return mostly usual transactions; others are of another server, have a hole, a statement, no end, or damage."""
    numbers = {A: 9, B: 4}
    found: list[bytes] = []
    for _ in range(draw(st.integers(1, 12))):
        server = draw(st.sampled_from([A] * 9 + [B]))
        numbers[server] += draw(st.sampled_from([1] * 15 + [0, 2]))
        flags = draw(st.sampled_from([12] * 12 + [0, 1, 32, 64, 128]))
        events = begin(numbers[server], server, is_mariadb, flags)
        for _ in range(draw(st.integers(0, 3))):
            kind = draw(st.integers(0, 2))
            image = st.tuples(st.integers(1, 3), st.none() | st.binary(max_size=5))
            images = draw(st.lists(image, min_size=0, max_size=2)) * (2 if kind == 1 else 1)
            table = draw(st.sampled_from(["orders", "orders", "items", "unwanted"]))
            events += logged(is_mariadb, table, kind, images, draw(st.integers(7, 8)))
        unusual = draw(st.integers(0, 18 if damages else 17))
        if unusual == 0:
            events.append(event(QUERY, query(b"ALTER TABLE orders ADD x int")))
        elif unusual == 1:
            events.append(event(QUERY, query(b"SAVEPOINT a")))
        elif unusual == 2:
            events.append(event(29, b"\5INSERT"))
        events.append(event(QUERY, query(b"COMMIT")) if unusual == 3 else event(XID, bytes(8)))
        if unusual == 4:
            events.pop()
        elif unusual == 18:
            at = draw(st.integers(0, len(events) - 1))
            events[at] = damaged(events[at], draw(st.integers(0, 400)), draw(st.integers(0, 255)))
        found += events
    return found


def layouts() -> Layouts:
    return Layouts(config(DATABASE, {"-": ["localhost:3306"]}, tables=["orders", "items"]))


def read(events: Sequence[bytes], of: Layouts, *, is_mariadb: bool, compiled: bool, chunk: int = 1 << 20) -> Any:
    """Return what a stream gives, and its end: position in the file, executed set, error."""
    settings = {**SETTINGS, **({"gtid_domain_id": "0"} if is_mariadb else {})}
    with (
        pytest.MonkeyPatch.context() as patch,
        running(Scripted([*HEAD, *events], settings, ends=b"\xfe", chunk=chunk)) as script,
        closing(connection.connect("127.0.0.1", script.port, "relay", "secret")) as server,
    ):
        patch.setenv("RELAY_NATIVE", "required" if compiled else "off")
        start = parse(START[is_mariadb])
        with closing(BinlogEvents(server, start, of, of.wanted, raw=compiled)) as stream:
            found: list[BinlogEvent] = []
            while True:
                try:
                    found += stream.read(5)
                except RelayError as error:
                    end = (stream.position, stream.executed, str(error).replace(str(script.port), "PORT"))
                    kept = [each for each in found if not isinstance(each, Heartbeat)]
                    # Nobody asks where whole transactions end.
                    return [COMMIT if isinstance(each, Commit) else each for each in kept], end


def decoded(events: Sequence[BinlogEvent]) -> tuple[list[BinlogEvent], str | None]:
    """Return events as a stream gives them that decodes rows itself, up to one that cannot be decoded."""
    found: list[BinlogEvent] = []
    for each in events:
        for one in [each] if not isinstance(each, RawTransactions) else popped(each):
            if not isinstance(one, RawRows):
                found.append(one)
                continue
            try:
                found.append(one.decoded())
            except RelayError as error:
                return found, str(error)
    return found, None


def popped(whole: RawTransactions) -> list[BinlogEvent]:
    return [each for _ in range(len(whole.scanned)) for each in whole.pop()]


@pytest.mark.parametrize("is_mariadb", [False, True])
@settings(deadline=None, max_examples=examples(30), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), chunk=st.sampled_from([70, 700, 1 << 20]))
def test_a_stream_gives_the_same_events_and_ends_alike(data: st.DataObject, chunk: int, is_mariadb: bool) -> None:
    """I1, I4, I8."""
    events = data.draw(binlogs(is_mariadb, damages=True))
    of = layouts()
    expected, end = read(events, of, is_mariadb=is_mariadb, compiled=False)
    found, seen_end = read(events, of, is_mariadb=is_mariadb, compiled=True, chunk=chunk)
    seen, error = decoded(found)
    if any(text in end[2] for text in LOSES):
        assert seen[: len(expected)] == expected
        return
    assert seen == expected
    if error is None:
        assert seen_end == end
    else:  # rows that cannot be read end the plain stream, and a shard that reads this one
        assert error.partition(",")[2] == end[2].partition(",")[2]


@pytest.mark.parametrize("is_mariadb", [False, True])
@settings(deadline=None, max_examples=examples(30), suppress_health_check=[HealthCheck.too_slow])
@given(
    data=st.data(),
    chunk=st.sampled_from([700, 1 << 20]),
    floor=st.sampled_from([0, 1012]),
    partial=st.booleans(),
    local=st.booleans(),
)
def test_whole_transactions_give_the_same_changes_and_positions(
    data: st.DataObject, chunk: int, floor: int, partial: bool, local: bool, is_mariadb: bool
) -> None:
    """I1, I2, I3, I4, I5."""
    events = data.draw(binlogs(is_mariadb, damages=False))
    gtid = ("0-1-" if is_mariadb else f"{A}:") + "11"
    position: dict[str, Any] = {"gtid": START[is_mariadb]}
    if partial:
        position |= {"transaction": gtid, "rows_done": 1, "rows_of": {gtid: {"orders": 1}}}
    outcomes = []
    for compiled in (False, True):
        of = layouts()
        found, _ = read(events, of, is_mariadb=is_mariadb, compiled=compiled, chunk=chunk)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RELAY_NATIVE", "required" if compiled else "off")
            outcomes.append(consumed(found, of, position, floor, gtid if local else ""))
    assert outcomes[1] == outcomes[0]


def consumed(events: Sequence[BinlogEvent], of: Layouts, position: Any, floor: int, local: str) -> Any:
    """Return the changes of events, and what a shard knows after them."""
    transactions = ShardTransactions(
        "-",
        of,
        BinlogPosition.from_json(position),
        floor,
        lambda gtids: bool(local) and parse(gtids).contains(parse(local)),
        time.time,
    )
    transactions.feed(events)
    changes, sizes, last = [], [0, 0], None
    while True:
        said = transactions.consume()
        taken, size, tables, behind = transactions.take()
        assert {one.table for one in taken} <= {one.table for one in tables}
        changes += [repr(one) for one in taken]
        changes += [repr(one) for one in transactions.changes.take_schema_changes()]
        sizes = [sizes[0] + size, sizes[1] + behind]
        last = last if said.committed is None else said.committed
        if said.error is not None or not said.is_full:
            break
    error = str(said.error).partition(", ")[2] if said.error is not None else ""
    if error.startswith("binlog"):
        return changes, error  # where a plain stream ends
    state = [
        transactions.position,
        transactions.executed_position,
        transactions.changes.tally.token,
        transactions.local,
    ]
    return changes, sizes, last, state, sorted(transactions.take_last_gtids()), error


@pytest.mark.parametrize("is_mariadb", [False, True])
def test_usual_transactions_are_found(is_mariadb: bool) -> None:
    """After the first one, which tells the server and the tables."""
    events: list[bytes] = []
    for number in range(10, 40):
        images = [(number, b"a"), (number, b"b")]
        changed = logged(is_mariadb, "orders", 1, images) + logged(is_mariadb, "unwanted", 0, images, 8)
        events += [*begin(number, A, is_mariadb), *changed, event(XID, bytes(8))]
    found, _ = read(events, layouts(), is_mariadb=is_mariadb, compiled=True)
    assert sum(len(each.scanned) for each in found if isinstance(each, RawTransactions)) == 29


def test_an_event_with_a_wrong_checksum_is_refused_after_what_was_before_it() -> None:
    """I8."""
    events: list[bytes] = []
    for number in range(10, 20):
        events += [*begin(number, A, False), *logged(False, "orders", 0, [(number, b"a")]), event(XID, bytes(8))]
    broken = [*begin(20, A, False), *logged(False, "orders", 0, [(20, b"a")]), event(XID, bytes(8))]
    broken[3] = broken[3][:-1] + bytes([broken[3][-1] ^ 1])
    found, (_, executed, error) = read([*events, *broken], layouts(), is_mariadb=False, compiled=True)
    assert sum(len(each.scanned) for each in found if isinstance(each, RawTransactions)) == 9
    assert executed == parse(f"{A}:1-19")
    assert "wrong checksum" in error


@pytest.mark.parametrize(("page", "counts"), [(100, [8, 8, 4]), (40, [2] * 10), (10, [1] * 20)])
def test_a_page_ends_before_a_transaction_that_does_not_fit(
    page: int, counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11: and inside of one that is larger than a page."""
    monkeypatch.setattr("relay.mysql.transactions.STREAMED_PAGE", page)
    monkeypatch.setenv("RELAY_NATIVE", "required")
    events: list[bytes] = []
    for number in range(10, 20):
        changed = logged(False, "orders", 0, [(number, b"a"), (number + 100, b"a")])
        events += [*begin(number, A, False), *changed, event(XID, bytes(8))]
    of = layouts()
    found, _ = read(events, of, is_mariadb=False, compiled=True)
    transactions = ShardTransactions(
        "-", of, BinlogPosition.from_json({"gtid": START[False]}), 0, lambda _: False, time.time
    )
    transactions.feed(found)
    pages = []
    while transactions.has_events:
        transactions.consume()
        pages.append([one.key["id"] for one in transactions.take()[0] if one.key])
    assert [key for each in pages for key in each] == [key for n in range(10, 20) for key in (n, n + 100)]
    assert [len(each) for each in pages if each] == counts
