"""The servers behind a memcached URL, and its meta commands over sockets, each sent only once (I6)."""

import select
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from relay.cache.store import host_addresses
from relay.errors import ConfigError, RelayError
from relay.process.connections import Connections, closed_on_error
from relay.process.store_memory import ServerMemory

NO_ROOM = b"SERVER_ERROR"
"""The code of the answer to a write when memory is full. After other errors, the connection is closed."""

_NO_ROOM_LINE = b"SERVER_ERROR out of memory storing object"
_OLDEST = (1, 6, 18)
_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
# So many requests with such short answers fit into the sockets' buffers: no side waits for the other to read.
_READS_AT_ONCE = 100
_WRITES_AT_ONCE = 1000
# Counters of items that were lost before they expired.
_LOSSES = (
    b"evictions",
    b"slab_reassign_evictions_nomem",
    b"slab_reassign_busy_deletes",
    b"store_no_memory",
    b"store_too_large",
    b"cmd_flush",
    b"extstore_objects_evicted",
    b"extstore_compact_lost",
    b"badcrc_from_extstore",
)


class MetaReply(NamedTuple):
    """An answer to a meta command: its code such as ``HD``, its flags by their letter, and the data if any."""

    code: bytes
    flags: dict[int, bytes]
    data: bytes

    def number(self, letter: bytes) -> int:
        """Return the number of a requested flag."""
        return int(self.flags[letter[0]])


class MemcachedConnection:
    """A connection. ``timeout``: seconds. Raises ``OSError`` if it breaks, ``RelayError`` for an invalid answer."""

    def __init__(
        self, host: str, port: int, *, timeout: float, user: str | None, password: str, tls: ssl.SSLContext | None
    ) -> None:
        self.name = f"{host}:{port}"
        self._socket = socket.create_connection((host, port), timeout=timeout)
        with closed_on_error(self._socket):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls:
                self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        self._poll = select.poll()  # `select.select` accepts no descriptor above 1023
        self._poll.register(self._socket, select.POLLIN)
        self._reader = self._socket.makefile("rb")
        with closed_on_error(self):
            if user is not None:
                self._authenticate(user, password)
            self._check_version()
            settings = self.stats(b" settings")
            if settings.get(b"cas_enabled") == b"no":
                hint = "start it without -C (--disable-cas)"
                raise RelayError(f"memcached at {self.name} cannot compare and set: {hint}")
            self.largest_item = int(settings[b"item_size_max"])

    def close(self) -> None:
        self._reader.close()
        self._socket.close()

    def __del__(self) -> None:
        if hasattr(self, "_reader"):  # otherwise it was never open
            self.close()

    def is_usable(self) -> bool:
        """Whether the server has neither closed it nor sent anything unrequested."""
        return not self._poll.poll(0)

    def read(self, requests: Sequence[bytes]) -> list[MetaReply]:
        """Send short meta commands with answers of any length; return the answers in order."""
        return self._exchange(requests, _READS_AT_ONCE)

    def write(self, requests: Sequence[bytes]) -> list[MetaReply]:
        """Send meta commands of any length with short answers; return the answers."""
        return self._exchange(requests, _WRITES_AT_ONCE)

    def _exchange(self, requests: Sequence[bytes], at_once: int) -> list[MetaReply]:
        replies: list[MetaReply] = []
        for start in range(0, len(requests), at_once):
            part = requests[start : start + at_once]
            self._socket.sendall(b"".join(part))
            replies += [self._reply() for _ in part]
        return replies

    def _reply(self) -> MetaReply:
        line = self._line()
        code, *words = line.split(b" ")
        if code == b"VA":
            size = int(words.pop(0))
            data = self._reader.read(size + 2)[:-2]
            if len(data) != size:
                raise ConnectionError(f"{self.name} closed the connection")
        elif code in (b"HD", b"EN", b"NS", b"EX", b"NF", b"MN", NO_ROOM):
            data = b""
        else:
            raise RelayError(f"memcached at {self.name} refused a command: {line.decode(errors='replace')}")
        return MetaReply(code, {word[0]: word[1:] for word in words}, data)

    def stats(self, kind: bytes = b"") -> dict[bytes, bytes]:
        self._socket.sendall(b"stats" + kind + b"\r\n")
        lines = (line.split(b" ", 2) for line in iter(self._line, b"END"))
        return {name: value for _, name, value in lines}

    def item_keys(self) -> Iterator[bytes]:
        """Yield the keys of all items, encoded as in a URL."""
        self._socket.sendall(b"lru_crawler metadump all\r\n")
        for line in iter(self._line, b"END"):
            if not line.startswith(b"key="):
                raise RelayError(f"memcached at {self.name} does not list its keys: {line.decode(errors='replace')}")
            yield line[4:].partition(b" ")[0]

    def _line(self) -> bytes:
        line = self._reader.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError(f"{self.name} closed the connection")
        line = line.rstrip(b"\r\n")
        if line.startswith(b"SERVER_ERROR") and line != _NO_ROOM_LINE:
            raise OSError(f"{self.name}: {line.decode(errors='replace')}")
        return line

    def _authenticate(self, user: str, password: str) -> None:
        words = f"{user} {password}".encode()
        self._socket.sendall(b"set relay 0 0 %d\r\n%b\r\n" % (len(words), words))
        if (line := self._line()) != b"STORED":
            raise PermissionError(f"{self.name} does not accept the user and the password ({line.decode()})")

    def _check_version(self) -> None:
        self._socket.sendall(b"version\r\n")
        line = self._line().decode(errors="replace")
        if not line.startswith("VERSION "):
            raise PermissionError(f"{self.name} does not report its version: it may need a user and password ({line})")
        version = line.removeprefix("VERSION ")
        if tuple(int(part) for part in version.split(".")[:3] if part.isdecimal()) < _OLDEST:
            oldest = ".".join(map(str, _OLDEST))
            raise RelayError(f"memcached at {self.name} is version {version}: it must be {oldest} or newer")


