"""The HTTP endpoints over real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay.config import Config
from relay.errors import ConfigError, Unavailable
from relay.observe.observer import Observer
from relay.observe.server import _StatusServer, serve_observer
from relay.observe.status import WorkerStatus
from relay.process.managed import free_port
from relay.records import Shard
from tests.observe.known import NOW, WALL, finished, listed, polled, reading, source, status
from tests.observe.requests import get

EVIL = "<script>alert(1)</script>"


def config(address: str = "127.0.0.1:0") -> Config:
    table: dict[str, Any] = {"name": "orders", "type": "dynamodb", "table": "orders"}
    kafka = {"bootstrap_servers": "127.0.0.1:1"}
    return Config.model_validate({"name": "shop", "kafka": kafka, "sources": [table], "http": address})


class ObservedServer:
    """A server with the status that a test sets, at the times of ``known``."""

    def __init__(self, observer: Observer, port: int) -> None:
        self.observer = observer
        self.port = port
        observer.clock, observer.wall = lambda: NOW, lambda: WALL

    def knows(self, known: WorkerStatus, turned: float = NOW) -> None:
        self.observer._status, self.observer.liveness.turned = known, turned

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        return get(self.port, path, method, **headers)

    def json(self, path: str) -> tuple[int, Any]:
        code, _, body = self.get(path)
        return code, orjson.loads(body)


@pytest.fixture
def server() -> Iterator[ObservedServer]:
    port = free_port()
    with serve_observer(config(f"127.0.0.1:{port}")) as observer:
        yield ObservedServer(observer, port)


def test_a_worker_that_is_still_starting_is_alive_but_not_ready(server: ObservedServer) -> None:
    assert server.json("/healthz") == (200, {"status": "ok", "stalls": []})
    code, body = server.json("/readyz")
    assert (code, body["status"]) == (503, "not ready")
    assert server.json("/status.json")[1]["shards"] == []
    assert server.get("/")[0] == 200


def test_health_is_red_with_the_name_of_the_shard_and_then_green_again(server: ObservedServer) -> None:
    """I10"""
    server.knows(status(source(open={"a": polled(1), "b": polled(61, 9, "throttled")})))
    code, body = server.json("/healthz")
    assert code == 503
    [stall] = body["stalls"]
    assert (stall["source"], stall["shard"], stall["seconds"], stall["error"]) == ("orders", "b", 61, "throttled")
    assert b"stalled" in server.get("/")[2]
    server.knows(status(source(open={"a": polled(1), "b": polled(1)})))
    assert server.json("/healthz")[0] == 200


def test_only_what_hangs_is_red_for_what_restarts_processes(server: ObservedServer) -> None:
    """I10: while one source's database is down, a restart would stop the others, and not help."""
    server.knows(status(source(open={"a": polled(61, 9, "throttled")})))
    assert server.json("/healthz")[0] == 503
    assert server.json("/livez") == (200, {"status": "ok", "stalls": []})
    late = {"b": polled(200), "c": polled(200, reading_for=150)}  # other reads, which fail late, keep the threads
    server.knows(status(source(open={"a": polled(61, 9, "throttled"), **late})))
    assert len(server.json("/healthz")[1]["stalls"]) == 3
    assert server.json("/livez")[0] == 200
    hanging = polled(400, 3, "the connection was lost", reading_for=301)
    server.knows(status(source(open={"d": hanging, **late})))
    code, body = server.json("/livez")
    assert (code, [stall["shard"] for stall in body["stalls"]]) == (503, ["d"])
    server.knows(status(source()), turned=NOW - 61)
    assert server.json("/livez")[0] == 503


def test_health_is_red_when_the_worker_hangs(server: ObservedServer) -> None:
    """I10: the server notices without a new status."""
    server.knows(status(source()), turned=NOW - 61)
    assert server.json("/healthz")[0] == 503


def test_the_status_has_every_shard_with_state_and_position(server: ObservedServer) -> None:
    server.knows(
        status(
            source(
                listed=listed(Shard("p"), Shard("a", ("p",)), Shard("b")),
                checkpoints={"p": finished(gap="g1"), "a": reading(WALL - 5, position={"sequence": "7"})},
                open={"a": polled(0.5)},
                rows=(3, 10),
            )
        )
    )
    code, body = server.json("/status.json")
    assert code == 200
    shards = {shard["shard"]: shard for shard in body["shards"]}
    assert [shards[name]["state"] for name in "pab"] == ["finished", "reading", "listed"]
    assert [shards[name]["open"] for name in "pab"] == [False, True, False]
    assert (shards["a"]["position"], shards["a"]["lag_seconds"], shards["a"]["owned"]) == ({"sequence": "7"}, 5, True)
    assert shards["a"]["progress"] == "2027-01-15T07:59:55.000Z"
    [known] = body["sources"]
    assert known["gaps"] == [{"id": "g1", "shard": "p"}]
    assert known["snapshot"] == {"rows_read": 3, "rows_estimated": 10}
    assert body["group"]["owned"] == 64


