"""A TCP proxy before a Kafka broker that loses requests or answers by their kind, as a network does."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, IntEnum
from pathlib import Path

from relay.process.managed import HOST, free_port
from relay.services.kafka import KafkaBroker
from tests.listening import accepted


class Api(IntEnum):
    """The kinds of requests that tests lose, by their number in Kafka's protocol."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_FETCH = 9
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28


class Verdict(Enum):
    PASS = "pass"
    LOSE_REQUEST = "lose request"
    LOSE_ANSWER = "lose answer"


@dataclass(frozen=True)
class Request:
    """``api``: its kind. ``client``: the client id."""

    api: int
    client: str


Rule = Callable[[Request], Verdict]


def passing(request: Request) -> Verdict:
    return Verdict.PASS


class KafkaProxy:
    """Passes on what ``rule`` lets pass, which may be replaced at any time."""

    def __init__(self) -> None:
        self.port = free_port()
        self.target = 0
        self.rule: Rule = passing
        # The requests that were lost, or whose answers were.
        self.lost: list[Request] = []
        self._listener = socket.create_server((HOST, self.port))
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    def lose(self, *apis: Api, verdict: Verdict = Verdict.LOSE_REQUEST, client: str = "") -> None:
        """Lose all requests of some kinds, or of all kinds if none is given, or their answers.

        ``client``: what the client id ends with.
        """

        def rule(request: Request) -> Verdict:
            is_meant = (not apis or request.api in apis) and request.client.endswith(client)
            return verdict if is_meant else Verdict.PASS

        self.lost.clear()
        self.rule = rule

    def close(self) -> None:
        for each in (self._listener, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        for client in accepted(self._listener):
            self._open.append(client)
            try:
                broker = socket.create_connection((HOST, self.target))
            except OSError:
                client.close()
                continue
            self._open.append(broker)
            # The correlation ids whose answers are lost: the first thread adds them before it sends the request.
            lost: set[bytes] = set()
            for pump in (self._requests, self._answers):
                threading.Thread(target=pump, args=(client, broker, lost), daemon=True).start()

    def _requests(self, client: socket.socket, broker: socket.socket, lost: set[bytes]) -> None:
        with suppress(OSError):
            for frame in _frames(client):
                api, _, correlation, length = struct.unpack_from(">hh4sh", frame)
                request = Request(api, frame[10 : 10 + max(0, length)].decode())
                # The broker sends itself the markers of transactions.
                verdict = Verdict.PASS if request.client.startswith("broker-") else self.rule(request)
                if verdict is not Verdict.PASS:
                    self.lost.append(request)
                if verdict is Verdict.LOSE_ANSWER:
                    lost.add(correlation)
                if verdict is not Verdict.LOSE_REQUEST:
                    broker.sendall(struct.pack(">i", len(frame)) + frame)
        _end(client, broker)

    def _answers(self, client: socket.socket, broker: socket.socket, lost: set[bytes]) -> None:
        with suppress(OSError):
            for frame in _frames(broker):
                if frame[:4] not in lost:
                    client.sendall(struct.pack(">i", len(frame)) + frame)
        _end(client, broker)


class ProxiedBroker(KafkaBroker):
    """A broker that all clients reach through its ``proxy`` only."""

    def __init__(self, settings: Mapping[str, str] | None = None, folder: Path | None = None) -> None:
        self.proxy = KafkaProxy()
        advertised = {"advertised.listeners": f"CLIENT://{self.proxy.bootstrap_servers}"}
        super().__init__(folder, settings={**advertised, **(settings or {})})

    @property
    def bootstrap_servers(self) -> str:
        return self.proxy.bootstrap_servers

    def _prepare(self) -> None:
        self.proxy.target = self.port
        super()._prepare()

    def stop(self) -> None:
        super().stop()
        self.proxy.close()


def _frames(source: socket.socket) -> Iterator[bytes]:
    while size := _exactly(source, 4):
        yield _exactly(source, struct.unpack(">i", size)[0])


def _exactly(source: socket.socket, count: int) -> bytes:
    """Return ``count`` bytes, none if the connection has ended."""
    parts = bytearray()
    while len(parts) < count:
        part = source.recv(count - len(parts))
        if not part:
            return b""
        parts += part
    return bytes(parts)


def _end(*connections: socket.socket) -> None:
    for each in connections:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
