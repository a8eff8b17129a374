"""Streams of a MySQL 8 server, which a scripted one plays: transactions, GTIDs, refusals, packets of any size."""

from __future__ import annotations

import struct
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relay.errors import RelayError, Unavailable
from relay.gtid import parse
from relay.mysql import connection
from relay.mysql.binlog.events import Commit, Heartbeat, Rows, Statement, TransactionBegin
from relay.mysql.binlog.stream import BinlogEvents
from relay.mysql.errors import BinlogPurged, Closed, Denied, Diverged, IncidentEvent, Interrupted, NotCarried
from relay.sql.tables import Table, lay_out
from tests.mysql.encoder import (
    ColumnType,
    bare,
    event,
    format_description,
    gtid,
    packed,
    previous_gtids,
    query,
    rotate,
    rows,
    table_map,
)
from tests.mysql.scripted import Scripted, packets, running

A, B = "24da167a-0c0c-11e8-8442-00059a3c7b00", "34da167a-0c0c-11e8-8442-00059a3c7b01"
GTID, QUERY, XID, TABLE_MAP, WRITE, UPDATE, DELETE, XA_PREPARE = 33, 2, 16, 19, 30, 31, 32, 38
INT = ColumnType(3, b"", struct.Struct("<i").pack)
BLOB = ColumnType(252, b"\x04", lambda value: struct.pack("<I", len(value)) + value, collation=63)
COLUMNS = [("id", INT), ("payload", BLOB)]

HEAD = [rotate("binlog.000001"), format_description(), event(35, previous_gtids((A, 1, 9)), 0)]


def layout(database: str, table: str, columns: Any, primary: Any) -> Table:
    return lay_out("s", f"{database}.{table}", columns, primary)


def transaction(number: int, *bodies: tuple[int, bytes], server: str = A, end: bytes | None = None) -> list[bytes]:
    return [
        event(GTID, gtid(server, number)),
        event(QUERY, query(b"BEGIN")),
        *(event(kind, body) for kind, body in bodies),
        event(XID, struct.pack("<Q", number)) if end is None else end,
    ]


def inserted(*ids: int, table: str = "orders", payload: bytes = b"x") -> list[tuple[int, bytes]]:
    body = table_map(7, "shop", table, COLUMNS)
    return [(TABLE_MAP, body), (WRITE, rows(7, COLUMNS, [(each, payload) for each in ids]))]


@contextmanager
def there(script: Scripted) -> Iterator[connection.ServerConnection]:
    with running(script), closing(connection.connect("127.0.0.1", script.port, "relay", "secret")) as server:
        yield server


@contextmanager
def reading(
    events: Sequence[bytes], start: str = f"{A}:1-9", wanted: Any = None, **script: Any
) -> Iterator[tuple[BinlogEvents, Scripted]]:
    with (
        running(Scripted([*HEAD, *events], **script)) as scripted,
        closing(connection.connect("127.0.0.1", scripted.port, "relay", "secret")) as server,
        closing(BinlogEvents(server, parse(start), layout, wanted)) as stream,
    ):
        yield stream, scripted


def told(stream: BinlogEvents, commits: int) -> list[Any]:
    found: list[Any] = []
    while sum(isinstance(each, Commit) for each in found) < commits:
        found += [each for each in stream.read(5) if isinstance(each, TransactionBegin | Rows | Statement | Commit)]
    return found


