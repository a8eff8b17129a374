"""A proxy in front of the real registry, which has no accounts: it demands a header, or TLS and a certificate."""

from __future__ import annotations

import base64
import ssl
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from tests.certificates import Authority


def basic(user: str, password: str) -> str:
    """Return the header of somebody with a password."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class Guarded:
    """``wanted``: the value of the header Authorization, None if there must be none. ``context``: for TLS."""

    def __init__(self, url: str, wanted: str | None, context: ssl.SSLContext | None = None) -> None:
        class Handler(BaseHTTPRequestHandler):
            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))) or None
                status, answer = 401, b'{"error_code": 401, "message": "Unauthorized"}'
                if self.headers.get("Authorization") == wanted:
                    status, answer = _forward(url + self.path, self.command, body)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = do_PUT = do_DELETE = _pass_on

            def log_message(self, *_: Any) -> None:
                pass

        self.server = _Server(("127.0.0.1", 0), Handler)
        if context is not None:
            # Each handshake is made in the thread of its connection.
            self.server.socket = context.wrap_socket(
                self.server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do not log handshakes that failed."""


def asking_for_certificates(authority: Authority) -> tuple[ssl.SSLContext, Path]:
    """Return the context of a server that only takes clients of the authority, and the file of such a client."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.ca))
    context.load_cert_chain(authority.issue("registry"))
    context.verify_mode = ssl.CERT_REQUIRED
    return context, authority.issue("relay")


def _forward(url: str, method: str, body: bytes | None) -> tuple[int, bytes]:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
