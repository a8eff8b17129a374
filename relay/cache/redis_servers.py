"""The servers behind a Redis URL: one server, the one that Sentinel names, or a cluster.

A call is repeated only if a server has said that it did not execute it: a lease that is written twice could come back
after an invalidation, and let an older value through (I6).
"""

import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha1
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, NoScriptError, ReadOnlyError, RedisError
from redis.retry import Retry
from redis.sentinel import Sentinel

from relay.cache.store import Address, host_addresses
from relay.process.store_memory import ServerMemory

Command = tuple[Any, ...]

_SLOTS = 16_384
_CALLS_PER_PIPELINE = 32
_KEYS_PER_SCAN = 1000
_REDIRECTIONS = 8  # attempts of a call in a cluster
_PAUSE = 0.02  # seconds before the second attempt, and longer before each further one


class Script:
    """A script, and the name that a server knows it by."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.name = sha1(text.encode(), usedforsecurity=False).hexdigest()


class ScriptCall(NamedTuple):
    keys: Sequence[str]
    arguments: Sequence[bytes] = ()


class Servers(ABC):
    """Where scripts run. Threads may share it. It connects when first used. Methods raise redis-py's errors."""

    keys_per_call: int
    """The most keys that a call of a script may have."""

    @abstractmethod
    def run(self, script: Script, calls: Sequence[ScriptCall]) -> list[Any]:
        """Call a script on the primaries of the keys, and return the answers."""

    @abstractmethod
    def _primary_clients(self) -> Iterable[Any]:
        """Return a client for each primary, in a fixed order."""

    @abstractmethod
    def _clients(self) -> Iterable[Any]:
        """Return all clients opened so far."""

    def run_on_each(self, script: Script) -> list[Any]:
        return [_raised(run_on(client, script, [ScriptCall(())])[0]) for client in self._primary_clients()]

    def memory(self) -> Iterator[ServerMemory]:
        for client in self._primary_clients():
            found, settings = client.info("memory"), client.connection_pool.connection_kwargs
            name = f"{settings['host']}:{settings['port']}" if "port" in settings else "the primary"
            # Servers that speak the protocol need not report all of this.
            limit, policy = found.get("maxmemory", 0), found.get("maxmemory_policy", "unknown policy")
            yield ServerMemory(name, found.get("used_memory", 0), limit, policy)

    def scan(self, pattern: str) -> Iterator[bytes]:
        """Yield the keys of matching entries, which are hashes; some perhaps twice."""
        for client in self._primary_clients():
            yield from client.scan_iter(match=pattern, count=_KEYS_PER_SCAN, _type="hash")

    def reconnect(self) -> None:
        """Use new connections from now on, to the servers that are then primaries."""
        for client in self._clients():
            client.connection_pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        for client in self._clients():
            client.close()


def open_servers(url: str, timeout: float) -> Servers:
    """Return the servers of a URL. ``timeout``: seconds for a connection, and for an answer."""
    # I6: nothing is sent twice; callers retry with new nonces.
    settings: dict[str, Any] = {"retry": Retry(NoBackoff(), retries=0)}
    settings |= {"socket_timeout": timeout, "socket_connect_timeout": timeout}
    scheme, _, kind = urlsplit(url).scheme.partition("+")
    if not kind:
        return Single(redis.Redis.from_url(url, **settings))
    parts = urlsplit(url)
    credentials, at, hosts = parts.netloc.rpartition("@")
    service, _, database = parts.path.strip("/").partition("/")
    path = f"/{database}" if kind == "sentinel" else parts.path
    settings = parse_url(f"{scheme}://{credentials}{at}host{path}?{parts.query}") | settings  # type: ignore[no-untyped-call]
    del settings["host"]
    if settings.pop("connection_class", None):
        settings["ssl"] = True
    if kind == "cluster":
        return RedisCluster(host_addresses(hosts, 6379), settings)
    return Single(_primary_of(service, host_addresses(hosts, 26379), settings))


