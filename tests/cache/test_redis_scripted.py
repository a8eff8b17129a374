"""What is sent to Redis, and in which order, as a scripted server sees it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from relay.cache import ConditionalWrite, RedisStore
from relay.errors import Unavailable

Answer = bytes | None
"""What the server sends; None to close the connection."""


class ScriptedRedis:
    """Answers as Redis does, one connection at a time. ``commands``: what it was sent."""

    def __init__(self, answer: Callable[[list[bytes]], Answer]) -> None:
        self.commands: list[list[bytes]] = []
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listening.getsockname()[1]}/0?protocol=2"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)

    def named(self, name: bytes) -> list[list[bytes]]:
        return [command for command in self.commands if command[0] == name]

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as reader:
                while line := reader.readline():
                    command = []
                    for _ in range(int(line[1:])):
                        length = int(reader.readline()[1:])
                        command.append(reader.read(length + 2)[:-2])
                    self.commands.append(command)
                    answer = self._answer(command)
                    if answer is None:
                        break
                    connection.sendall(answer)


def bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)


def usual(command: list[bytes]) -> Answer:
    match command[0]:
        case b"INFO":
            return bulk(b"run_id:r1\r\n")
        case b"GET":
            return bulk(b"r1-generation")
        case b"HMGET":
            return b"*2\r\n$-1\r\n$-1\r\n"
        case b"SCRIPT":
            return bulk(b"0" * 40)
        case b"CLIENT" | b"SELECT":
            return b"+OK\r\n"
    raise AssertionError(command)


@pytest.fixture
def opened() -> Iterator[list[ScriptedRedis]]:
    servers: list[ScriptedRedis] = []
    yield servers
    for server in servers:
        server.close()


def test_the_generation_is_read_after_the_last_entry(opened: list[ScriptedRedis]) -> None:
    """I6: one that is renewed between the two must not go with the entries before."""
    server = ScriptedRedis(usual)
    opened.append(server)
    with RedisStore(server.url) as store:
        store.generation("ns{generation}")
        server.commands.clear()
        found, generation = store.read(["ns:a", "ns:b"], "ns{generation}")
    assert (found, generation) == ([None, None], "r1-generation")
    sent = [command[0] for command in server.commands if command[0] in (b"HMGET", b"GET")]
    assert sent == [b"HMGET", b"HMGET", b"GET"]


def test_nothing_is_sent_twice(opened: list[ScriptedRedis]) -> None:
    """I6: a lease that is written again after an invalidation would let a value from before it through."""
    server = ScriptedRedis(lambda command: None if command[0] == b"EVALSHA" else usual(command))
    opened.append(server)
    with RedisStore(server.url) as store, pytest.raises(Unavailable):
        store.compare_and_set([ConditionalWrite("ns:a", None, b"lease", None, 5.0)])
    assert len(server.named(b"EVALSHA")) == 1
