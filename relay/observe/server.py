"""HTTP for operators, in threads that only read. Paths and status codes are a contract with users."""

import logging
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson
from prometheus_client.exposition import choose_encoder

from relay import __version__
from relay.config import Config
from relay.config.addresses import at_port, host_port
from relay.errors import ConfigError, RelayError, Unavailable
from relay.kafka.group_offsets import consumer_addresses
from relay.kafka.unread import unread_of_all
from relay.observe.access import Access
from relay.observe.consumers import ConsumersObserver
from relay.observe.observer import Observer
from relay.observe.page import CONTENT_SECURITY_POLICY, everybody, page
from relay.observe.peers import FoundConsumers, Peers
from relay.observe.verifier import VerifierObserver
from relay.process.folders import state_folder
from relay.process.supervisor import WORKER_NUMBER, WORKERS

log = logging.getLogger(__name__)

STALLED_AFTER = "RELAY_STALLED_AFTER"  # the variable for the seconds without progress until ``/healthz`` is red
_JSON = "application/json"
_REQUEST_SECONDS = 10.0  # seconds from the connection to the last byte of the answer, however slow the client is
_CONNECTIONS = 32  # the most connections, each with its own thread; beyond that, a new client replaces the oldest

PROBES = ("/healthz", "/livez", "/readyz")  # for probes, which cannot keep a secret, and so get no details
HttpAnswer = tuple[int, str, bytes]  # status code, content type, body


Observed = Observer | ConsumersObserver | VerifierObserver  # any thread may call it


@contextmanager
def serve_observer(config: Config) -> Iterator[Observer]:
    """Yield an observer for the worker of this process, and serve it if the config has ``http``.

    Worker *n* of a machine listens on the *n*-th port above the configured one. Raises ``ConfigError`` for unusable TLS
    files or environment variables; ``Unavailable`` if it cannot listen.
    """
    worker = int(_number_from_environment(WORKER_NUMBER, 0))
    if config.http is None:
        yield Observer(config.name, worker)
        return
    host, first = host_port(config.http.address)
    port = first + worker if first else 0
    if port > 65535:
        raise ConfigError(f"http: worker {worker} would listen on port {port}, above 65535: choose a lower port")
    observer = Observer(config.name, worker, file=config.file, keeps_status=True, stalled_after=stalled_after(60.0))
    access = Access(config.http)
    siblings = range(int(_number_from_environment(WORKERS, 1)) if port else 0)
    beside = [at_port(host, first + n) for n in siblings if n != worker]
    found = FoundConsumers(partial(consumer_addresses, config), unread=partial(unread_of_all, config))
    observer.others = Peers([*beside, *config.http.peers], config.http, access, found.addresses).ask
    observer.unread = found.unread
    file = None
    with suppress(RelayError):  # a user without a home folder, for example
        file = state_folder() / config.name / f"page-{port}.json" if port else None  # only if it always has this port
    with serve(observer, host, port, "http", access) as address, observer.recent.kept_in(file):
        log.info("worker %d begins, version %s", worker, __version__, extra={"event": "restart"})
        scheme = "https" if access.tls else "http"
        log.info("serving the status page, /metrics, /healthz, /livez and /readyz at %s://%s", scheme, address)
        yield observer


@contextmanager
def serve(observer: Observed, host: str, port: int, setting: str, access: Access) -> Iterator[str]:
    """Serve ``observer``, and yield the address, which the config calls ``setting``. Raises ``Unavailable``."""
    try:
        server = _StatusServer(host, port, observer, access)
    except OSError as error:
        raise Unavailable(
            f"{setting}: cannot listen on {host}:{port}: {error.strerror or error}; set another address in `{setting}`"
        ) from error
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="http", daemon=True)
    thread.start()
    try:
        yield server.address
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def stalled_after(default: float) -> float:
    """Return the seconds without progress after which health turns red. Raises ``ConfigError``."""
    return _number_from_environment(STALLED_AFTER, default)


def answer(observer: Observed, path: str, accept: str = "") -> HttpAnswer:
    pages: dict[str, Callable[[], HttpAnswer]] = {
        "/metrics": lambda: _metrics(observer, accept),
        "/healthz": lambda: _health(observer),
        "/livez": lambda: _health(observer, only_hanging=True),
        "/readyz": lambda: _readiness(observer),
        "/status.json": lambda: (200, _JSON, _dumps(observer.report())),
    }
    if isinstance(observer, Observer):
        pages["/"] = lambda: (200, "text/html; charset=utf-8", page(observer).encode())
        pages["/page.json"] = lambda: (200, _JSON, _dumps(everybody(observer)))
    path = path.partition("?")[0]
    if (found := pages.get(path)) is None:
        return 404, _JSON, _dumps({"error": f"no such path: {path}", "there_are": list(pages)})
    return found()


