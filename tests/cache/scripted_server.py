"""A server of which a test says what it answers."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from io import BufferedReader

from tests.listening import accepted


class ScriptedServer(ABC):
    """Listens on the loopback address, and serves one connection at a time."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)

    def _serve(self) -> None:
        for connection in accepted(self._listening):
            with connection, connection.makefile("rb") as reader:
                while line := reader.readline():
                    answer = self.answer(line, reader)
                    if answer is None:
                        break
                    connection.sendall(answer)

    @abstractmethod
    def answer(self, line: bytes, reader: BufferedReader) -> bytes | None:
        """Read the rest of a request that begins with ``line``; return the answer, None to close the connection."""