class TestATransaction:
    def test_begins_with_its_gtid_and_the_set_up_to_and_including_it(self) -> None:
        """I4."""
        events = [*transaction(10, *inserted(1)), *transaction(5, *inserted(2), server=B)]
        with reading(events) as (stream, _):
            begin, _, _, other, *_ = told(stream, 2)
            assert (begin.gtid, begin.position) == (f"{A}:10", f"MySQL56/{A}:1-10")
            assert (other.gtid, other.position) == (f"{B}:5", f"MySQL56/{A}:1-10,{B}:5")
            assert stream.executed == parse(f"{A}:1-10,{B}:5")

    def test_gives_its_rows_before_and_after(self) -> None:
        body = table_map(7, "shop", "orders", COLUMNS)
        bodies = [
            *inserted(1, 2),
            (TABLE_MAP, body),
            (UPDATE, rows(7, COLUMNS, [(1, b"x"), (1, b"y")], 2)),
            (TABLE_MAP, body),
            (DELETE, rows(7, COLUMNS, [(2, None)])),
        ]
        with reading(transaction(10, *bodies)) as (stream, _):
            begin, insert, update, delete, commit = told(stream, 1)
        assert insert.changes == [(None, (1, b"x")), (None, (2, b"x"))]
        assert update.changes == [((1, b"x"), (1, b"y"))]
        assert delete.changes == [((2, None), None)]
        assert (begin.is_ddl, begin.timestamp, commit) == (False, 1_700_000_000, Commit())

    def test_has_the_time_at_which_it_was_first_committed(self) -> None:
        """I3: a replica has another time of its own."""
        here = event(GTID, gtid(A, 10, immediate=1_700_000_000_123_456))
        replicated = event(GTID, gtid(B, 1, immediate=1_700_000_009_000_000, original=1_700_000_000_654_321))
        end = [event(QUERY, query(b"BEGIN")), event(XID, bytes(8))]
        with reading([here, *end, replicated, *end]) as (stream, _):
            first, _, second, _ = told(stream, 2)
        assert (first.committed_at, second.committed_at) == (1_700_000_000_123_456, 1_700_000_000_654_321)

    def test_that_is_a_statement_says_so_at_its_begin(self) -> None:
        events = [event(GTID, gtid(A, 10)), event(QUERY, query(b"ALTER TABLE orders ADD x int")), *transaction(11)]
        with reading(events) as (stream, _):
            begin, statement, _, other, _ = told(stream, 2)
        assert (begin.is_ddl, statement.sql, statement.database) == (True, "ALTER TABLE orders ADD x int", "shop")
        assert other.is_ddl is False

    def test_of_a_table_made_from_a_query_ends_with_its_rows(self) -> None:
        made = event(QUERY, query(b"CREATE TABLE `orders` (`id` int) START TRANSACTION"))
        events = [event(GTID, gtid(A, 10)), made, *(event(*each) for each in inserted(1)), event(XID, bytes(8))]
        with reading(events) as (stream, _):
            assert [type(each) for each in told(stream, 1)] == [TransactionBegin, Statement, Rows, Commit]

    def test_without_an_end_is_forgotten_if_it_had_no_rows_and_refused_if_it_had(self) -> None:
        """I1: the server died while it wrote it, so it never committed."""
        cut = [event(GTID, gtid(A, 10)), event(QUERY, query(b"BEGIN"))]
        with reading([*cut, *transaction(10, *inserted(1))]) as (stream, _):
            assert [type(each) for each in told(stream, 1)] == [TransactionBegin, TransactionBegin, Rows, Commit]
            assert stream.executed == parse(f"{A}:1-10")
        cut += [event(*each) for each in inserted(1)]
        with (
            reading([*cut, *transaction(10)]) as (stream, _),
            pytest.raises(NotCarried, match=r"shop\.orders has no end"),
        ):
            told(stream, 1)

    def test_with_many_gtids_of_many_servers_in_any_order_ends_with_the_union(self) -> None:
        servers = [str(uuid.UUID(int=each)) for each in (5, 3, 9)]
        numbers = [(server, number) for number in (3, 1, 2, 7, 6, 9) for server in servers]
        events = [each for server, number in numbers for each in transaction(number, server=server)]
        with reading(events) as (stream, _):
            begins = [each for each in told(stream, len(numbers)) if isinstance(each, TransactionBegin)]
        seen = parse(f"{A}:1-9")
        for begin, (server, number) in zip(begins, numbers, strict=True):
            seen |= parse(f"{server}:{number}")
            assert begin.position == seen.position


