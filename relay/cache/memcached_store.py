"""memcached as a store, by its meta commands. An entry is one item: the length of its JSON, the JSON, and the value."""

import math
import re
import secrets
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from struct import pack, unpack_from
from urllib.parse import unquote_to_bytes

from relay.cache.memcached_servers import NO_ROOM, Memcached, MemcachedConnection, MetaReply, open_servers
from relay.cache.store import FOREVER, KEEP, ConditionalWrite, RemoteStore, StoredEntry, random_keys
from relay.errors import RelayError, StoreFull, Unavailable
from relay.process.store_memory import ServerMemory

# The flags of an item, which distinguish the relay's items from others.
_WITHOUT_VALUE, _WITH_VALUE, _GENERATION = 0x7265_6C00, 0x7265_6C01, 0x7265_6C02
_LONGEST_KEY = 250  # bytes
_UNFIT = re.compile(rb"[\x00-\x20\x7f]")  # in a key
_LONGEST_TTL = 30 * 86_400  # seconds; a larger number is a time since the epoch
_OVERHEAD = 256  # bytes of an item besides key and data, with a margin
_ATTEMPTS = 10  # attempts to read a generation that others replace


class MemcachedStore(RemoteStore):
    """A ``Store`` in memcached 1.6.18 or newer. Threads may share it. It connects when first used.

    ``url``: ``memcached://host:port``, or several servers, ``memcached://user:password@host:port,host:port``;
    ``memcacheds://`` with TLS. ``timeout``: seconds per answer. One of the servers keeps each key, so all processes
    have to name the same servers. If a server is down, calls fail; no other server replaces it, since it would come
    back with outdated entries (I6).
    """

    def __init__(self, url: str, *, timeout: float = 5.0) -> None:
        super().__init__(url)
        self._servers = open_servers(url, timeout)
        names = " ".join(sorted(server.name for server in self._servers))
        self._errors = _Errors(self.address)
        self._list_of_servers = blake2b(names.encode(), digest_size=8).hexdigest()

    def close(self) -> None:
        for server in self._servers:
            server.connections.close()

    def read(self, keys: Sequence[str], generation_key: str) -> tuple[list[StoredEntry | None], str]:
        with self._errors:
            for _ in range(_ATTEMPTS):
                entries, found = self._read_once(keys, generation_key)
                name, _, servers = found.data.decode().partition(" ")
                if name and servers == self._list_of_servers:
                    return entries, name
                # I6: it has other servers, or is missing. If several processes replace it, one succeeds.
                self._set_generation(generation_key, b" C%d" % found.number(b"c") if name else b" ME")
        raise RelayError(
            f"the generation {generation_key} in memcached at {self.address} keeps changing: check that all processes "
            "list the same servers"
        )

    def compare_and_set(self, writes: Sequence[ConditionalWrite]) -> dict[str, bytes | None]:
        conflicts: dict[str, bytes | None] = {}
        refused: dict[str, str] = {}
        with self._errors:
            for server, part in self._by_server([write.key for write in writes]).items():
                with server.connections.lent() as connection:  # the same for all steps: a restart would end it
                    _Attempt(connection, [writes[number] for number in part], refused).make(conflicts)
        if refused:
            raise StoreFull(f"memcached at {self.address}: {next(iter(refused.values()))}", refused, conflicts)
        return conflicts

    def renew(self, generation_key: str) -> str:
        with self._errors:
            return self._set_generation(generation_key, b"")

    def sample(self, prefix: str, count: int) -> list[str]:
        with self._errors:
            return random_keys(self._keys(prefix.encode()), count)

    def losses(self) -> str:
        """Return an answer that tells whether a server has evicted items, was flushed, or restarted."""
        with self._errors:
            return " ".join(server.losses() for server in self._servers)

    def memory(self) -> list[ServerMemory]:
        with self._errors:
            return [server.memory() for server in self._servers]

    def _read_once(self, keys: Sequence[str], generation_key: str) -> tuple[list[StoredEntry | None], MetaReply]:
        """Return the entries, and the item of the generation, without data if there is none."""
        asked = item_key(generation_key)
        home = self._server_of(asked)
        parts = self._by_server(keys)
        last = parts.pop(home, [])
        entries: list[StoredEntry | None] = [None] * len(keys)
        for server, numbers in parts.items():
            with server.connections.lent() as connection:
                replies = connection.read([b"mg %b v f\r\n" % item_key(keys[number]) for number in numbers])
            for number, reply in zip(numbers, replies, strict=True):
                entries[number] = _entry(reply)
        requests = [b"mg %b v f\r\n" % item_key(keys[number]) for number in last]
        with home.connections.lent() as connection:
            # Last, so that the generation was still current after the entries were read (I6).
            *replies, generation = connection.read([*requests, b"mg %b v f c\r\n" % asked])
        for number, reply in zip(last, replies, strict=True):
            entries[number] = _entry(reply)
        if generation.data and generation.number(b"f") != _GENERATION:
            raise RelayError(
                f"the item {generation_key} in memcached does not belong to the relay: check whether another program "
                "writes to it"
            )
        return entries, generation

    def _set_generation(self, generation_key: str, condition: bytes) -> str:
        """Begin a generation on a condition; return its name, even if it was not written."""
        key = item_key(generation_key)
        name = secrets.token_hex(8)
        data = f"{name} {self._list_of_servers}".encode()
        with self._server_of(key).connections.lent() as connection:
            (reply,) = connection.write([b"ms %b %d F%d%b\r\n%b\r\n" % (key, len(data), _GENERATION, condition, data)])
            if reply.code == NO_ROOM:
                connection.write([b"md %b\r\n" % key])  # I6: no old generation is served
                raise OSError(f"{connection.name} has no room for a generation")
        return name

    def _by_server(self, keys: Sequence[str]) -> dict[Memcached, list[int]]:
        if len(self._servers) == 1:
            return {self._servers[0]: list(range(len(keys)))} if keys else {}
        found: dict[Memcached, list[int]] = defaultdict(list)
        for number, key in enumerate(keys):
            found[self._server_of(item_key(key))].append(number)
        return found

    def _server_of(self, key: bytes) -> Memcached:
        """Return the server that keeps a key: rendezvous hashing."""
        if len(self._servers) == 1:
            return self._servers[0]
        return max(self._servers, key=lambda server: server.rank(key))

    def _keys(self, prefix: bytes) -> Iterator[str]:
        """Yield the keys of entries, except keys too long for memcached."""
        for server in self._servers:
            with server.connections.lent() as connection:
                for raw in connection.item_keys():
                    key = unquote_to_bytes(raw)
                    if key.startswith(prefix):
                        yield key.decode(errors="replace")


