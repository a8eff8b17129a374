"""Calls to vtgate: what waits is bounded, ends are told once all was taken, credentials go along."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from relay.errors import ConfigError, RelayError, Unavailable
from relay.vitess.client import BUFFER, Budget, StreamEnded, Tls, VStream, Vtgate
from relay.vitess.proto import vtgate_pb2 as pb
from tests.vitess.scripted import HOLDS, Fails, Log, ScriptedVtgate, Step

AT = [pb.ShardGtid(keyspace="commerce", shard="0", gtid="MariaDB/0-1-1")]


def taken(stream: VStream, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        found += stream.take(5.0, 1)
    return found


def test_answers_are_taken_in_order_and_then_the_end_with_its_text() -> None:
    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        for number in range(100):
            yield [pb.VEvent(timestamp=number)]
        yield Fails("UNAVAILABLE", "the tablet is gone")

    with ScriptedVtgate(script) as vtgate, closing(Vtgate(vtgate.address)) as gate:
        stream = gate.vstream(AT, {"t": "select * from t"})
        found = [pb.VStreamResponse.FromString(answer).events[0].timestamp for answer in taken(stream, 100)]
        assert found == list(range(100))
        for _ in range(2):
            with pytest.raises(StreamEnded, match="UNAVAILABLE: the tablet is gone"):
                stream.take(5.0)


def test_no_more_waits_than_the_bound_however_much_the_server_has() -> None:
    sent = []

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        for number in range(3000):
            sent.append(number)
            yield [pb.VEvent(statement="x" * 100_000)]

    with ScriptedVtgate(script) as vtgate, closing(Vtgate(vtgate.address)) as gate:
        stream = gate.vstream(AT, {}, budget=Budget(1 << 20))
        before = -1
        while before != len(sent):
            before = len(sent)
            time.sleep(0.3)
        assert stream._size <= (1 << 20) + 110_000
        assert len(sent) < 1000  # the rest is held back by the connection's own window
        assert len(taken(stream, 3000)) == 3000


def settled(streams: list[VStream]) -> list[int]:
    """Wait until no more is read, and return how many bytes wait in each."""
    before = [-1]
    while before != (sizes := [stream._size for stream in streams]):
        before = sizes
        time.sleep(0.3)
    return sizes


def test_streams_share_what_may_wait_and_those_that_are_left_have_more_of_it() -> None:
    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        for _ in range(100):
            yield [pb.VEvent(statement="x" * 100_000)]

    budget = Budget(4 << 20)
    with ScriptedVtgate(script) as vtgate, closing(Vtgate(vtgate.address)) as gate:
        streams = [gate.vstream(AT, {}, budget=budget) for _ in range(4)]
        assert max(settled(streams)) <= (1 << 20) + 110_000
        for stream in streams[1:]:
            stream.close()
            stream.close()
        assert budget.share == 4 << 20
        first = taken(streams[0], 1)
        (size,) = settled(streams[:1])
        assert 3 << 20 < size <= (4 << 20) + 110_000
        assert len(taken(streams[0], 100 - len(first))) == 100 - len(first)
        streams[0].close()


def test_all_streams_of_a_connection_have_one_budget_of_which_each_has_some() -> None:
    with ScriptedVtgate(Log().script) as vtgate, closing(Vtgate(vtgate.address)) as gate:
        streams = [gate.vstream(AT, {}) for _ in range(4)]
        assert {stream._budget.share for stream in streams} == {BUFFER // 4}
        for stream in streams:
            stream.close()
        budget = streams[0]._budget
    for _ in range(1000):
        budget.join()
    assert budget.share == 1 << 20


def test_a_stream_can_be_closed_by_another_thread_while_it_is_waited_for() -> None:
    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        yield HOLDS

    with ScriptedVtgate(script) as vtgate, closing(Vtgate(vtgate.address)) as gate:
        stream = gate.vstream(AT, {}, heartbeat=0)
        threading.Timer(0.1, stream.close).start()
        with pytest.raises(StreamEnded, match="CANCELLED"):
            stream.take(60.0)


def test_a_stream_that_is_closed_while_it_is_full_lets_go() -> None:
    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        while True:
            yield [pb.VEvent(statement="x" * 10_000)]

    with ScriptedVtgate(script) as vtgate, closing(Vtgate(vtgate.address)) as gate:
        stream = gate.vstream(AT, {}, budget=Budget(1000, 1000))
        taken(stream, 1)
        stream.close()
        stream._thread.join(10.0)
        assert not stream._thread.is_alive()


def test_credentials_go_with_every_call() -> None:
    answers: dict[str, list[dict[str, str | None]] | str] = {"show vitess_shards": [{"Shards": "commerce/0"}]}
    with (
        ScriptedVtgate(Log().script, answers) as vtgate,
        closing(Vtgate(vtgate.address, user="relay", password="secret")) as gate,
    ):
        gate.vstream(AT, {}).close()
        gate.execute("show vitess_shards")
        assert {"username": "relay", "password": "secret"}.items() <= vtgate.metadata[-1].items()


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for the name ``vtgate`` that is its own authority, and return its file and its key's."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "vtgate")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("vtgate")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = folder / "certificate.pem", folder / "key.pem"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    format_ = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *format_))
    return files


def test_tls_takes_the_authority_it_is_given_and_no_other(tmp_path: Path) -> None:
    own, key = certificate(tmp_path)
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), own.read_bytes())], own.read_bytes(), True)
    answers: dict[str, list[dict[str, str | None]] | str] = {"select 1": [{"a": "1"}]}
    with ScriptedVtgate(Log().script, answers, credentials) as vtgate:
        with closing(Vtgate(vtgate.address, tls=Tls(own, own, key, "vtgate"))) as gate:
            assert gate.execute("select 1") == [{"a": "1"}]
        for wrong in (Tls(None, own, key, "vtgate"), Tls(own, own, key, "another"), Tls(own, name="vtgate"), None):
            with closing(Vtgate(vtgate.address, tls=wrong)) as gate, pytest.raises(Unavailable):
                gate.execute("select 1", timeout=5.0)
    with pytest.raises(ConfigError, match=r"tls: .*nothing.pem: No such file"):
        Vtgate("127.0.0.1:1", tls=Tls(tmp_path / "nothing.pem"))


def test_rows_of_a_statement_come_by_name_and_its_errors_as_what_they_are() -> None:
    answers: dict[str, list[dict[str, str | None]] | str] = {"select 1": [{"a": "1", "b": None}], "select 2": "syntax"}
    with ScriptedVtgate(Log().script, answers) as vtgate, closing(Vtgate(vtgate.address)) as gate:
        assert gate.execute("select 1") == [{"a": "1", "b": None}]
        with pytest.raises(RelayError, match="refuses 'select 2': syntax"):
            gate.execute("select 2")
    with closing(Vtgate("127.0.0.1:1")) as nobody, pytest.raises(Unavailable, match=r"vtgate 127.0.0.1:1 does not"):
        nobody.execute("select 1", timeout=2.0)


def test_commands_that_need_no_vitess_do_not_load_grpc() -> None:
    code = "import relay.cli, sys; sys.exit('grpc' in sys.modules or 'google.protobuf' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
