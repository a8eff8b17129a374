"""Asks the other workers and the consumers of a relay for their status, for the page of this one."""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson

from relay.config import HttpConfig
from relay.config.addresses import host_port
from relay.observe.access import Access, client_side

_SECONDS = 2.0
"""For the connection, and for each read: a page waits for the slowest."""

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
        if self._tls is None:
            connection = http.client.HTTPConnection(host, port, timeout=_SECONDS)
        else:
            connection = http.client.HTTPSConnection(host, port, timeout=_SECONDS, context=self._tls)
        try:
            # A redirect is not followed: the credentials are for this address.
            connection.request("GET", "/status.json", headers=self._headers)
            answered = connection.getresponse()
            body = answered.read(_LARGEST)
        finally:
            connection.close()
        if answered.status != 200:
            raise ValueError(f"/status.json answers {answered.status} {answered.reason}")
        status = orjson.loads(body)
        if not isinstance(status, dict) or "name" not in status:
            raise ValueError("/status.json is not that of a relay")
        return status
