"""An HTTP/1.1 server in front of one that closes every connection, as moto's does: here they stay open, as AWS's do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import urlsplit


class KeptOpen(ThreadingHTTPServer):
    """Passes requests on to ``url``, with their headers, which are signed. ``before``: called before each operation."""

    daemon_threads = True

    def __init__(self, url: str, before: Callable[[str], None] = lambda operation: None) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.target = urlsplit(url).netloc
        self.before = before
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()


class _Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: KeptOpen

    def do_POST(self) -> None:
        self.server.before(self.headers["X-Amz-Target"].rpartition(".")[2])
        behind = HTTPConnection(self.server.target, timeout=120)
        behind.putrequest("POST", self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            behind.putheader(name, value)
        behind.endheaders(self.rfile.read(int(self.headers["Content-Length"])))
        answer = behind.getresponse()
        body = answer.read()
        behind.close()
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""