class TestADump:
    def test_asks_for_what_is_not_in_the_set(self) -> None:
        start = f"{A}:20-30:35-40,{B}:1-5"
        with reading(transaction(41), start) as (stream, scripted):
            told(stream, 1)
        (command,) = scripted.asked
        sets = struct.pack("<Q", 2) + uuid.UUID(A).bytes + struct.pack("<5Q", 2, 20, 31, 35, 41)
        sets += uuid.UUID(B).bytes + struct.pack("<3Q", 1, 1, 6)
        assert command[0] == 0x1E
        assert command[1:3] == b"\x04\x00"
        assert command[-len(sets) :] == sets

    @given(st.integers(1, 40), st.integers(1, 3))
    @settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def test_comes_out_the_same_however_it_is_cut(self, chunk: int, count: int) -> None:
        """I1."""
        events = [each for number in range(10, 10 + count) for each in transaction(number, *inserted(number))]
        with reading(events, chunk=chunk) as (stream, _):
            seen = [each.changes for each in told(stream, count) if isinstance(each, Rows)]
        assert seen == [[(None, (number, b"x"))] for number in range(10, 10 + count)]

    @pytest.mark.parametrize("size", [0xFFFFFF - 61, 0xFFFFFF - 60, 0xFFFFFF, 2 * 0xFFFFFF - 61, 40_000_000])
    def test_puts_events_together_that_are_longer_than_a_packet(self, size: int) -> None:
        """I1."""
        payload = bytes(range(256)) * (size // 256 + 1)
        events = [*transaction(10, *inserted(1, payload=payload[:size])), *transaction(11, *inserted(2))]
        with reading(events) as (stream, _):
            first, second = (each for each in told(stream, 2) if isinstance(each, Rows))
        assert first.changes == [(None, (1, payload[:size]))]
        assert second.changes == [(None, (2, b"x"))]

    def test_refuses_an_event_whose_bytes_were_changed(self) -> None:
        """I8."""
        begin, start, *rest = transaction(10, *inserted(1))
        bad = bytearray(rest[1])
        bad[30] ^= 1
        events = [begin, start, rest[0], bytes(bad), rest[2]]
        with reading(events) as (stream, _), pytest.raises(NotCarried, match="checksum"):
            told(stream, 1)

    def test_says_nothing_within_the_time_it_was_given_and_goes_on(self) -> None:
        with reading(transaction(10, *inserted(1))) as (stream, _):
            assert told(stream, 1)
            assert stream.read(0.01) == []

    def test_is_closed_by_another_thread(self) -> None:
        with reading([]) as (stream, _):
            failures: list[Exception] = []

            def read() -> None:
                try:
                    while True:
                        stream.read(30)
                except RelayError as fault:
                    failures.append(fault)

            thread = threading.Thread(target=read)
            thread.start()
            stream.close()
            thread.join(10)
            assert not thread.is_alive()
            assert isinstance(failures[0], Closed)
            with pytest.raises(Closed):
                stream.read(1)

    def test_tells_no_later_time_for_a_heartbeat_that_waited_to_be_read(self) -> None:
        """I4: what came after it may be as old."""
        beat = event(27, b"binlog.000001", 0, 0)
        with reading([beat]) as (stream, scripted):
            found: list[Any] = []
            while not any(isinstance(each, Heartbeat) for each in found):
                found += stream.read(5)
            assert found[-1].timestamp < time.time()
            assert stream.read(0) == []
            quiet = time.time()
            time.sleep(1.5)
            scripted.more(b"".join(packets(b"\0" + each, 9) for each in (beat, *transaction(10))))
            time.sleep(0.2)
            late = [each for each in stream.read(5) if isinstance(each, Heartbeat)]
            assert late[0].timestamp < quiet

    @pytest.mark.parametrize(
        ("code", "text", "kind"),
        [
            (1236, "Cannot replicate because the source purged required binary logs.", BinlogPurged),
            (1236, "Could not find first log file name in binary log index file", BinlogPurged),
            (1236, "Replica has more GTIDs than the source has, using the source's SERVER_UUID.", Diverged),
            (1236, "The binlog on the master is missing the GTID 0-1-5 requested by the slave", Diverged),
            (1236, "log event entry exceeded max_allowed_packet; Increase max_allowed_packet on source", Unavailable),
            (1227, "Access denied; you need (at least one of) the REPLICATION SLAVE privilege(s)", Denied),
            (1053, "Server shutdown in progress", Interrupted),
        ],
    )
    def test_ends_with_what_the_server_says(self, code: int, text: str, kind: type[Exception]) -> None:
        ends = b"\xff" + struct.pack("<H", code) + b"#HY000" + text.encode()
        with reading(transaction(10, *inserted(1)), ends=ends) as (stream, _):
            assert told(stream, 1)  # and what came before is not lost
            with pytest.raises(kind, match=text[:20]) as raised:
                told(stream, 1)
        assert type(raised.value) is kind

    @pytest.mark.parametrize("script", [{"hangs_up": True}, {"ends": b"\xfe\0\0\0\0"}])
    def test_that_the_server_ends_may_be_begun_again(self, script: dict[str, Any]) -> None:
        with reading(transaction(10), **script) as (stream, _):
            assert told(stream, 1)
            with pytest.raises(Interrupted):
                told(stream, 1)


def test_an_xa_transaction_is_told_once_it_commits_in_one_phase() -> None:
    """I1: MySQL says only after its rows whether it commits."""
    xa = [
        event(GTID, gtid(A, 10)),
        event(QUERY, query(b"XA START X'61',X'',1")),
        *(event(*each) for each in inserted(1, 2)),
        event(QUERY, query(b"XA END X'61',X'',1")),
    ]
    end = event(XA_PREPARE, b"\1" + bytes(12))
    with reading([*xa, end, *transaction(11, *inserted(3))]) as (stream, _):
        found = told(stream, 2)
        assert [type(each) for each in found] == [TransactionBegin, Rows, Commit] * 2
        assert [after[0] for each in found if isinstance(each, Rows) for _, after in each.changes if after] == [1, 2, 3]
        assert stream.executed == parse(f"{A}:1-11")
    with reading(xa) as (stream, _):
        found = [each for _ in range(3) for each in stream.read(0.1)]
        assert not any(isinstance(each, Rows) for each in found)


ALONE = [event(GTID, gtid(A, 10)), event(QUERY, query(b"BEGIN"))]


class TestItRefuses:
    @pytest.mark.parametrize(
        ("events", "says"),
        [
            (
                [*ALONE, event(QUERY, query(b"INSERT INTO orders SELECT * FROM old"))],
                r"shop\.orders is logged as a statement.*ROW",
            ),
            (
                [event(GTID, gtid(A, 10)), event(QUERY, query(b"ALTER TABLE orders DROP PARTITION p"))],
                r"removes or replaces rows of shop\.orders.*DROP PARTITION p.*Start after",
            ),
            ([*ALONE, event(18, bytes(40))], r"LOAD DATA.*binlog_format"),
            ([event(34, gtid(A, 10))], r"has no GTID.*gtid_mode"),
            ([event(42, bytes(40))], "tag"),
            ([*ALONE, *(event(*each) for each in inserted(1)), event(QUERY, query(b"ROLLBACK"))], "rolled back"),
            ([*ALONE, *(event(*each) for each in inserted(1)), event(QUERY, query(b"ROLLBACK TO a"))], "rolled back"),
            (
                [
                    event(GTID, gtid(A, 10)),
                    event(QUERY, query(b"XA START X'61',X'',1")),
                    *(event(*each) for each in inserted(1)),
                    event(QUERY, query(b"XA END X'61',X'',1")),
                    event(XA_PREPARE, bytes(13)),
                ],
                r"XA transaction changes shop\.orders",
            ),
            (
                [
                    event(GTID, gtid(A, 10)),
                    event(QUERY, query(b"XA START X'61',X'',1")),
                    *(event(*each) for each in inserted(1, 2, 3, payload=bytes(6 << 20))),
                ],
                r"XA transaction changes shop\.orders.*up to 16 MB",
            ),
            ([*ALONE, event(TABLE_MAP, inserted(1)[0][1]), event(39, inserted(1)[1][1])], "value_options"),
            ([*ALONE, event(WRITE, inserted(1)[1][1])], "rows have no TABLE_MAP"),
            ([*ALONE, event(99, b"?")], "type 99"),
            (
                [*ALONE, event(TABLE_MAP, table_map(7, "shop", "orders", COLUMNS, with_names=False))],
                r"shop\.orders.*names.*binlog_row_metadata",
            ),
            (
                [
                    *ALONE,
                    event(TABLE_MAP, inserted(1)[0][1]),
                    event(WRITE, inserted(1)[1][1].replace(b"\x02\x03", b"\x02\x01", 1)),
                ],
                r"all its columns.*row_image",
            ),
            ([*ALONE, event(40, packed(2) + packed(1) + packed(7) + b"\0?")], "unknown compression 7"),
        ],
    )
    def test_what_it_cannot_carry_with_its_place_and_what_to_set(self, events: list[bytes], says: str) -> None:
        """I8."""
        with reading(events) as (stream, _), pytest.raises(NotCarried, match=says) as raised:
            told(stream, 1)
        assert "binlog.000001 before " in str(raised.value)

    def test_to_go_on_after_an_incident(self) -> None:
        """I9."""
        with (
            reading([event(26, b"\x01\x00\x09lost rows")]) as (stream, _),
            pytest.raises(IncidentEvent, match="lost rows"),
        ):
            told(stream, 1)

    def test_nothing_of_tables_that_are_not_wanted(self) -> None:
        events = [
            *transaction(10, *inserted(1), (QUERY, query(b"DELETE FROM old"))),
            *transaction(
                11, (TABLE_MAP, table_map(8, "shop", "old", COLUMNS, with_names=False)), (WRITE, b"\x08" + bytes(40))
            ),
            event(GTID, gtid(A, 12)),
            event(QUERY, query(b"XA START X'61',X'',1")),
            *(event(*each) for each in inserted(1, table="old")),
            event(XA_PREPARE, bytes(13)),
            *transaction(13, *inserted(1, table="old"), end=event(QUERY, query(b"ROLLBACK"))),
            *transaction(14, (99, b"")),
        ]
        events[-2] = event(99, b"", flags=0x80)  # the server says that it may be ignored
        with reading(events, wanted=lambda _, table: table == "orders") as (stream, _):
            found = told(stream, 5)
            assert stream.executed == parse(f"{A}:1-14")
        assert [each.table.name for each in found if isinstance(each, Rows)] == ["shop.orders"]


class TestACompressedTransaction:
    def body(self, compression: int, raw: bytes) -> bytes:
        value = packed(compression)
        return packed(2) + packed(len(value)) + value + packed(3) + packed(1) + packed(9) + packed(0) + raw

    def raw(self) -> bytes:
        parts = [
            bare(QUERY, query(b"BEGIN")),
            *(bare(kind, body) for kind, body in inserted(1, 2)),
            bare(XID, bytes(8)),
        ]
        return b"".join(parts)

    def test_is_read_as_if_it_were_not(self) -> None:
        with reading([event(GTID, gtid(A, 10)), event(40, self.body(255, self.raw()))]) as (stream, _):
            _, found, _ = told(stream, 1)
        assert found.changes == [(None, (1, b"x")), (None, (2, b"x"))]

    def test_is_given_in_parts_and_what_follows_it_after_it(self) -> None:
        """I11: a whole one may be of gigabytes."""
        bodies = [each for number in range(60) for each in inserted(number, payload=bytes(100_000))]
        raw = b"".join([bare(QUERY, query(b"BEGIN")), *(bare(*each) for each in bodies), bare(XID, bytes(8))])
        packed_ = [event(GTID, gtid(A, 10)), event(40, self.body(255, raw))]
        found: list[Any] = []
        with reading([*packed_, *transaction(11, *inserted(60))]) as (stream, _):
            while sum(isinstance(each, Commit) for each in found) < 2:
                some = stream.read(5)
                assert some
                assert sum(each.size for each in some if isinstance(each, Rows)) < 1_500_000
                found += some
        ids_ = [after[0] for each in found if isinstance(each, Rows) for _, after in each.changes if after]
        assert ids_ == list(range(61))
        assert [each.gtid for each in found if isinstance(each, TransactionBegin)] == [f"{A}:10", f"{A}:11"]

    def test_of_tables_that_are_not_wanted_is_passed_at_once(self) -> None:
        bodies = [each for number in range(30) for each in inserted(number, payload=bytes(100_000))]
        raw = b"".join([bare(QUERY, query(b"BEGIN")), *(bare(*each) for each in bodies), bare(XID, bytes(8))])
        events = [event(GTID, gtid(A, 10)), event(40, self.body(255, raw))]
        with reading(events, wanted=lambda _database, _table: False) as (stream, _):
            while TransactionBegin not in (kinds := [type(each) for each in stream.read(5)]):
                pass
            if Commit not in kinds:
                kinds += [type(each) for each in stream.read(0.0)]
        assert kinds[-2:] == [TransactionBegin, Commit]

    def test_that_is_cut_off_is_refused(self) -> None:
        raw = self.raw()
        with (
            reading([event(GTID, gtid(A, 10)), event(40, self.body(255, raw[:-3]))]) as (stream, _),
            pytest.raises(NotCarried, match="truncated"),
        ):
            told(stream, 1)

    def test_needs_a_package_that_may_be_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """But not where nobody looks at rows."""
        monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
        with (
            running(Scripted([*HEAD, event(GTID, gtid(A, 10)), event(40, self.body(0, self.raw()))])) as scripted,
            closing(connection.connect("127.0.0.1", scripted.port, "relay", "secret")) as server,
            closing(BinlogEvents(server, parse(f"{A}:1-9"), None)) as timed,
        ):
            assert [type(each) for each in told(timed, 1)] == [TransactionBegin, Commit]
            assert timed.executed == parse(f"{A}:1-10")
        with (
            reading([event(GTID, gtid(A, 10)), event(40, self.body(0, self.raw()))]) as (stream, _),
            pytest.raises(NotCarried, match="pip install zstandard"),
        ):
            told(stream, 1)
