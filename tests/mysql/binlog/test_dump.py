"""How a dump is requested, split into events, ended by the server, and closed, with a scripted MySQL 8 server."""

from __future__ import annotations

import struct
import threading
import time
import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relay.errors import RelayError, Unavailable
from relay.mysql.binlog.events import Heartbeat, Rows
from relay.mysql.errors import BinlogPurged, Closed, Denied, Diverged, Interrupted, NotCarried
from tests.mysql.encoder import event
from tests.mysql.scripted import packets
from tests.mysql.scripted_binlogs import A, B, inserted, read_commits, reading_events, transaction


class TestADump:
    def test_asks_for_what_is_not_in_the_set(self) -> None:
        start = f"{A}:20-30:35-40,{B}:1-5"
        with reading_events(transaction(41), start) as (stream, scripted):
            read_commits(stream, 1)
        (command,) = scripted.asked
        sets = struct.pack("<Q", 2) + uuid.UUID(A).bytes + struct.pack("<5Q", 2, 20, 31, 35, 41)
        sets += uuid.UUID(B).bytes + struct.pack("<3Q", 1, 1, 6)
        assert command[0] == 0x1E
        assert command[1:3] == b"\x04\x00"
        assert command[-len(sets) :] == sets

    @given(st.integers(1, 40), st.integers(1, 3))
    @settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def test_has_the_same_events_however_the_bytes_arrive(self, chunk: int, count: int) -> None:
        """I1."""
        events = [each for number in range(10, 10 + count) for each in transaction(number, *inserted(number))]
        with reading_events(events, chunk=chunk) as (stream, _):
            seen = [each.changes for each in read_commits(stream, count) if isinstance(each, Rows)]
        assert seen == [[(None, (number, b"x"))] for number in range(10, 10 + count)]

    @pytest.mark.parametrize("size", [0xFFFFFF - 61, 0xFFFFFF - 60, 0xFFFFFF, 2 * 0xFFFFFF - 61, 40_000_000])
    def test_joins_the_packets_of_long_events(self, size: int) -> None:
        """I1."""
        payload = bytes(range(256)) * (size // 256 + 1)
        events = [*transaction(10, *inserted(1, payload=payload[:size])), *transaction(11, *inserted(2))]
        with reading_events(events) as (stream, _):
            first, second = (each for each in read_commits(stream, 2) if isinstance(each, Rows))
        assert first.changes == [(None, (1, payload[:size]))]
        assert second.changes == [(None, (2, b"x"))]

    def test_refuses_an_event_with_a_wrong_checksum(self) -> None:
        """I8."""
        begin, start, *rest = transaction(10, *inserted(1))
        bad = bytearray(rest[1])
        bad[30] ^= 1
        events = [begin, start, rest[0], bytes(bad), rest[2]]
        with reading_events(events) as (stream, _), pytest.raises(NotCarried, match="checksum"):
            read_commits(stream, 1)

    def test_returns_nothing_after_the_timeout_and_continues(self) -> None:
        with reading_events(transaction(10, *inserted(1))) as (stream, _):
            assert read_commits(stream, 1)
            assert stream.read(0.01) == []

    def test_can_be_closed_by_another_thread(self) -> None:
        with reading_events([]) as (stream, _):
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
            thread.join(120)
            assert not thread.is_alive()
            assert isinstance(failures[0], Closed)
            with pytest.raises(Closed):
                stream.read(1)

    def test_dates_a_heartbeat_that_waited_to_be_read_before_it_was_sent(self) -> None:
        """I4: what came after it may be as old."""
        beat = event(27, b"binlog.000001", 0, 0)
        with reading_events([beat]) as (stream, scripted):
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
    def test_raises_the_error_of_the_server_after_the_events_before_it(
        self, code: int, text: str, kind: type[Exception]
    ) -> None:
        ends = b"\xff" + struct.pack("<H", code) + b"#HY000" + text.encode()
        with reading_events(transaction(10, *inserted(1)), ends=ends) as (stream, _):
            assert read_commits(stream, 1)  # and what came before is not lost
            with pytest.raises(kind, match=text[:20]) as raised:
                read_commits(stream, 1)
        assert type(raised.value) is kind

    @pytest.mark.parametrize("script", [{"hangs_up": True}, {"ends": b"\xfe\0\0\0\0"}])
    def test_that_the_server_ends_is_interrupted(self, script: dict[str, Any]) -> None:
        with reading_events(transaction(10), **script) as (stream, _):
            assert read_commits(stream, 1)
            with pytest.raises(Interrupted):
                read_commits(stream, 1)
