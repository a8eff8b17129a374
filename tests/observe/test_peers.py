"""How a worker finds and asks the other processes of its relay."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from relay.config import Config, HttpConfig
from relay.errors import Unavailable
from relay.observe.access import Access
from relay.observe.peers import FoundConsumers, Peers
from relay.observe.server import serve_observer
from relay.process.managed import free_port
from tests.certificates import Authority
from tests.clock import Clock
from tests.listening import NOBODY, answering
from tests.waiting import wait_until

HERE = socket.gethostname()


class Recorded(HTTPServer):
    """Answers with a status, and keeps the headers of each request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.headers: list[dict[str, str]] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Recorded

    def do_GET(self) -> None:
        self.server.headers.append(dict(self.headers))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"name": "shop", "stalls": []}')

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    with answering(Recorded()) as server:
        yield server


def test_consumers_that_kafka_names_are_asked_as_peers_are(recorded: Recorded) -> None:
    found = Peers([], HttpConfig(address="h:1"), Access(), lambda: {recorded.address: ["log", "copy"]})
    [answer] = found.ask()
    assert answer["status"] == {"name": "shop", "stalls": []}
    assert (answer["url"], answer["is_peer"]) == (f"http://{recorded.address}", False)
    assert answer["consumers"] == ["log", "copy"]
    listed = Peers([recorded.address], HttpConfig(address="h:1"), Access(), lambda: {recorded.address: ["cache"]})
    assert [each["is_peer"] for each in listed.ask()] == [True]


@pytest.mark.parametrize("secret", [{"user": "ops", "password": "hunter2"}, {"bearer": "hunter2"}])
def test_an_address_that_only_kafka_names_gets_no_password(secret: dict[str, str], recorded: Recorded) -> None:
    """Whoever may commit offsets could read it otherwise."""
    http = HttpConfig.model_validate({"address": "h:1", **secret})
    assert Peers([], http, Access(http), lambda: {recorded.address: ["cache"]}).ask() == []
    assert recorded.headers == []
    (answer,) = Peers([recorded.address], http, Access(http), dict).ask()
    assert "status" in answer
    assert "Authorization" in recorded.headers[0]


def test_a_peer_whose_name_does_not_resolve_is_told_from_one_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In Kubernetes, a worker that was removed has no name any more."""
    resolve = socket.getaddrinfo

    def resolved(host: str, *more: Any) -> Any:
        if host == "gone":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *more)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    answers = Peers(["gone:9400", NOBODY], HttpConfig(address="h:1"), Access()).ask()
    assert [each["resolves"] for each in answers] == [False, True]


def test_another_worker_of_this_machine_need_not_have_the_address_in_its_certificate_but_needs_that_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The password goes to nobody else, whoever has signed the certificate."""
    monkeypatch.setenv("RELAY_STATE", str(tmp_path))
    authority, address = Authority(tmp_path), f"0.0.0.0:{free_port()}"

    def secured(certificate: Path) -> Config:
        http = {"address": address, "certificate": str(certificate), "bearer": "hunter2"}
        source = {"name": "orders", "type": "dynamodb", "table": "orders"}
        kafka = {"bootstrap_servers": NOBODY}
        return Config.model_validate({"name": "shop", "kafka": kafka, "sources": [source], "http": http})

    ours, theirs = (secured(authority.issue(name, "10.0.0.7")) for name in ("ours", "theirs"))
    assert ours.http is not None
    with serve_observer(ours):
        [answer] = Peers([address], ours.http, Access(ours.http)).ask()
    assert answer["status"]["name"] == "shop"
    with serve_observer(theirs):
        [answer] = Peers([address], ours.http, Access(ours.http)).ask()
    assert "CERTIFICATE_VERIFY_FAILED" in answer["problem"]


def test_a_page_gets_the_addresses_that_are_known_and_never_waits_for_kafka() -> None:
    clock, go_on = Clock(), Event()
    answers: list[dict[str, list[str]] | Unavailable] = [
        {address: ["cache"] for address in (f"127.0.0.1:1@{HERE}", "10.0.0.5:9410@b", "127.0.0.1:2@b", "[::1]:3@b")},
        Unavailable("no broker"),
    ]

    def look() -> dict[str, list[str]]:
        assert go_on.wait(60)
        answer = answers.pop(0) if answers else {}
        if isinstance(answer, Unavailable):
            raise answer
        return answer

    found = FoundConsumers(look, clock)
    assert list(found.addresses()) == []
    assert list(found.addresses()) == []  # while it is looked up
    go_on.set()
    # The loopback address of another machine is not this one.
    wanted = ["127.0.0.1:1", "10.0.0.5:9410"]
    wait_until(lambda: list(found.addresses()) == wanted)
    clock.now += 20.0
    assert list(found.addresses()) == wanted
    wait_until(lambda: not answers)
    assert list(found.addresses()) == wanted

    def is_empty() -> bool:
        clock.now += 20.0
        return not found.addresses()

    wait_until(is_empty)


def test_while_a_look_for_consumers_hangs_no_other_one_begins() -> None:
    """I11: each would have a thread and a client of Kafka."""
    clock, go_on = Clock(), Event()

    def look() -> dict[str, list[str]]:
        assert go_on.wait(60)
        return {}

    found = FoundConsumers(look, clock)
    for _ in range(3):
        assert list(found.addresses()) == []
        clock.now += 3600.0
    looking = [each for each in threading.enumerate() if each.name == "consumers"]
    go_on.set()
    for each in looking:
        each.join(60)
    assert len(looking) == 1