def test_the_page_escapes_names_and_errors(server: ObservedServer) -> None:
    server.knows(status(source(f"s{EVIL}", listed=listed(Shard(EVIL)), open={EVIL: polled(99, 1, EVIL)})))
    code, headers, body = server.get("/")
    assert code == 200
    assert EVIL.encode() not in body
    assert body.count(b"&lt;script&gt;") >= 3
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert b"src=" not in body


def test_neither_the_page_nor_the_json_shows_the_user_and_password_of_a_url(server: ObservedServer) -> None:
    error = "cannot connect to http://me:hunter2@db:8000/"
    server.knows(status(source(listed=listed(Shard("a")), open={"a": polled(99, 1, error)})))
    for path in ("/", "/status.json", "/healthz"):
        body = server.get(path)[2]
        assert b"cannot connect" in body
        assert b"hunter2" not in body


def test_metrics_come_in_the_requested_format(server: ObservedServer) -> None:
    server.observer.metrics.count_fencing()
    code, headers, body = server.get("/metrics")
    assert (code, headers["Content-Type"].split(";")[0]) == (200, "text/plain")
    assert b"\nrelay_fenced_total 1.0\n" in body
    assert b"python_" not in body
    headers, body = server.get("/metrics", Accept="application/openmetrics-text; version=1.0.0")[1:]
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_an_unknown_path_gets_404_with_the_known_paths(server: ObservedServer) -> None:
    code, body = server.json("/health")
    assert (code, body["there_are"]) == (
        404,
        ["/metrics", "/healthz", "/livez", "/readyz", "/status.json", "/", "/page.json"],
    )
    assert server.get("/healthz?probe=1")[0] == 200


def test_a_head_request_gets_no_body(server: ObservedServer) -> None:
    code, headers, body = server.get("/healthz", "HEAD")
    assert (code, body) == (200, b"")
    assert int(headers["Content-Length"]) > 0


def test_a_silent_client_does_not_block_others(server: ObservedServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)):
        assert server.get("/healthz")[0] == 200


def test_many_slow_clients_neither_keep_others_out_nor_take_a_thread_each(
    server: ObservedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.observe.server._REQUEST_SECONDS", 600.0)  # only newer clients end a slow one here
    before = set(threading.enumerate())
    with ExitStack() as slow:
        for _ in range(100):
            client = slow.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            client.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
            with suppress(ConnectionError):
                client.sendall(b"x")
        assert server.get("/healthz")[0] == 200
        # A thread gives its place away before it ends, so a few more may be on their way out.
        end = time.monotonic() + 60
        while len(threads := set(threading.enumerate()) - before) > 32 and time.monotonic() < end:
            time.sleep(0.01)
        assert len(threads) <= 32


def test_clients_that_connect_at_once_all_wait_for_their_turn(
    server: ObservedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system drops connections past the queue's length without a word, and a client tries again a second later."""
    held, serve = threading.Event(), _StatusServer.process_request

    def serve_later(server: _StatusServer, *request: Any) -> None:
        held.wait(600)
        serve(server, *request)

    monkeypatch.setattr(_StatusServer, "process_request", serve_later)
    with ExitStack() as clients:
        try:
            for _ in range(100):
                clients.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
        finally:
            held.set()


def test_a_client_that_sends_its_request_byte_by_byte_is_hung_up_on(
    server: ObservedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.observe.server._REQUEST_SECONDS", 0.3)
    with socket.create_connection(("127.0.0.1", server.port), timeout=0.02) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        for _ in range(1000):  # 20 s
            try:
                client.sendall(b"x")
                if client.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
    pytest.fail("the connection is still open")


def test_an_address_in_use_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = f"http: cannot listen on {address}: Address already in use"
        with pytest.raises(Unavailable, match=said), serve_observer(config(address)):
            pass


def test_each_worker_of_a_machine_has_a_port_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("RELAY_WORKER", "1")
    with serve_observer(config(f"127.0.0.1:{port - 1}")) as observer:
        assert ObservedServer(observer, port).json("/status.json")[1]["worker"] == 1
    monkeypatch.setenv("RELAY_WORKER", "2")
    with (
        pytest.raises(ConfigError, match="worker 2 would listen on port 65536"),
        serve_observer(config("127.0.0.1:65534")),
    ):
        pass
    monkeypatch.setenv("RELAY_WORKER", "two")
    with pytest.raises(ConfigError, match="RELAY_WORKER is 'two'"), serve_observer(config()):
        pass


def test_without_http_nothing_listens_and_no_status_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", None)
    with serve_observer(config().model_copy(update={"http": None})) as observer:
        assert not observer.keeps_status


def test_the_readme_lists_every_path() -> None:
    readme = (Path(__file__).parents[2] / "relay/observe/README.md").read_text()
    for path in ("/healthz", "/readyz", "/metrics", "/status.json", "/"):
        assert f"| `{path}` |" in readme
