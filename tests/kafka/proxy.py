"""A TCP proxy before a Kafka broker that does to requests and answers what a network can do to them."""

from __future__ import annotations

import math
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import ClassVar

from relay.process.managed import HOST, free_port
from relay.services.kafka import KafkaBroker
from tests.listening import accepted

_PACKET = 4096  # bytes of one connection that pass a shared link before it is another's turn
_LONGEST_WAIT = 60.0  # seconds for an event, so that a test that forgets to set it comes to its end


class Api(IntEnum):
    """The kinds of requests that tests disturb, by their number in Kafka's protocol."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28


When = float | threading.Event
"""After so many seconds, or once the event is set."""


@dataclass(frozen=True)
class Pass:
    """It goes on ``after`` a while, at ``rate`` bytes a second.

    What follows on its connection waits for it. What is on other connections does not, and so overtakes it.
    """

    after: When = 0.0
    rate: float = math.inf


@dataclass(frozen=True)
class Lose:
    """It is dropped, and what follows on its connection goes on: as if the other side had not understood it."""


@dataclass(frozen=True)
class Cut:
    """Its connection ends after its first ``at`` bytes have passed. Four bytes with its length precede the message."""

    at: int


@dataclass(frozen=True)
class Late:
    """The client's connection ends at once; the request and what followed it reach the broker ``after`` a while.

    So the broker gets it twice if the client sends it again on another connection, and the copies in any order.
    """

    after: When


@dataclass(frozen=True)
class Verdict:
    """What becomes of a request and of its answer."""

    PASS: ClassVar[Verdict]
    LOSE_REQUEST: ClassVar[Verdict]
    LOSE_ANSWER: ClassVar[Verdict]

    request: Pass | Lose | Cut | Late = Pass()
    answer: Pass | Lose | Cut = Pass()


Verdict.PASS = Verdict()
Verdict.LOSE_REQUEST = Verdict(request=Lose())
Verdict.LOSE_ANSWER = Verdict(answer=Lose())


@dataclass(frozen=True)
class Request:
    """``api``: its kind. ``client``: the client id. ``size``: bytes, with the four of its length."""

    api: int
    client: str
    size: int = 0

    @classmethod
    def of(cls, frame: bytes) -> Request:
        api, length = struct.unpack_from(">4xh6xh", frame)
        return cls(api, frame[14 : 14 + max(0, length)].decode(), len(frame))


class Link:
    """What all connections to the broker share: ``rate`` bytes a second, whichever of them sends. Answers cost nothing.

    ``passed``: how many bytes went over it, and ``seconds``: from the first to the last of them.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.passed = 0
        self._lock = threading.Lock()  # guards the two others
        self._begun: float | None = None
        # Up to when the bytes that were accepted take.
        self._busy_until = 0.0

    @property
    def seconds(self) -> float:
        return 0.0 if self._begun is None else self._busy_until - self._begun

    def send(self, frame: bytes, to: socket.socket) -> None:
        for at in range(0, len(frame), _PACKET):
            packet = frame[at : at + _PACKET]
            with self._lock:
                now = time.monotonic()
                self._begun = now if self._begun is None else self._begun
                self._busy_until = max(now, self._busy_until) + len(packet) / self.rate
                self.passed += len(packet)
                wait = self._busy_until - now
            time.sleep(wait)
            to.sendall(packet)


Rule = Callable[[Request], Verdict]


def passing(request: Request) -> Verdict:
    return Verdict.PASS