def answer_stranger(observer: Observed, path: str) -> HttpAnswer:
    """Answer a GET without the required credentials: a probe gets the status without details."""
    if path.partition("?")[0] not in PROBES:
        problem = "send the user and password, or the token, that `http` in the config names"
        return HTTPStatus.UNAUTHORIZED, _JSON, _dumps({"error": problem})
    code, content_type, body = answer(observer, path)
    return code, content_type, _dumps({"status": orjson.loads(body)["status"]})


def _metrics(observer: Observed, accept: str) -> HttpAnswer:
    encode, content_type = choose_encoder(accept)
    return 200, content_type, encode(observer.registry)


def _health(observer: Observed, *, only_hanging: bool = False) -> HttpAnswer:
    stalls = [stall for stall in observer.stalls() if stall.hangs or not only_hanging]
    return 503 if stalls else 200, _JSON, _dumps({"status": "stalled" if stalls else "ok", "stalls": stalls})


def _readiness(observer: Observed) -> HttpAnswer:
    reasons = observer.not_ready_reasons()
    return 503 if reasons else 200, _JSON, _dumps({"status": "not ready" if reasons else "ready", "reasons": reasons})


def _dumps(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def _number_from_environment(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        number = float(text) if text else default
        if not 0 <= number < float("inf"):
            raise ValueError
    except ValueError:
        raise ConfigError(f"the environment variable {name} is {text!r}; it must be a number of at least 0") from None
    return number


class _StatusServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    # Clients that connect at the same time wait here. A client that finds no room retries after one second, or three.
    request_queue_size = 128

    def __init__(self, host: str, port: int, observer: Observed, access: Access) -> None:
        self.observer, self.access = observer, access
        # When each open connection was accepted, by the monotonic clock, the oldest first. The accepting thread adds
        # entries and reads them; the connection's own thread removes its entry.
        self._open: dict[socket.socket, float] = {}
        self._places = threading.BoundedSemaphore(_CONNECTIONS)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        super().__init__((host, port), _StatusHandler)

    def server_bind(self) -> None:
        # This replaces a method of HTTPServer that would look up the name of this host in the DNS.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        if self.access.tls is None:
            return connection, address
        # The handshake takes as long as the client likes, so the connection's thread does it with the first read.
        return self.access.tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

    def service_actions(self) -> None:
        """Close connections whose time is up. The accepting thread calls this ten times a second."""
        now = time.monotonic()
        for connection, since in list(self._open.items()):
            if now - since > _REQUEST_SECONDS:
                _hang_up(connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            for oldest in list(self._open)[:1]:
                _hang_up(oldest)
            self._places.acquire()  # its thread then ends at once
        self._open[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._leave(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)

    def _leave(self, request: socket.socket) -> None:
        self._open.pop(request, None)
        self._places.release()

    @property
    def address(self) -> str:
        host, port = str(self.server_address[0]), self.server_address[1]
        return at_port(host, port)

    def handle_error(self, request: object, client_address: object) -> None:
        error = sys.exception()
        if isinstance(error, (ConnectionError, TimeoutError, ssl.SSLError)):
            log.debug("http: the connection of client %s has ended: %s", client_address, error)
        else:
            log.exception("http: a request from %s failed", client_address)


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):  # it was closed meanwhile
        # TLS's own method would take away the socket that another thread is reading.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _StatusHandler(BaseHTTPRequestHandler):
    server: _StatusServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_version = "relay"
    sys_version = ""

    def do_GET(self) -> None:
        observer, access = self.server.observer, self.server.access
        if access.allows(self.headers.get("Authorization", "")):
            status, content_type, body = answer(observer, self.path, self.headers.get("Accept", ""))
        else:
            status, content_type, body = answer_stranger(observer, self.path)
        self.send_response(status)
        for challenge in access.challenges if status == HTTPStatus.UNAUTHORIZED else ():
            self.send_header("WWW-Authenticate", challenge)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")  # so that each connection serves one request
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *arguments: Any) -> None:
        log.debug("http: %s " + format, self.client_address[0], *arguments)
