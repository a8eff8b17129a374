"""Compressed transactions of MySQL are read in parts, from a scripted server and from a real one."""

from __future__ import annotations

import importlib.util
from contextlib import closing
from typing import Any

import pytest

from relay.gtid import parse
from relay.mysql import connection
from relay.mysql.binlog.events import Commit, Rows, TransactionBegin
from relay.mysql.binlog.stream import BinlogEvents
from relay.mysql.errors import NotCarried
from tests.mysql.encoder import bare, event, gtid, packed, query
from tests.mysql.reading import NUMBERS, reading, session
from tests.mysql.scripted import Scripted, running
from tests.mysql.scripted_binlogs import GTID, HEAD, QUERY, XID, A, inserted, read_commits, reading_events, transaction


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

    def test_has_the_rows_of_a_plain_one(self) -> None:
        with reading_events([event(GTID, gtid(A, 10)), event(40, self.body(255, self.raw()))]) as (stream, _):
            _, found, _ = read_commits(stream, 1)
        assert found.changes == [(None, (1, b"x")), (None, (2, b"x"))]

    def test_is_returned_in_parts_before_the_next_transaction(self) -> None:
        """I11: a whole one may be of gigabytes."""
        bodies = [each for number in range(60) for each in inserted(number, payload=bytes(100_000))]
        raw = b"".join([bare(QUERY, query(b"BEGIN")), *(bare(*each) for each in bodies), bare(XID, bytes(8))])
        packed_ = [event(GTID, gtid(A, 10)), event(40, self.body(255, raw))]
        found: list[Any] = []
        with reading_events([*packed_, *transaction(11, *inserted(60))]) as (stream, _):
            while sum(isinstance(each, Commit) for each in found) < 2:
                some = stream.read(5)
                assert some
                assert sum(each.size for each in some if isinstance(each, Rows)) < 1_500_000
                found += some
        ids_ = [after[0] for each in found if isinstance(each, Rows) for _, after in each.changes if after]
        assert ids_ == list(range(61))
        assert [each.gtid for each in found if isinstance(each, TransactionBegin)] == [f"{A}:10", f"{A}:11"]

    def test_of_tables_that_are_not_relayed_is_skipped_at_once(self) -> None:
        bodies = [each for number in range(30) for each in inserted(number, payload=bytes(100_000))]
        raw = b"".join([bare(QUERY, query(b"BEGIN")), *(bare(*each) for each in bodies), bare(XID, bytes(8))])
        events = [event(GTID, gtid(A, 10)), event(40, self.body(255, raw))]
        with reading_events(events, wanted=lambda _database, _table: False) as (stream, _):
            kinds: list[type] = []
            while Commit not in kinds:
                found = stream.read(5)
                assert found  # not nothing after each part
                kinds += map(type, found)
        assert kinds[-2:] == [TransactionBegin, Commit]

    def test_that_is_truncated_is_refused(self) -> None:
        raw = self.raw()
        with (
            reading_events([event(GTID, gtid(A, 10)), event(40, self.body(255, raw[:-3]))]) as (stream, _),
            pytest.raises(NotCarried, match="truncated"),
        ):
            read_commits(stream, 1)

    @pytest.mark.parametrize(
        "payload",
        [
            b"\x02\x01",
            packed(2) + packed(1) + packed(0) + packed(0) + b"not zstd",
            packed(0) + bytes(19),  # an event that says that it has no bytes
        ],
    )
    def test_that_is_malformed_is_refused_with_its_place(self, payload: bytes) -> None:
        if b"zstd" in payload:
            pytest.importorskip("zstandard")
        with (
            reading_events([event(GTID, gtid(A, 10)), event(40, payload)]) as (stream, _),
            pytest.raises(NotCarried, match=f"GTID {A}:10: a compressed transaction is malformed"),
        ):
            read_commits(stream, 1)

    def test_needs_an_optional_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Except where no rows are read."""
        monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
        with (
            running(Scripted([*HEAD, event(GTID, gtid(A, 10)), event(40, self.body(0, self.raw()))])) as scripted,
            closing(connection.connect("127.0.0.1", scripted.port, "relay", "secret")) as server,
            closing(BinlogEvents(server, parse(f"{A}:1-9"), None)) as timed,
        ):
            assert [type(each) for each in read_commits(timed, 1)] == [TransactionBegin, Commit]
            assert timed.executed == parse(f"{A}:1-10")
        with (
            reading_events([event(GTID, gtid(A, 10)), event(40, self.body(0, self.raw()))]) as (stream, _),
            pytest.raises(NotCarried, match=r"pip install 'change-relay\[zstd\]'"),
        ):
            read_commits(stream, 1)


@pytest.mark.services
@pytest.mark.parametrize("rows", [1, 40_000])
def test_a_real_one_is_read_or_refused_with_the_missing_package(mysql: Any, unique: str, rows: int) -> None:
    """I1, I8."""
    with session(mysql, unique) as execute:
        execute("CREATE TABLE t (id INT PRIMARY KEY, payload VARCHAR(200))")
        execute("SET cte_max_recursion_depth = 100000")
        with reading(mysql, unique) as reader:
            execute("SET binlog_transaction_compression = ON")
            execute("INSERT INTO t " + NUMBERS.format(rows, ", concat(n, repeat('x', 100))"))
            execute("SET binlog_transaction_compression = OFF")
            if importlib.util.find_spec("zstandard") is None:
                with pytest.raises(NotCarried, match=r"pip install 'change-relay\[zstd\]'"):
                    reader.transactions()
                return
            execute("INSERT INTO t VALUES (-1, 'plain')")
            found = reader.rows()
    assert found == [*((each, f"{each}{'x' * 100}") for each in range(1, rows + 1)), (-1, "plain")]
