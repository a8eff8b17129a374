"""Credentials and TLS of the HTTP port, over real sockets."""

from __future__ import annotations

import base64
import http.client
import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay.config import Config
from relay.errors import ConfigError
from relay.observe.observer import Observer
from relay.observe.server import serve_observer
from relay.process.managed import free_port
from tests.certificates import Authority
from tests.observe.known import NOW, WALL, polled, source, status
from tests.observe.requests import get

BASIC = {"Authorization": "Basic " + base64.b64encode("ops:pässword:1".encode()).decode()}
BEARER = {"Authorization": "bearer a-token"}
PATHS = ("/", "/metrics", "/status.json", "/healthz", "/livez", "/readyz", "/nothing")


@contextmanager
def serving(**http: Any) -> Iterator[tuple[Observer, int]]:
    """Serve a worker with a stalled shard; yield it and its port."""
    port = free_port()
    table = {"name": "orders", "type": "dynamodb", "table": "orders"}
    kafka = {"bootstrap_servers": "127.0.0.1:1"}
    raw = {"name": "shop", "kafka": kafka, "sources": [table], "http": {"address": f"127.0.0.1:{port}", **http}}
    with serve_observer(Config.model_validate(raw)) as observer:
        observer.clock, observer.wall = lambda: NOW, lambda: WALL
        observer._status, observer.liveness.turned = status(source(open={"shard-7": polled(99, 3, "throttled")})), NOW
        yield observer, port


@pytest.fixture
def secured() -> Iterator[int]:
    with serving(user="ops", password="pässword:1", bearer="a-token") as (_, port):
        yield port


@pytest.mark.parametrize("credentials", [BASIC, BEARER], ids=["basic", "bearer"])
def test_who_has_the_password_or_the_token_sees_everything(secured: int, credentials: dict[str, str]) -> None:
    assert [get(secured, path, **credentials)[0] for path in PATHS] == [200, 200, 200, 503, 200, 200, 404]
    assert b"shard-7" in get(secured, "/healthz", **credentials)[2]


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Basic",
        "Basic b3BzOm5v",
        "Bearer a-toke",
        "Bearer a-token2",
        "Basic a-token",
        BASIC["Authorization"].replace("Basic", "Bearer"),
        "Bearer \xff",
    ],
)
def test_a_stranger_sees_nothing_but_the_status_of_probes(secured: int, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    for path in PATHS:
        code, answered, body = get(secured, path, **headers)
        assert b"shard-7" not in body
        assert b"orders" not in body
        if path == "/healthz":
            assert (code, orjson.loads(body)) == (503, {"status": "stalled"})
        elif path in ("/livez", "/readyz"):
            assert orjson.loads(body).keys() == {"status"}
        else:
            assert code == 401
            assert answered["WWW-Authenticate"]
            assert b"`http`" in body


def test_tls_answers_who_trusts_the_authority_and_clear_text_not_at_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    caplog.set_level(logging.INFO)
    with serving(certificate=str(authority.issue("page")), bearer="a-token") as (_, port):
        assert f"https://127.0.0.1:{port}" in caplog.text
        trusting = ssl.create_default_context(cafile=str(authority.ca))
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=trusting)
        connection.request("GET", "/status.json", headers=BEARER)
        assert orjson.loads(connection.getresponse().read())["name"] == "shop"
        connection.close()
        with pytest.raises((http.client.BadStatusLine, ConnectionError)):
            get(port, "/healthz", **BEARER)
        stranger = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=ssl.create_default_context())
        with pytest.raises(ssl.SSLCertVerificationError):
            stranger.request("GET", "/healthz")
        stranger.close()
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


def test_a_client_that_never_finishes_the_handshake_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.observe.server._REQUEST_SECONDS", 600.0)
    authority = Authority(tmp_path)
    with (
        serving(certificate=str(authority.issue("page"))) as (_, port),
        socket.create_connection(("127.0.0.1", port), timeout=60) as silent,
    ):
        trusting = ssl.create_default_context(cafile=str(authority.ca))
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=trusting)
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 503
        connection.close()
        monkeypatch.setattr("relay.observe.server._REQUEST_SECONDS", 0.3)
        assert silent.recv(1) == b""  # hung up on


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    certificate = Authority(tmp_path).issue("page")
    (tmp_path / "text.pem").write_text("no key")
    for wrong in (
        {"certificate": "/no/such.pem"},
        {"certificate": str(tmp_path / "text.pem")},
        {"certificate": str(certificate), "key": str(tmp_path / "text.pem")},
    ):
        with pytest.raises(ConfigError, match=r"http.certificate: cannot use .*\.pem.*must be PEM"), serving(**wrong):
            pass
    with (
        pytest.raises(ConfigError, match=r"http.authorities: cannot use /no/such.pem"),
        serving(certificate=str(certificate), authorities="/no/such.pem"),
    ):
        pass
