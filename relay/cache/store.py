"""The interface of a store, which handles bytes, and knows neither tokens nor rules."""

import random
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from heapq import nsmallest
from typing import NamedTuple, Protocol, Self
from urllib.parse import urlsplit

KEEP = -1.0  # a time to live that leaves the key's own unchanged
FOREVER = 0.0  # no time to live
READ = b"?"  # an expected meta that no key ever has, so that the write only reads the meta


Address = tuple[str, int]  # host and port


class StoredEntry(NamedTuple):
    """An entry in a store: its JSON, and the bytes of its value, or None without a value."""

    meta: bytes
    value: bytes | None


class ConditionalWrite(NamedTuple):
    """One compare-and-set.

    ``expected``: the meta that the key must have; None means no entry. ``meta``: the new one, None to delete. ``value``
    None leaves no value. ``ttl``: seconds, or ``KEEP``, or ``FOREVER``.
    """

    key: str
    expected: bytes | None
    meta: bytes | None
    value: bytes | None
    ttl: float


class Store(Protocol):
    """A key-value store with an atomic compare-and-set per key.

    It may lose any entry at any time, but must never restore one that was replaced or lost: a store that may (from a
    snapshot, in a failover) then has to replace every generation (I6). Calls raise ``relay.errors.Unavailable`` if the
    store cannot be reached; a write may have been made then, and repeating it does no harm.
    """

    def read(self, keys: Sequence[str], generation_key: str) -> tuple[list[StoredEntry | None], str]:
        """Return the entries, and the generation, read *after* the last entry."""

    def compare_and_set(self, writes: Sequence[ConditionalWrite]) -> dict[str, bytes | None]:
        """Make each write whose key has the expected meta. The keys are distinct.

        Return the conflicts: the other keys, each with its current meta (None for no entry). If there is no room for
        some writes, raises ``StoreFull`` after making the others. A write without a meta needs no room.
        """

    def generation(self, generation_key: str) -> str:
        """Return the generation; if there is none, begin one with a new random id."""
        return self.read([], generation_key)[1]

    def renew(self, generation_key: str) -> str:
        """Begin a new generation and return it. No value of an earlier generation is served from then on.

        If there is no room for the new generation, the old one is removed and ``Unavailable`` is raised, here and in
        reads.
        """

    def losses(self) -> str:
        """Return an answer with which ``has_lost`` tells whether entries were lost before their time to live ended.

        Losses that include the generation need not show in it.
        """


class RemoteStore(Store):
    """A store on servers, which is closed at the end of a ``with``. ``address``: its URL without secrets."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.address = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""


class SampledStore(Store, Protocol):
    """A store that can list some of its keys, as ``relay verify`` needs."""

    def sample(self, prefix: str, count: int) -> list[str]:
        """Return up to ``count`` distinct random keys of entries that begin with ``prefix``; all if there are fewer.

        It may miss keys that come and go in the meantime, and its time grows with the number of keys on the server.
        """


def has_lost(before: str, after: str) -> bool:
    """Whether entries may have been lost between two answers of ``Store.losses``.

    An answer has a word per server, in a fixed order: a part that changes once entries are lost, and after an ``@`` a
    count that grows with all activity. A smaller count means that the server's statistics were reset.
    """
    first, second = ([word.partition("@")[::2] for word in each.split()] for each in (before, after))
    if [what for what, _ in first] != [what for what, _ in second]:
        return True
    # I6: the count of losses may be the same as before.
    return any(int(later or 0) < int(earlier or 0) for (_, earlier), (_, later) in zip(first, second, strict=True))


def host_addresses(hosts: str, default_port: int) -> list[Address]:
    """Return the addresses in the comma-separated hosts of a URL."""
    found = [urlsplit(f"//{host}") for host in hosts.split(",")]
    return [(each.hostname or "", each.port or default_port) for each in found]


def entry_key(namespace: str, key: str) -> str:
    """Return the key of a cache entry in the store."""
    return f"{namespace}:{key}"


def generation_key(namespace: str) -> str:
    """Return the key of the generation in the store. It has no colon, so no cache key can name it."""
    return f"{namespace}{{generation}}"


def floors_key(namespace: str) -> str:
    """Return the key of the floors in the store; no cache key can name it either."""
    return f"{namespace}{{floors}}"


def random_keys(keys: Iterable[str], count: int) -> list[str]:
    """Pick up to ``count`` random keys, in one pass and the memory of ``count``; a repeated key is picked once."""
    return list(dict.fromkeys(nsmallest(count, keys, key=lambda _: random.random())))