class Memcached:
    """One memcached, and the connections to it. Threads may share it."""

    def __init__(self, host: str, port: int, connect: Callable[[str, int], MemcachedConnection]) -> None:
        self.name = f"{host}:{port}"
        self.connections = Connections(partial(connect, host, port), MemcachedConnection.is_usable)

    def rank(self, key: bytes) -> bytes:
        """Return the server's rank for a key. The server with the highest rank keeps the key."""
        return blake2b(b"%b %b" % (self.name.encode(), key), digest_size=8).digest()

    def losses(self) -> str:
        """Return a word for ``relay.cache.store.has_lost``. Raises ``OSError``."""
        with self.connections.lent() as connection:
            found = connection.stats()
        began = int(found[b"time"]) - int(found[b"uptime"])
        lost = sum(int(found.get(name, b"0")) for name in _LOSSES)
        return f"{self.name}:{found[b'pid'].decode()}:{began}:{lost}@{found[b'bytes_read'].decode()}"

    def memory(self) -> ServerMemory:
        """Return the memory used, the limit, and the policy at the limit. Raises ``OSError``."""
        with self.connections.lent() as connection:
            found, settings = connection.stats(), connection.stats(b" settings")
        policy = "noeviction" if settings.get(b"evictions") == b"off" else "allkeys-lru"
        return ServerMemory(self.name, int(found[b"bytes"]), int(found[b"limit_maxbytes"]), policy)


def open_servers(url: str, timeout: float) -> list[Memcached]:
    """Return the servers of a URL. ``timeout``: seconds for a connection, and for an answer."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    if unknown := [name for name in query if name not in _OPTIONS]:
        raise ConfigError(f"unknown option {unknown[0]!r} for memcached: use one of {', '.join(_OPTIONS)}")
    credentials, _, hosts = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    tls = _tls(query) if parts.scheme == "memcacheds" else None
    name = unquote(user) if credentials else None
    connect = partial(MemcachedConnection, timeout=timeout, user=name, password=unquote(password), tls=tls)
    return [Memcached(*address, connect) for address in host_addresses(hosts, 11211)]


def _tls(query: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=query.get("ssl_ca_certs"))
    if query.get("ssl_cert_reqs", "required") == "none":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif query.get("ssl_check_hostname", "true").lower() in ("false", "0", "no"):
        context.check_hostname = False
    if "ssl_certfile" in query:
        context.load_cert_chain(query["ssl_certfile"], query.get("ssl_keyfile"))
    return context
