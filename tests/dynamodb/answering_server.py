"""An HTTP server that speaks DynamoDB's JSON protocol: it gives what a function answers, or an error, or no answer."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson


class Refused(Exception):
    """An error answer of the service."""

    def __init__(self, kind: str, status: int = 400, *, message: str = "") -> None:
        super().__init__(kind)
        self.kind = kind
        self.status = status
        self.message = message or kind


class Dropped(Exception):
    """No answer: the connection is closed."""


Answer = Callable[[str, dict[str, Any]], dict[str, Any]]
"""Returns the answer to an operation and its request. Raises `Refused` or `Dropped`."""


class AnsweringServer(ThreadingHTTPServer):
    """``clock``: seconds since the epoch, for the ``Date`` of its answers; None: they have none."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), _handler(answer))
        self.clock: Callable[[], float] | None = time.time

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that were killed before they received their answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def _handler(answer_to: Answer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body are two writes: without this each answer waits 40 ms for an acknowledgement.
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            operation = self.headers["X-Amz-Target"].split(".")[1]
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if len(body) < int(self.headers["Content-Length"]):
                self.close_connection = True  # the client was killed before it sent a request
                return
            try:
                status, answer = 200, answer_to(operation, orjson.loads(body))
            except Refused as refused:
                status = refused.status
                answer = {"__type": f"com.amazonaws.dynamodb.v20120810#{refused.kind}", "message": refused.message}
            except Dropped:
                self.close_connection = True
                return
            body = orjson.dumps(answer)
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.0")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string(timestamp if self._clock is None else self._clock())

        def send_header(self, keyword: str, value: str) -> None:
            if keyword != "Date" or self._clock is not None:
                super().send_header(keyword, value)

        @property
        def _clock(self) -> Callable[[], float] | None:
            assert isinstance(self.server, AnsweringServer)
            return self.server.clock

        def log_message(self, *arguments: object) -> None:
            """Log nothing."""

    return Handler
