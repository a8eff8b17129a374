"""A stand-in for MSK: a real broker behind a door that takes tokens of AWS only, over TLS, for sessions that end."""

from __future__ import annotations

import base64
import json
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import urlencode

from relay.process.managed import HOST, free_port
from relay.services.kafka import KafkaBroker, coordinates
from tests.aws_server import REGION
from tests.certificates import Authority
from tests.listening import accepted
from tests.signatures import signer_of

_SASL_HANDSHAKE, _SASL_AUTHENTICATE = 17, 36
_API_VERSIONS = 18
_AUTHENTICATION_FAILED = 58
_LATE = 5.0
"""Seconds for which a session goes on after its end, in which the client of a busy host may log in."""
_PARTS = ("Algorithm", "Credential", "Date", "Expires", "Security-Token", "Signature", "SignedHeaders")


class Door:
    """Lets clients through to ``target`` that have a token. ``secret_of``: see `signer_of`; it may be replaced.

    ``signers``: client id and access key of each login; ``refusals``: why others failed. ``session``: seconds after
    which a client has to log in again on the same connection, as on a broker with `connections.max.reauth.ms`.
    """

    def __init__(self, certificate: Path, secret_of: Callable[[str], tuple[str, str]]) -> None:
        self.target = 0
        self.secret_of = secret_of
        self.session = 900.0
        self.signers: list[tuple[str, str]] = []
        self.refusals: list[str] = []
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        for client in accepted(self._listener):
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with (
            suppress(OSError),
            plain,
            self._context.wrap_socket(plain, server_side=True) as client,
            closing(socket.create_connection((HOST, self.target))) as broker,
        ):
            self._pass(client, broker)

    def _pass(self, client: ssl.SSLSocket, broker: socket.socket) -> None:
        received = bytearray()
        until = 0.0  # when the session ends; before the login there is none
        while True:
            for side in [client] if client.pending() else select.select([client, broker], [], [])[0]:
                found = side.recv(1 << 16)
                if not found:
                    return
                if side is broker:
                    client.sendall(found)
                    continue
                received += found
                while len(received) >= 4 and len(received) - 4 >= (size := int.from_bytes(received[:4])):
                    frame = bytes(received[4 : 4 + size])
                    del received[: 4 + size]
                    (api,) = struct.unpack_from(">h", frame)
                    if api == _SASL_HANDSHAKE:
                        _answer(client, frame, struct.pack(">hih11sh11s", 0, 2, 11, b"OAUTHBEARER", 11, b"AWS_MSK_IAM"))
                    elif api == _SASL_AUTHENTICATE:
                        if not self._log_in(client, frame):
                            return
                        until = time.monotonic() + self.session + _LATE
                    elif api == _API_VERSIONS or time.monotonic() < until:
                        broker.sendall(len(frame).to_bytes(4) + frame)
                    else:
                        self.refusals.append(f"request {api} outside a session")
                        return

    def _log_in(self, client: ssl.SSLSocket, frame: bytes) -> bool:
        _, version, _, length = struct.unpack_from(">hhih", frame)
        name = frame[10 : 10 + length].decode()
        # Version 2, which Java's client sends, has tags, none here, and its own way to write lengths.
        compact = version >= 2
        message = _compact(frame[11 + length :]) if compact else frame[14 + length :]
        try:
            if message.startswith(b"{"):
                host, url = _of_java(json.loads(message))
            else:
                host, url = f"kafka.{REGION}.amazonaws.com", _of_bearer(message.decode())
            if not url.startswith(f"https://{host}/?Action=kafka-cluster%3AConnect&"):
                raise PermissionError("not a token for a connection")
            signer = signer_of(url, "kafka-cluster", REGION, self.secret_of, unsigned=("User-Agent",))
        except (PermissionError, ValueError, KeyError) as error:
            self.refusals.append(str(error))
            text = b"Access denied"
            if not compact:  # Java's sees that the connection ends
                _answer(client, frame, struct.pack(f">hh{len(text)}si", _AUTHENTICATION_FAILED, len(text), text, 0))
            return False
        self.signers.append((name, signer))
        lifetime = struct.pack(">q", int(self.session * 1000))
        if compact:
            answer = b'{"version":"2020_10_22","request-id":"1"}'
            _answer(client, frame, bytes([0, 0, 0, 0, len(answer) + 1]) + answer + lifetime + b"\0")
        else:
            _answer(client, frame, struct.pack(">hhi", 0, -1, 0) + (lifetime if version else b""))
        return True


def _of_bearer(message: str) -> str:
    """Return the signed request in a message of OAUTHBEARER: the GS2 header, and fields between \\1."""
    (token,) = (each[12:] for each in message.split("\1") if each.startswith("auth=Bearer "))
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()


def _of_java(asked: dict[str, str]) -> tuple[str, str]:
    """Return the host and the signed request in a message of AWS_MSK_IAM, which has its parts."""
    names = {f"x-amz-{part.lower()}": f"X-Amz-{part}" for part in _PARTS}
    query = {"Action": asked["action"], **{names[key]: value for key, value in asked.items() if key in names}}
    return asked["host"], f"https://{asked['host']}/?{urlencode(query)}"


def _compact(frame: bytes) -> bytes:
    """Return the bytes that follow their length, which is one more and in groups of seven bits."""
    size, at = 0, 0
    while True:
        size |= (frame[at] & 0x7F) << (7 * at)
        at += 1
        if frame[at - 1] < 0x80:
            return frame[at : at + size - 1]


class MskBroker(KafkaBroker):
    """A broker that all clients reach through its ``door`` only. ``ca``: the file with the authority to trust."""

    def __init__(self, folder: Path, secret_of: Callable[[str], tuple[str, str]]) -> None:
        authority = Authority(folder)
        self.ca = str(authority.ca)
        self.door = Door(authority.issue("broker"), secret_of)
        self._internal = free_port()
        super().__init__()

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.door.port}"

    def _prepare(self) -> None:
        client, controller = self.ports
        self.door.target = client
        self.options = {
            "listeners": f"CLIENT://{HOST}:{client},OWN://{HOST}:{self._internal},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"CLIENT://{self.bootstrap_servers},OWN://{HOST}:{self._internal}",
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,OWN:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "OWN",
        }
        super()._prepare()

    def _ready(self) -> bool:
        return coordinates(f"{HOST}:{self._internal}")

    def stop(self) -> None:
        super().stop()
        self.door.close()


def _answer(client: ssl.SSLSocket, frame: bytes, body: bytes) -> None:
    client.sendall((4 + len(body)).to_bytes(4) + frame[4:8] + body)
