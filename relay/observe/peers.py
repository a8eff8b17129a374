"""Asks the other workers and the consumers of a relay for their status, for this worker's page."""

import http.client
import logging
import socket
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
from relay.observe.access import EVERYWHERE, Access, client_side
from relay.process.seldom import Seldom

log = logging.getLogger(__name__)

_LOOK = 15.0  # seconds between two looks for consumers
_PATIENCE = 1.0  # seconds for which whoever asks waits for a look that begins
_SECONDS = 2.0  # the timeout of a connection, and of each read; a page waits for the slowest peer
_LARGEST = 32_000_000  # the most bytes that are read of one status


Found = Mapping[str, Sequence[str]]  # which consumers serve their status where, by address
Unread = Iterable[Mapping[str, Any]]  # what consumers have not read


class FoundConsumers:
    """The addresses of consumers, as ``look`` returns them: HOST:PORT@NAME, with the machine's name.

    They are looked up while somebody asks for them, in a thread of its own: a page must not wait long for Kafka.
    """

    def __init__(
        self,
        look: Callable[[], Found],
        clock: Callable[[], float] = time.monotonic,
        unread: Callable[[], Unread] = list,
    ) -> None:
        self._look = look
        self._look_unread = unread
        self._seldom = Seldom(clock, every=_LOOK)
        self._looking: threading.Thread | None = None
        # Any thread reads them, and the one that looks assigns them at once.
        self._addresses: Found = {}
        self._unread: Unread = []
        self._said = ""

    def addresses(self) -> Found:
        """Return the latest that are known within a second, each with the consumers there."""
        is_idle = self._looking is None or not self._looking.is_alive()  # I11: Kafka may hang
        if is_idle and self._seldom.is_due():
            self._looking = threading.Thread(target=self._refresh, name="consumers", daemon=True)
            self._looking.start()
            self._looking.join(_PATIENCE)  # for who asks once, as `relay status` does
        return self._addresses

    def unread(self) -> Unread:
        """Return what the consumers have not read, as ``judge`` wants it; known as late as their addresses."""
        self.addresses()
        return self._unread

    def _refresh(self) -> None:
        try:
            here = socket.gethostname()
            noted = [(*each.rpartition("@"), kinds) for each, kinds in self._look().items()]
            self._addresses = {at: kinds for at, _, name, kinds in noted if name == here or not _is_loopback(at)}
            self._unread = list(self._look_unread())
        except RelayError as error:
            if str(error) != self._said:
                self._said = str(error)
                log.info("%s. The page shows the consumers known so far", error)


class Peers:
    """The peers of a worker. ``addresses``: host and port of each. ``found``: consumers found later. Raises
    ``ConfigError``.

    With credentials, only ``addresses`` are asked, because anybody who may commit offsets can name other ones.
    """

    def __init__(
        self, addresses: Sequence[str], settings: HttpConfig, access: Access, found: Callable[[], Found] = dict
    ) -> None:
        self._addresses = list(dict.fromkeys(addresses))
        self._tls = client_side(settings)
        self._own = client_side(settings, own=True)
        self._headers = dict(access.headers)
        self._found = dict if self._headers else found

    def ask(self) -> list[dict[str, Any]]:
        """Return each peer's ``url`` with its ``status``, or with the ``problem`` why there is none.

        ``is_peer``: whether the config names it. ``consumers``: those that say that they are there. ``resolves``:
        whether its name has an address.
        """
        places: dict[str, Sequence[str]] = dict.fromkeys(self._addresses, ()) | dict(self._found())
        with ThreadPoolExecutor(16) as pool:  # its threads start when they are needed
            return list(pool.map(self._ask, places.keys(), places.values()))

    def _ask(self, address: str, consumers: Sequence[str]) -> dict[str, Any]:
        url = f"{'https' if self._tls else 'http'}://{address}"
        found: dict[str, Any] = {"url": url, "is_peer": address in self._addresses, "consumers": list(consumers)}
        try:
            return found | {"status": self.get(address, "/status.json", {"name", "stalls"})}
        except (OSError, http.client.HTTPException, ValueError) as error:
            resolves = not isinstance(error, socket.gaierror)
            return found | {"problem": str(error) or type(error).__name__, "resolves": resolves}

    def get(self, address: str, path: str, keys: Set[str], seconds: float = _SECONDS) -> dict[str, Any]:
        """Return JSON that must have ``keys``. Raises ``OSError``, ``HTTPException`` and ``ValueError``."""
        code, reason, body = self.fetch(address, path, seconds, _LARGEST)
        if code != 200:
            raise ValueError(f"{path} answers {code} {reason}")
        status = orjson.loads(body)
        if not isinstance(status, dict) or not keys <= status.keys():
            raise ValueError(f"{path} is not from a relay")
        return status

    def fetch(self, address: str, path: str, seconds: float, at_most: int) -> tuple[int, str, bytes]:
        """Return the code, the reason and up to ``at_most`` bytes of an answer. Raises ``OSError``, ``HTTPException``.

        ``seconds``: the timeout of each read; connecting takes at most `_SECONDS`.
        """
        host, port = host_port(address)
        tls = self._own if host in EVERYWHERE else self._tls
        connect = http.client.HTTPConnection if tls is None else partial(http.client.HTTPSConnection, context=tls)
        with closing(connect(EVERYWHERE.get(host, host), port, timeout=min(seconds, _SECONDS))) as connection:
            connection.connect()
            connection.sock.settimeout(seconds)  # a page waits for the worker's own peers
            # A redirect is not followed, because the credentials are for this address only.
            connection.request("GET", path, headers=self._headers)
            answered = connection.getresponse()
            return answered.status, answered.reason, answered.read(at_most)


def _is_loopback(address: str) -> bool:
    with suppress(ValueError):
        return ip_address(host_port(address)[0]).is_loopback
    return address.startswith("localhost:")
