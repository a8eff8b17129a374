"""What is sent to Redis, and in which order, as a scripted server sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BufferedReader

import pytest

from relay.cache import ConditionalWrite, RedisStore
from relay.cache.store import StoredEntry
from relay.errors import RelayError, Unavailable
from tests.cache.scripted_server import ScriptedServer

Answer = bytes | None
"""What the server sends; None to close the connection."""


class ScriptedRedis(ScriptedServer):
    """Answers as Redis does. ``commands``: what it was sent."""

    def __init__(self, answer: Callable[[list[bytes]], Answer]) -> None:
        self.commands: list[list[bytes]] = []
        self._answer = answer
        super().__init__()
        self.url = f"redis://{self.host}/0?protocol=2"

    def named(self, name: bytes) -> list[list[bytes]]:
        return [command for command in self.commands if command[0] == name]

    def answer(self, line: bytes, reader: BufferedReader) -> Answer:
        command = []
        for _ in range(int(line[1:])):
            length = int(reader.readline()[1:])
            command.append(reader.read(length + 2)[:-2])
        self.commands.append(command)
        return self._answer(command)


def bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)


def array(*answers: bytes) -> bytes:
    return b"*%d\r\n%b" % (len(answers), b"".join(answers))


RUN = b"0123456789abcdef"
NOTHING = b"$-1\r\n"


def usual(command: list[bytes]) -> Answer:
    """Answer as a server without entries, which has a generation of this run."""
    match command[0]:
        case b"EVALSHA":
            *entries, last = keys_of(command)
            generation = bulk(b"g1 " + RUN) if command[-1] == b"1" else NOTHING
            nothings = [NOTHING, NOTHING] * len(entries if command[-1] == b"1" else [*entries, last])
            return array(*nothings, generation, bulk(RUN * 2 + b"01234567"))
        case b"HDEL":
            return b":0\r\n"
        case b"CLIENT" | b"SELECT":
            return b"+OK\r\n"
    raise AssertionError(command)


def keys_of(command: list[bytes]) -> list[bytes]:
    return command[3 : 3 + int(command[2])]


@pytest.fixture
def opened() -> Iterator[list[ScriptedRedis]]:
    servers: list[ScriptedRedis] = []
    yield servers
    for server in servers:
        server.close()


def test_the_generation_is_read_after_the_last_entry(opened: list[ScriptedRedis]) -> None:
    """I6: one that is renewed between the two must not go with the entries before."""
    server = ScriptedRedis(usual)
    opened.append(server)
    keys = [f"ns:{number}" for number in range(600)]
    with RedisStore(server.url) as store:
        found, generation = store.read(keys, "ns{generation}")
    assert (found, generation) == ([None] * 600, "g1")
    sent = [key.decode() for command in server.named(b"EVALSHA") for key in keys_of(command)]
    assert sent == [*keys, "ns{generation}"]


def test_the_generation_role_and_run_are_read_after_a_single_entry(opened: list[ScriptedRedis]) -> None:
    """I6: a server that was demoted, or lost a namespace, after it returned the entry says so."""
    info = b"# Replication\r\nrole:master\r\nmaster_replid:%b\r\n" % (RUN * 2 + b"01234567")
    answers = {b"HMGET": array(bulk(b"meta"), bulk(b"value")), b"GET": bulk(b"g1 " + RUN), b"INFO": bulk(info)}
    server = ScriptedRedis(lambda command: answers.get(command[0]) or usual(command))
    opened.append(server)
    with RedisStore(server.url) as store:
        assert store.read(["ns:a"], "ns{generation}") == ([StoredEntry(b"meta", b"value")], "g1")
    assert [command[:2] for command in server.commands if command[0] in answers] == [
        [b"HMGET", b"ns:a"],
        [b"GET", b"ns{generation}"],
        [b"INFO", b"replication"],
    ]


def test_a_server_without_any_good_replica_is_not_read_whatever_it_says_of_a_write(opened: list[ScriptedRedis]) -> None:
    """I6: it may have been cut off and replaced."""
    info = b"# Replication\r\nrole:master\r\nmin_slaves_good_slaves:0\r\nmaster_replid:%b\r\n" % (RUN * 2 + b"01234567")
    answers = {b"HMGET": array(bulk(b"meta"), bulk(b"value")), b"GET": bulk(b"g1 " + RUN), b"INFO": bulk(info)}
    server = ScriptedRedis(lambda command: answers.get(command[0]) or usual(command))
    opened.append(server)
    with RedisStore(server.url) as store, pytest.raises(Unavailable, match="Not enough good replicas"):
        store.read(["ns:a"], "ns{generation}")


def test_nothing_is_sent_twice(opened: list[ScriptedRedis]) -> None:
    """I6: a lease that is written again after an invalidation would let a value from before it through."""
    server = ScriptedRedis(lambda command: None if command[0] == b"EVALSHA" else usual(command))
    opened.append(server)
    with RedisStore(server.url) as store, pytest.raises(Unavailable):
        store.compare_and_set([ConditionalWrite("ns:a", None, b"lease", None, 5.0)])
    assert len(server.named(b"EVALSHA")) == 1


def test_a_server_that_does_not_tell_its_run_is_refused(opened: list[ScriptedRedis]) -> None:
    """I6: a restart from a snapshot would not be noticed."""
    server = ScriptedRedis(lambda command: array(NOTHING, bulk(b"")) if command[0] == b"EVALSHA" else usual(command))
    opened.append(server)
    with RedisStore(server.url) as store, pytest.raises(RelayError, match="master_replid"):
        store.generation("ns{generation}")