class _Errors:
    """Turns connection errors into ``Unavailable``, in a third of the time of `contextmanager`."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise Unavailable(f"memcached at {self._address} is not available: {error}") from error


@dataclass(slots=True)
class _Attempt:
    """Writes to one server on one connection. ``refused``: collects the keys whose writes it refuses, and why."""

    connection: MemcachedConnection
    writes: Sequence[ConditionalWrite]
    refused: dict[str, str]

    def make(self, conflicts: dict[str, bytes | None]) -> None:
        """Make each write whose key has the expected meta; add the others to the conflicts."""
        new = [write for write in self.writes if write.expected is None and write.meta is not None]
        others = [write for write in self.writes if write.expected is not None or write.meta is None]
        failed = self._write([(write, b" ME", None) for write in new])
        conditional = []
        for write, found in zip(others, self._read(others), strict=True):
            meta = _meta(found)
            if meta != write.expected:
                conflicts[write.key] = meta
            elif found.code != b"EN":
                conditional.append((write, b" C%d" % found.number(b"c"), found.number(b"t")))
        failed += self._write(conditional)
        for write, found in zip(failed, self._read(failed), strict=True):
            if write.expected is None and write.meta is not None and _is_foreign(found):
                self.refused[write.key] = f"another program has written to the cache key {write.key}"
            else:
                conflicts[write.key] = _meta(found)

    def _read(self, writes: Sequence[ConditionalWrite]) -> list[MetaReply]:
        return self.connection.read([b"mg %b v f c t\r\n" % item_key(write.key) for write in writes])

    def _write(self, writes: Sequence[tuple[ConditionalWrite, bytes, int | None]]) -> list[ConditionalWrite]:
        """Write on conditions, given the remaining seconds of each item; return the writes whose conditions failed."""
        sendable = [each for each in writes if self._fits(each[0])]
        replies = self.connection.write([_request(*each) for each in sendable])
        codes = {write.key: reply.code for (write, _, _), reply in zip(sendable, replies, strict=True)}
        self.refused |= {key: "it has no room for an item" for key, code in codes.items() if code == NO_ROOM}
        done = {write.key for write, _, _ in writes if codes.get(write.key) == b"HD"}.union(self.refused)
        return [write for write, _, _ in writes if write.key not in done]

    def _fits(self, write: ConditionalWrite) -> bool:
        # Not sent: memcached would refuse it and delete the current item, which may be a tombstone.
        size = len(write.key) + len(write.meta or b"") + len(write.value or b"") + _OVERHEAD
        if size <= self.connection.largest_item:
            return True
        largest = self.connection.largest_item
        self.refused[write.key] = (  # I6: it may be an invalidation, and the caller must know
            f"the item {write.key} takes {size} bytes, but {self.connection.name} accepts only {largest} (option -I)"
        )
        return False


def _request(write: ConditionalWrite, condition: bytes, left: int | None) -> bytes:
    key = item_key(write.key)
    if write.meta is None:
        return b"md %b%b\r\n" % (key, condition)
    value = write.value or b""
    flags = _WITHOUT_VALUE if write.value is None else _WITH_VALUE
    size = 4 + len(write.meta) + len(value)
    return b"ms %b %d F%d T%d%b\r\n%b%b%b\r\n" % (
        key, size, flags, _expiry(write.ttl, left), condition, pack(">I", len(write.meta)), write.meta, value,
    )  # fmt: skip


def _expiry(ttl: float, left: int | None) -> int:
    """Return a time to live for memcached. ``left``: the remaining seconds of the item, -1 for no end."""
    if ttl == FOREVER or (ttl == KEEP and (left is None or left < 0)):
        return 0
    # memcached's clock advances once a second, so an item of one second may end at once.
    seconds = max(1, left or 0) if ttl == KEEP else math.ceil(ttl) + 1
    return seconds if seconds <= _LONGEST_TTL else int(time.time()) + seconds


def item_key(key: str) -> bytes:
    """Return a key in the form for memcached; no two keys have the same form."""
    raw = key.encode()
    if len(raw) <= _LONGEST_KEY and not _UNFIT.search(raw):
        return raw
    return b"{%b}" % blake2b(raw, digest_size=32).hexdigest().encode()  # no namespace begins with a brace


def _entry(reply: MetaReply) -> StoredEntry | None:
    meta = _meta(reply)
    if meta is None:
        return None
    return StoredEntry(meta, reply.data[4 + len(meta) :] if reply.number(b"f") == _WITH_VALUE else None)


def _is_foreign(reply: MetaReply) -> bool:
    return reply.code != b"EN" and reply.number(b"f") not in (_WITHOUT_VALUE, _WITH_VALUE)


def _meta(reply: MetaReply) -> bytes | None:
    """Return the JSON of an entry, or None: another program's item is not an entry (I12)."""
    if reply.code == b"EN" or _is_foreign(reply):
        return None
    (size,) = unpack_from(">I", reply.data)
    return reply.data[4 : 4 + size]
