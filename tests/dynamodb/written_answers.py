"""An HTTP server that sends the bytes it is told to, also with TLS and as the proxy before itself."""

from __future__ import annotations

import socket
import socketserver
import ssl
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Self


class WrittenAnswers(socketserver.ThreadingTCPServer):
    """Answers request after request with ``answers``, in parts, and closes the connection after one that ends with "".

    ``certificate``: a PEM file; then it speaks TLS. ``heads``: of the requests, ``tunnels``: of those to a proxy.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, answers: Iterable[list[str]], certificate: Path | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.answers = iter(answers)
        self.heads: list[str] = []
        self.tunnels: list[str] = []
        self.closed = threading.Event()
        self.tls: ssl.SSLContext | None = None
        if certificate is not None:
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.tls.load_cert_chain(certificate)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

    def __enter__(self) -> Self:
        return self

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that end a connection: they may not trust the certificate."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Connection(socketserver.BaseRequestHandler):
    server: WrittenAnswers

    def handle(self) -> None:
        connection = self.request
        if self.server.tls is not None:
            # A client that comes by the proxy asks for the way before it speaks TLS.
            if connection.recv(1, socket.MSG_PEEK) == b"C":
                reader = connection.makefile("rb", buffering=0)
                self.server.tunnels.append(_head(reader))
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            connection = self.server.tls.wrap_socket(connection, server_side=True)
        with connection, connection.makefile("rb") as reader:
            while head := _head(reader):
                self.server.heads.append(head)
                length = next(line for line in head.splitlines() if line.lower().startswith("content-length:"))
                reader.read(int(length.partition(":")[2]))
                for part in (parts := next(self.server.answers)):
                    connection.sendall(part.encode())
                if parts[-1] == "":
                    break
        self.server.closed.set()


def _head(reader: IO[bytes]) -> str:
    """Return the first line and the headers of a request, "" at the end of the connection."""
    lines = []
    while (line := reader.readline()).strip():
        lines.append(line.decode())
    return "".join(lines)
