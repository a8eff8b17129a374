"""What is sent to memcached, and in which order, as a scripted server sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BufferedReader

import pytest

from relay.cache import ConditionalWrite, MemcachedStore
from relay.errors import RelayError, Unavailable
from tests.cache.scripted_server import ScriptedServer


class ScriptedMemcached(ScriptedServer):
    """Has nothing and stores nothing. ``sent``: the lines it was sent, which several may share."""

    def __init__(self, sent: list[bytes], answers: Callable[[bytes], bytes | None]) -> None:
        self.sent = sent
        self._answers = answers
        super().__init__()

    def answer(self, line: bytes, reader: BufferedReader) -> bytes | None:
        self.sent.append(line)
        if line.startswith(b"ms "):
            reader.readline()
        return self._answers(line)


def usual(line: bytes) -> bytes | None:
    if line == b"version\r\n":
        return b"VERSION 1.6.40\r\n"
    if line == b"stats settings\r\n":
        return b"STAT item_size_max 1048576\r\nEND\r\n"
    if b"{generation}" in line:
        return b"VA %d f%d c1\r\n%b\r\n" % (len(GENERATION), 0x72656C02, GENERATION)
    return b"EN\r\n"


GENERATION = b"g1 " + b"0" * 16


@pytest.fixture
def scripted() -> Iterator[list[ScriptedMemcached]]:
    servers: list[ScriptedMemcached] = []
    yield servers
    for server in servers:
        server.close()


@pytest.mark.parametrize("count", [1, 3])
def test_the_generation_is_read_after_the_last_entry(scripted: list[ScriptedMemcached], count: int) -> None:
    """I6: one that is renewed between the two must not go with the entries before."""
    sent: list[bytes] = []
    scripted += [ScriptedMemcached(sent, usual) for _ in range(count)]
    keys = [f"ns:{number}" for number in range(250)]
    with MemcachedStore("memcached://" + ",".join(server.host for server in scripted)) as store:
        store._list_of_servers = "0" * 16
        assert store.read(keys, "ns{generation}") == ([None] * 250, "g1")
    asked = [line.split()[1].decode() for line in sent if line.startswith(b"mg ")]
    assert sorted(asked[:-1]) == sorted(keys)
    assert asked[-1] == "ns{generation}"


def test_nothing_is_sent_twice(scripted: list[ScriptedMemcached]) -> None:
    """I6: a lease that is written again after an invalidation would let a value from before it through."""
    scripted.append(ScriptedMemcached([], lambda line: None if line.startswith(b"ms ") else usual(line)))
    lease = ConditionalWrite("ns:a", None, b"lease", None, 5.0)
    with MemcachedStore(f"memcached://{scripted[0].host}") as store:
        store._list_of_servers = "0" * 16
        store.generation("ns{generation}")  # so that there is a connection
        with pytest.raises(Unavailable):
            store.compare_and_set([lease])
    assert len([line for line in scripted[0].sent if line.startswith(b"ms ")]) == 1


def test_a_generation_for_which_there_is_no_room_leaves_no_old_one(scripted: list[ScriptedMemcached]) -> None:
    """I6: its values would be served on."""
    full = b"SERVER_ERROR out of memory storing object\r\n"
    scripted.append(ScriptedMemcached([], lambda line: full if line.startswith(b"ms ") else usual(line)))
    with (
        MemcachedStore(f"memcached://{scripted[0].host}") as store,
        pytest.raises(Unavailable, match="no room for a generation"),
    ):
        store.renew("ns{generation}")
    assert scripted[0].sent[-1] == b"md ns{generation}\r\n"


def test_a_version_without_the_meta_commands_is_refused(scripted: list[ScriptedMemcached]) -> None:
    scripted.append(ScriptedMemcached([], lambda line: b"VERSION 1.5.22\r\n"))
    with (
        MemcachedStore(f"memcached://{scripted[0].host}") as store,
        pytest.raises(RelayError, match=r"1\.5\.22: it must be 1\.6\.18 or newer"),
    ):
        store.generation("ns{generation}")
