"""A stand-in for RDS: it takes tokens of AWS for passwords, over TLS only, and a real server does the rest."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql

from relay.services.mariadb import PASSWORD, USER
from tests.aws_server import REGION
from tests.certificates import Authority
from tests.mysql.scripted import Scripted, running
from tests.signatures import signer_of


@dataclass
class Rds(Scripted):
    """``secret_of``: see `signer_of`. ``signers``: the access key of each login. ``refusals``: why others failed."""

    server: Any = None
    secret_of: Callable[[str], tuple[str, str]] = field(kw_only=True)
    signers: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.passes = self._takes

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _takes(self, token: str) -> bool:
        try:
            if not token.startswith(f"{self.address}/?Action=connect&DBUser={USER}&"):
                raise PermissionError(f"not a token for {USER} at this address")
            self.signers.append(signer_of(f"https://{token}", "rds-db", REGION, self.secret_of))
        except (PermissionError, KeyError, ValueError) as error:
            self.refusals.append(str(error))
            return False
        return True

    def serve_commands(self, connection: socket.socket) -> None:
        with closing(pymysql.connect(host="127.0.0.1", port=self.server.port, user=USER, password=PASSWORD)) as behind:
            _pass(connection, behind._sock)  # type: ignore[attr-defined]


def _pass(front: socket.socket, behind: socket.socket) -> None:
    """Pass bytes on in both directions until one side ends."""
    others = {front: behind, behind: front}
    while True:
        waiting = isinstance(front, ssl.SSLSocket) and front.pending()
        for side in [front] if waiting else select.select([front, behind], [], [])[0]:
            found = side.recv(1 << 16)
            if not found:
                return
            others[side].sendall(found)


@contextmanager
def before(server: Any, folder: Path, secret_of: Callable[[str], tuple[str, str]]) -> Iterator[tuple[Rds, str]]:
    """Yield a stand-in in front of ``server``, and the file with the authority that clients have to trust."""
    authority = Authority(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("rds"))
    rds = Rds(context=context, server=server, secret_of=secret_of, settings={"version": "8.0.36"})
    with running(rds):
        yield rds, str(authority.ca)
