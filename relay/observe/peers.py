"""Asks the other workers and the consumers of a relay for their status, for the page of this one."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson

from relay.config import HttpConfig
from relay.config.addresses import host_port
from relay.observe.access import Access, client_side

_SECONDS = 2.0
"""The timeout of the connection, and of each read: a page waits for the slowest."""

_LARGEST = 32_000_000
"""Bytes of a status that are read."""


class Peers:
    """``addresses``: host and port of each. Raises ``ConfigError`` for authorities that cannot be used."""

    def __init__(self, addresses: Sequence[str], settings: HttpConfig, access: Access) -> None:
        self._addresses = list(dict.fromkeys(addresses))
        self._tls = client_side(settings)
        self._headers = dict(access.headers)

    def ask(self) -> list[dict[str, Any]]:
        """Return for each its ``url`` with its ``status``, or with the ``problem`` why there is none."""
        if not self._addresses:
            return []
        with ThreadPoolExecutor(min(16, len(self._addresses))) as pool:
            return list(pool.map(self._ask, self._addresses))

    def _ask(self, address: str) -> dict[str, Any]:
        found = {"url": f"{'https' if self._tls else 'http'}://{address}"}
        try:
            return found | {"status": self._status(address)}
        except (OSError, http.client.HTTPException, ValueError) as error:
            return found | {"problem": str(error) or type(error).__name__}

    def _status(self, address: str) -> dict[str, Any]:
        host, port = host_port(address)
        code, reason, body = get(
            host, port, "/status.json", tls=self._tls, headers=self._headers, seconds=_SECONDS, at_most=_LARGEST
        )
        if code != 200:
            raise ValueError(f"/status.json answers {code} {reason}")
        status = orjson.loads(body)
        if not isinstance(status, dict) or "name" not in status:
            raise ValueError("/status.json is not from a relay")
        return status


def get(
    host: str,
    port: int,
    path: str,
    *,
    tls: ssl.SSLContext | None,
    headers: Mapping[str, str],
    seconds: float,
    at_most: int,
) -> tuple[int, str, bytes]:
    """Return the code, its reason, and at most this many bytes of an answer. Raises ``OSError``, ``HTTPException``.

    ``tls``: None for clear text. ``seconds``: for the connection, and for each read.
    """
    connection = (
        http.client.HTTPConnection(host, port, timeout=seconds)
        if tls is None
        else http.client.HTTPSConnection(host, port, timeout=seconds, context=tls)
    )
    try:
        # A redirect is not followed: the credentials are for this address.
        connection.request("GET", path, headers=dict(headers))
        answered = connection.getresponse()
        return answered.status, answered.reason, answered.read(at_most)
    finally:
        connection.close()