class KafkaProxy:
    """Treats each request as ``rule`` says, which may be replaced at any time and is called by many threads.

    The requests with which the broker sends itself the markers of transactions pass, unless ``spares_broker`` is false.
    ``link``: what those of the others share, if it is slow.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self.target = 0
        self.rule: Rule = passing
        self.spares_broker = True
        self.link: Link | None = None
        # The requests that did not simply pass, or whose answers did not.
        self.lost: list[Request] = []
        self._listener = socket.create_server((HOST, self.port))
        self._open: set[_Connection] = set()
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    def lose(
        self, *apis: Api, verdict: Verdict = Verdict.LOSE_REQUEST, client: str = "", times: float = math.inf
    ) -> None:
        """Lose the next requests of some kinds, or of all kinds if none is given, or do to them what ``verdict`` says.

        ``client``: what the client id ends with.
        """
        lock, left = threading.Lock(), times

        def rule(request: Request) -> Verdict:
            nonlocal left
            is_meant = (not apis or request.api in apis) and request.client.endswith(client)
            with lock:
                left -= is_meant
                return verdict if is_meant and left >= 0 else Verdict.PASS

        self.lost.clear()
        self.rule = rule

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._open):
            connection.end()

    def verdict(self, request: Request) -> Verdict:
        if self.spares_broker and request.client.startswith("broker-"):
            return Verdict.PASS
        verdict = self.rule(request)
        if verdict != Verdict.PASS:
            self.lost.append(request)
        return verdict

    def _accept(self) -> None:
        for client in accepted(self._listener):
            try:
                broker = socket.create_connection((HOST, self.target))
            except OSError:
                client.close()
                continue
            connection = _Connection(self, client, broker)
            self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), name="proxied", daemon=True).start()

    def _serve(self, connection: _Connection) -> None:
        connection.serve()
        self._open.discard(connection)


class _Connection:
    """A client's connection, and the one that the broker sees, with a thread for each direction."""

    def __init__(self, proxy: KafkaProxy, client: socket.socket, broker: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._broker = broker
        # What becomes of answers, by their correlation id: written before the request is passed on.
        self._answers: dict[bytes, Pass | Lose | Cut] = {}

    def serve(self) -> None:
        """Return when both connections have ended."""
        answers = threading.Thread(target=self._pass_answers, name="proxied-answers", daemon=True)
        answers.start()
        with self._client, self._broker:
            self._pass_requests()
            answers.join()

    def end(self) -> None:
        _shut(self._client)
        _shut(self._broker)

    def _pass_requests(self) -> None:
        for frame in _frames(self._client):
            request = Request.of(frame)
            verdict, link = self._proxy.verdict(request), self._proxy.link
            if link is not None and verdict == Verdict.PASS and not request.client.startswith("broker-"):
                link.send(frame, self._broker)
                continue
            if verdict.answer != Pass():
                self._answers[frame[8:12]] = verdict.answer
            if isinstance(verdict.request, Late):
                _shut(self._client)  # what it has sent so far can still be read
                _wait(verdict.request.after)
                goes_on = _passed(frame, Pass(), self._broker)
            else:
                goes_on = _passed(frame, verdict.request, self._broker)
            if not goes_on:
                break
        _shut(self._client)
        _shut(self._broker, socket.SHUT_WR)  # the broker reads to the end, and ends the connection then

    def _pass_answers(self) -> None:
        is_heard = True
        for frame in _frames(self._broker):
            is_heard = is_heard and _passed(frame, self._answers.pop(frame[4:8], Pass()), self._client)
            if not is_heard:
                _shut(self._client)
        self.end()


def _passed(frame: bytes, how: Pass | Lose | Cut, to: socket.socket) -> bool:
    """Pass a request or an answer on; return whether its connection goes on."""
    try:
        match how:
            case Pass(after, rate):
                _wait(after)
                _wait(len(frame) / rate)
                to.sendall(frame)
            case Cut(at):
                to.sendall(frame[:at])
                return False
    except OSError:
        return False
    return True


def _wait(when: When) -> None:
    if isinstance(when, threading.Event):
        when.wait(_LONGEST_WAIT)
    elif when:
        time.sleep(when)


class ProxiedBroker(KafkaBroker):
    """A broker that all clients reach through its ``proxy`` only."""

    def __init__(self, settings: Mapping[str, str] | None = None, folder: Path | None = None) -> None:
        self.proxy = KafkaProxy()
        advertised = {"advertised.listeners": f"CLIENT://{self.proxy.bootstrap_servers}"}
        super().__init__(folder, options={**advertised, **(settings or {})})

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
    """Yield each message with its length in front, until the connection ends."""
    with suppress(OSError):
        while size := _exactly(source, 4):
            message = _exactly(source, struct.unpack(">i", size)[0])
            if not message:
                return
            yield size + message


def _exactly(source: socket.socket, count: int) -> bytes:
    """Return ``count`` bytes, none if the connection has ended."""
    parts = bytearray()
    while len(parts) < count:
        part = source.recv(count - len(parts))
        if not part:
            return b""
        parts += part
    return bytes(parts)


def _shut(connection: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    with suppress(OSError):
        connection.shutdown(how)