def _primary_of(service: str, sentinels: Sequence[Address], settings: dict[str, Any]) -> Any:
    """Return a client that asks Sentinel for the primary of a service whenever it connects."""
    login = {name: settings.pop(f"sentinel_{name}", None) for name in ("username", "password")}
    # Otherwise each new connection would first try the servers in turn for a long time.
    own = {name: value for name, value in settings.items() if name not in ("db", "username", "password")}
    manager: Any = Sentinel(sentinels, sentinel_kwargs=own | login, **settings)  # type: ignore[no-untyped-call]
    return manager.master_for(service)


@dataclass(eq=False, repr=False)
class Single(Servers):
    """Servers with one primary at a time."""

    _client: Any
    keys_per_call = 256  # few enough to occupy the server for about a millisecond

    def run(self, script: Script, calls: Sequence[ScriptCall]) -> list[Any]:
        return list(map(_raised, run_on(self._client, script, calls)))

    def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Send plain commands at once, and return the answers. An error includes the first argument of its command."""
        *answers, probed = _send(self._client, [*commands, _probe(commands[0][1])])
        _require_writes(probed)  # I6
        for command, answer in zip(commands, answers, strict=True):
            if isinstance(answer, Exception):
                raise type(answer)(f"{answer}: {command[1]}") from answer
        return answers

    def _clients(self) -> Iterable[Any]:
        return [self._client]

    _primary_clients = _clients


class RedisCluster(Servers):
    """The primaries of a Redis Cluster, each of which has some of the 16,384 slots for keys.

    ``seeds``: addresses of some of its servers. A demoted server, and one that has handed a slot over, does not execute
    a call but says where to send it.
    """

    keys_per_call = 1  # a call may not span slots

    def __init__(self, seeds: Sequence[Address], settings: dict[str, Any]) -> None:
        self._seeds = seeds
        self._settings = settings
        self._lock = threading.Lock()  # guards the two below; never held while a server is asked
        self._by_address: dict[Address, Any] = {}
        self._primaries: list[Address] = []  # by slot; empty if it is not known

    def run(self, script: Script, calls: Sequence[ScriptCall]) -> list[Any]:
        answers: list[Any] = [None] * len(calls)
        pending: Sequence[int] = range(len(calls))
        for attempt in range(_REDIRECTIONS):
            if attempt:
                self._forget_slots()
                time.sleep(_PAUSE * attempt)
            moved = []
            for address, numbers in self._by_primary(calls, pending).items():
                found = run_on(self._client(address), script, [calls[number] for number in numbers])
                for number, answer in zip(numbers, found, strict=True):
                    if isinstance(answer, AskError) and not isinstance(answer, MovedError):
                        answer = self._run_elsewhere(answer, script, calls[number])
                    if isinstance(answer, MovedError):
                        moved.append(number)
                    else:
                        answers[number] = _raised(answer)
            if not moved:
                return answers
            pending = moved
        raise ClusterDownError(f"the servers of {len(pending)} keys keep changing")

    def reconnect(self) -> None:
        self._forget_slots()
        super().reconnect()

    def _primary_clients(self) -> Iterable[Any]:
        return map(self._client, sorted(set(self._slots())))

    def _clients(self) -> Iterable[Any]:
        with self._lock:
            return list(self._by_address.values())

    def _by_primary(self, calls: Sequence[ScriptCall], pending: Sequence[int]) -> dict[Address, list[int]]:
        slots = self._slots()
        found: dict[Address, list[int]] = defaultdict(list)
        for number in pending:
            found[slots[key_slot(calls[number].keys[0].encode())]].append(number)
        return found

    def _run_elsewhere(self, error: AskError, script: Script, call: ScriptCall) -> Any:
        """Call a script on the server that takes over the call's slot and already has its key."""
        client = self._client((error.host, error.port))
        client.script_load(script.text)
        asked = ("ASKING",), _command(script, call), ("ASKING",), _probe(call.keys[0])
        _, answer, _, probed = _send(client, asked)
        _require_writes(probed)
        return answer

    def _client(self, address: Address) -> Any:
        with self._lock:
            if address not in self._by_address:
                host, port = address
                self._by_address[address] = redis.Redis(host=host, port=port, **self._settings)
            return self._by_address[address]

    def _forget_slots(self) -> None:
        with self._lock:
            self._primaries = []

    def _slots(self) -> list[Address]:
        """Return the primary of each slot, according to the first server that answers."""
        with self._lock:
            if self._primaries:
                return self._primaries
            known = list(dict.fromkeys([*self._by_address, *self._seeds]))
        problem: RedisError = ClusterDownError("no server is named")
        for address in known:
            try:
                slots = _slots_of(self._client(address).execute_command("CLUSTER", "SLOTS"), address)
            except RedisError as error:
                problem = error
                continue
            with self._lock:
                self._primaries = slots
            return slots
        raise problem


