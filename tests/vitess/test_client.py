"""Calls to vtgate: bounded buffers, ends after all answers, credentials, TLS."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from relay.config.tls import tls_context
from relay.errors import RelayError, Unavailable
from relay.vitess.call import Call
from relay.vitess.client import Vtgate
from relay.vitess.http2 import WINDOW, CallEnded
from relay.vitess.proto import vtgate_pb2 as pb
from tests.certificates import Authority
from tests.vitess.scripted import HOLDS, Fails, Log, ScriptedVtgate, Step

AT = [pb.ShardGtid(keyspace="commerce", shard="0", gtid="MariaDB/0-1-1")]


def taken(stream: Call, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        found += stream.take(5.0, 1)
    return found


def test_answers_are_taken_in_order_and_the_end_comes_last_with_its_message() -> None:
    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        for number in range(100):
            yield [pb.VEvent(timestamp=number)]
        yield Fails("UNAVAILABLE", "the tablet is gone")

    with ScriptedVtgate(script) as vtgate, closing(Vtgate(vtgate.address)) as gate:
        stream = gate.vstream(AT, {"t": "select * from t"})
        found = [pb.VStreamResponse.FromString(answer).events[0].timestamp for answer in taken(stream, 100)]
        assert found == list(range(100))
        for _ in range(2):
            with pytest.raises(CallEnded, match="UNAVAILABLE: the tablet is gone"):
                stream.take(60.0)


def test_the_window_bounds_what_the_server_sends_ahead() -> None:
    sent = []

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        for number in range(3000):
            sent.append(number)
            yield [pb.VEvent(statement="x" * 100_000)]

    with ScriptedVtgate(script) as vtgate, closing(Vtgate(vtgate.address)) as gate:
        stream = gate.vstream(AT, {})
        before = -1
        while before != len(sent):
            before = len(sent)
            time.sleep(0.3)
        # The window, and what the server buffers behind it.
        assert len(sent) * 100_000 < WINDOW + (8 << 20)
        assert len(taken(stream, 3000)) == 3000


def test_closing_a_stream_ends_the_wait_of_another_thread() -> None:
    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        yield HOLDS

    with ScriptedVtgate(script) as vtgate, closing(Vtgate(vtgate.address)) as gate:
        stream = gate.vstream(AT, {}, heartbeat=0)
        threading.Timer(0.1, stream.close).start()
        with pytest.raises(CallEnded, match="CANCELLED"):
            stream.take(60.0)


def test_answers_and_requests_larger_than_their_window_arrive_complete() -> None:
    asked = [pb.ShardGtid(keyspace="commerce", shard="0", gtid="MariaDB/0-1-1" * 100_000)]

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        assert list(request.vgtid.shard_gtids) == asked
        yield [pb.VEvent(statement="x" * (3 * WINDOW))]
        yield [pb.VEvent(statement="y")]

    with ScriptedVtgate(script) as vtgate, closing(Vtgate(vtgate.address)) as gate:
        stream = gate.vstream(asked, {})
        first, second = taken(stream, 2)
        assert pb.VStreamResponse.FromString(first).events[0].statement == "x" * (3 * WINDOW)
        assert pb.VStreamResponse.FromString(second).events[0].statement == "y"
        with pytest.raises(CallEnded, match="OK"):
            stream.take(60.0)


def test_a_stream_can_be_closed_while_the_server_keeps_sending() -> None:
    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        while True:
            yield [pb.VEvent(statement="x" * 10_000)]

    with ScriptedVtgate(script) as vtgate, closing(Vtgate(vtgate.address)) as gate:
        stream = gate.vstream(AT, {})
        taken(stream, 1)
        stream.close()
        with pytest.raises(CallEnded, match="CANCELLED"):
            taken(stream, 1_000_000)


def test_every_call_carries_the_credentials() -> None:
    answers: dict[str, list[dict[str, str | None]] | str] = {"show vitess_shards": [{"Shards": "commerce/0"}]}
    with (
        ScriptedVtgate(Log().script, answers) as vtgate,
        closing(Vtgate(vtgate.address, user="relay", password="secret")) as gate,
    ):
        gate.vstream(AT, {}).close()
        gate.execute("show vitess_shards")
        assert {"username": "relay", "password": "secret"}.items() <= vtgate.metadata[-1].items()


def test_tls_trusts_only_the_configured_authority_and_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("vtgate")
    ca, pem = authority.ca.read_bytes(), issued.read_bytes()
    ours, trusted = {"cert": str(issued), "key": str(issued)}, {"ca": str(authority.ca)}
    credentials = grpc.ssl_server_credentials([(pem, pem)], ca, True)
    answers: dict[str, list[dict[str, str | None]] | str] = {"select 1": [{"a": "1"}]}
    with ScriptedVtgate(Log().script, answers, credentials) as vtgate:
        with closing(Vtgate(vtgate.address, tls=tls_context(trusted | ours))) as gate:
            assert gate.execute("select 1") == [{"a": "1"}]
        other_name = vtgate.address.replace("127.0.0.1", "localhost")
        assert other_name != vtgate.address
        for address, wrong in (
            (vtgate.address, ours),
            (other_name, trusted | ours),
            (vtgate.address, trusted),
            (vtgate.address, None),
        ):
            with closing(Vtgate(address, tls=tls_context(wrong))) as gate, pytest.raises(Unavailable):
                gate.execute("select 1", timeout=5.0)


def test_a_statement_returns_rows_by_column_name_or_raises_its_error() -> None:
    answers: dict[str, list[dict[str, str | None]] | str] = {"select 1": [{"a": "1", "b": None}], "select 2": "syntax"}
    with ScriptedVtgate(Log().script, answers) as vtgate, closing(Vtgate(vtgate.address)) as gate:
        assert gate.execute("select 1") == [{"a": "1", "b": None}]
        with pytest.raises(RelayError, match="rejected 'select 2': syntax"):
            gate.execute("select 2")
    with closing(Vtgate("127.0.0.1:1")) as nobody, pytest.raises(Unavailable, match=r"vtgate 127.0.0.1:1 does not"):
        nobody.execute("select 1", timeout=2.0)


def test_a_shard_without_a_tablet_that_serves_is_unavailable_and_the_statement_not_wrong() -> None:
    """So a real vtgate answers during a failover: there, an answer has the error, and not the call."""
    gone = pb.RPCError(code=14, message="target: commerce.-80.replica: no healthy tablet available for 'keyspace'")
    moved = pb.RPCError(code=17, message="target: commerce.-80.primary: primary is not serving")
    with (
        ScriptedVtgate(Log().script, {"select 1": gone, "select 2": moved}) as vtgate,
        closing(Vtgate(vtgate.address)) as gate,
    ):
        for statement, text in (("select 1", "no healthy tablet"), ("select 2", "primary is not serving")):
            with pytest.raises(Unavailable, match=f"cannot answer '{statement}' now: target.*{text}"):
                gate.execute(statement)


def test_importing_the_command_line_does_not_import_hpack_or_protobuf() -> None:
    code = "import relay.cli, sys; sys.exit('hpack' in sys.modules or 'google.protobuf' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
