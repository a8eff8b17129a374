"""Asks the other workers and the consumers of a relay for their status, for the page of this one."""

import http.client
import logging
import math
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from ipaddress import ip_address
from typing import Any

import orjson

from relay.config import HttpConfig
from relay.config.addresses import host_port
from relay.errors import RelayError
from relay.observe.access import Access, client_side

log = logging.getLogger(__name__)

_LOOK = 15.0
"""Seconds between two looks for consumers."""

_SECONDS = 2.0
"""The timeout of the connection, and of each read: a page waits for the slowest."""

_LARGEST = 32_000_000
"""Bytes of a status that are read."""


class FoundConsumers:
    """The addresses of consumers, as ``look`` returns them: HOST:PORT@NAME, the name of the machine.

    They are looked up while somebody asks for them, in a thread of its own: a page must not wait for Kafka.
    """

    def __init__(self, look: Callable[[], Iterable[str]], clock: Callable[[], float] = time.monotonic) -> None:
        self._look = look
        self._clock = clock
        self._lock = threading.Lock()  # guards the two below
        self._addresses: tuple[str, ...] = ()
        self._due = clock()
        self._said = ""  # used by the one thread that looks

    def addresses(self) -> Sequence[str]:
        """Return the latest that are known, at once."""
        with self._lock:
            if self._clock() >= self._due:
                self._due = math.inf
                threading.Thread(target=self._refresh, name="consumers", daemon=True).start()
            return self._addresses

    def _refresh(self) -> None:
        addresses = self._addresses
        try:
            here = socket.gethostname()
            noted = [each.rpartition("@") for each in self._look()]
            addresses = tuple(at for at, _, name in noted if name == here or not _is_loopback(at))
        except RelayError as error:
            if str(error) != self._said:
                self._said = str(error)
                log.info("%s. The page shows the consumers that it knows", error)
        finally:
            with self._lock:
                self._addresses, self._due = addresses, self._clock() + _LOOK


class Peers:
    """``addresses``: host and port of each. ``found``: more, of consumers. Raises
    ``ConfigError`` for authorities that cannot be used.

    With credentials only ``addresses`` are asked: whoever may commit offsets names the others.
    """

    def __init__(
        self, addresses: Sequence[str], settings: HttpConfig, access: Access, found: Callable[[], Sequence[str]] = tuple
    ) -> None:
        self._addresses = list(dict.fromkeys(addresses))
        self._tls = client_side(settings)
        self._headers = dict(access.headers)
        self._found = tuple if self._headers else found

    def ask(self) -> list[dict[str, Any]]:
        """Return for each its ``url`` with its ``status``, or with the ``problem`` why there is none.

        ``is_peer``: whether the config names it.
        """
        found = [each for each in dict.fromkeys(self._found()) if each not in self._addresses]
        if not self._addresses and not found:
            return []
        with ThreadPoolExecutor(min(16, len(self._addresses) + len(found))) as pool:
            return [
                {**answer, "is_peer": number < len(self._addresses)}
                for number, answer in enumerate(pool.map(self._ask, [*self._addresses, *found]))
            ]

    def _ask(self, address: str) -> dict[str, Any]:
        found = {"url": f"{'https' if self._tls else 'http'}://{address}"}
        try:
            return found | {"status": self.get(address, "/status.json", {"name", "stalls"})}
        except (OSError, http.client.HTTPException, ValueError) as error:
            return found | {"problem": str(error) or type(error).__name__}

    def get(self, address: str, path: str, keys: Set[str]) -> dict[str, Any]:
        """Return the JSON there, which has ``keys``. Raises ``OSError``, ``HTTPException`` and ``ValueError``."""
        host, port = host_port(address)
        code, reason, body = get(
            host, port, path, tls=self._tls, headers=self._headers, seconds=_SECONDS, at_most=_LARGEST
        )
        if code != 200:
            raise ValueError(f"{path} answers {code} {reason}")
        status = orjson.loads(body)
        if not isinstance(status, dict) or not keys <= status.keys():
            raise ValueError(f"{path} is not from a relay")
        return status


def _is_loopback(address: str) -> bool:
    with suppress(ValueError):
        return ip_address(host_port(address)[0]).is_loopback
    return address.startswith("localhost:")


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
    connect = http.client.HTTPConnection if tls is None else partial(http.client.HTTPSConnection, context=tls)
    with closing(connect(host, port, timeout=seconds)) as connection:
        # A redirect is not followed: the credentials are for this address.
        connection.request("GET", path, headers=dict(headers))
        answered = connection.getresponse()
        return answered.status, answered.reason, answered.read(at_most)