def _slots_of(answer: Any, asked: Address) -> list[Address]:
    """Return the primary of each slot from the answer to CLUSTER SLOTS. A server may not know its own host."""
    slots: dict[int, Address] = {}
    for first, last, (host, port, *_), *_ in answer:
        slots |= dict.fromkeys(range(first, last + 1), (host.decode() if host else asked[0], int(port)))
    if len(slots) < _SLOTS:
        raise ClusterDownError(f"{_SLOTS - len(slots)} slots of the cluster have no server")
    return [slots[slot] for slot in range(_SLOTS)]


def run_on(client: Any, script: Script, calls: Sequence[ScriptCall]) -> list[Any]:
    """Call a script on one server, in pipelines; load the script if the server lacks it. Return answers and errors."""
    answers: list[Any] = [None] * len(calls)
    pending: Sequence[int] = range(len(calls))
    while pending:
        missing = []
        for start in range(0, len(pending), _CALLS_PER_PIPELINE):
            part = pending[start : start + _CALLS_PER_PIPELINE]
            probed = calls[part[0]].keys[:1]
            found = _send(client, [*(_command(script, calls[n]) for n in part), *map(_probe, probed)])
            if probed:
                refusal = found.pop()
                if isinstance(refusal, AskError):  # that slot is elsewhere, so the error is not about this server
                    here = [n for n, answer in zip(part, found, strict=True) if not isinstance(answer, AskError)]
                    refusal = _send(client, [_probe(calls[here[0]].keys[0])])[0] if here else None
                _require_writes(refusal)  # I6
            for number, answer in zip(part, found, strict=True):
                if isinstance(answer, NoScriptError):
                    missing.append(number)  # not executed: the server is new, or its scripts were flushed
                else:
                    answers[number] = answer
        if missing:
            client.script_load(script.text)
        pending = missing
    return answers


def _probe(key: str) -> Command:
    """Return a write that changes nothing, because entries have no such field. An isolated server refuses it.

    A script would not tell: Redis 6 lets it write, and Redis 7 lets it read.
    """
    return ("HDEL", key, "")


def _require_writes(probed: Any) -> None:
    """Raise the answer to a probe if the server may have too few replicas, so that another may have replaced it.

    A server that gives a different reason may not have checked its replicas. But the calls themselves reveal that it is
    not a primary or lacks the slot, and it checks last whether a key is a hash.
    """
    if not isinstance(probed, Exception) or isinstance(probed, (AskError, ReadOnlyError)):
        return
    if not str(probed).startswith("WRONGTYPE "):
        raise probed


def _raised(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


def _send(client: Any, commands: Sequence[Command]) -> list[Any]:
    """Send commands at once, without the overhead of redis-py's pipelines. Return answers and errors."""
    pool = client.connection_pool
    connection = pool.get_connection()
    try:
        connection.send_packed_command([_packed(commands)])
        return [_answer(connection) for _ in commands]
    except BaseException:
        connection.disconnect()  # if a signal ended this, the next call must not read its answers
        raise
    finally:
        pool.release(connection)


def _packed(commands: Sequence[Command]) -> bytes:
    """Return commands in Redis' protocol (RESP): redis-py takes several times longer for this."""
    parts = []
    for command in commands:
        parts.append(b"*%d\r\n" % len(command))
        for each in command:
            word = each if type(each) is bytes else str(each).encode()
            parts.append(b"$%d\r\n%b\r\n" % (len(word), word))
    return b"".join(parts)


def _answer(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


def _command(script: Script, call: ScriptCall) -> Command:
    return ("EVALSHA", script.name, len(call.keys), *call.keys, *call.arguments)
