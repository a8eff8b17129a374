"""The servers behind the URL of a Redis: one server, or the one that Sentinel names, or a cluster.

They run scripts, and send each call once: a lease that is written twice could come back after an invalidation, and let
a value from before it through (I6). What is sent again is only what a server has said that it did not execute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha1
from typing import Any, NamedTuple, Protocol

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError
from redis.retry import Retry

_CALLS_PER_PIPELINE = 32
_KEYS_PER_SCAN = 1000


class Script:
    """A script, and the name by which a server knows it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.name = sha1(text.encode(), usedforsecurity=False).hexdigest()


class ScriptCall(NamedTuple):
    """One call of a script."""

    keys: Sequence[str]
    arguments: Sequence[bytes] = ()


class Servers(Protocol):
    """Where scripts run. Shared by threads; connects when first used. Methods raise redis-py's errors."""

    keys_per_call: int
    """The most keys that a call of a script may have."""

    def run(self, script: Script, calls: Sequence[ScriptCall]) -> list[Any]:
        """Call a script on the primaries of the keys, and return the answers."""

    def run_on_each(self, script: Script) -> list[Any]:
        """Call a script without keys on each primary."""

    def scan(self, pattern: str) -> Iterator[bytes]:
        """Yield the keys of entries, which are hashes, that match; some perhaps twice."""

    def reconnect(self) -> None:
        """Make new connections from now on, to the servers that are primaries then."""

    def close(self) -> None: ...


def open_servers(url: str, timeout: float) -> Servers:
    """Return the servers of a URL. ``timeout``: seconds for a connection, and for an answer."""
    # I6: nothing is sent twice; callers retry with new nonces.
    settings = {"retry": Retry(NoBackoff(), retries=0)}
    return Single(redis.Redis.from_url(url, socket_timeout=timeout, socket_connect_timeout=timeout, **settings))


class Single:
    """One primary at a time."""

    # Few enough to occupy the server for about a millisecond.
    keys_per_call = 256

    def __init__(self, client: Any) -> None:
        self._client = client

    def run(self, script: Script, calls: Sequence[ScriptCall]) -> list[Any]:
        answers = run_on(self._client, script, calls)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def run_on_each(self, script: Script) -> list[Any]:
        return self.run(script, [ScriptCall(())])

    def scan(self, pattern: str) -> Iterator[bytes]:
        return scan_one(self._client, pattern)

    def reconnect(self) -> None:
        self._client.connection_pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        self._client.close()


def run_on(client: Any, script: Script, calls: Sequence[ScriptCall]) -> list[Any]:
    """Call a script on one server, in pipelines, and load it if the server lacks it. Return answers and errors."""
    answers: list[Any] = [None] * len(calls)
    pending: Sequence[int] = range(len(calls))
    while pending:
        missing = []
        for start in range(0, len(pending), _CALLS_PER_PIPELINE):
            part = pending[start : start + _CALLS_PER_PIPELINE]
            for number, answer in zip(part, _send(client, script, [calls[n] for n in part]), strict=True):
                if isinstance(answer, NoScriptError):
                    missing.append(number)  # not executed: the server is new, or its scripts were flushed
                else:
                    answers[number] = answer
        if missing:
            client.script_load(script.text)
        pending = missing
    return answers


def scan_one(client: Any, pattern: str) -> Iterator[bytes]:
    """Yield the keys of hashes on one server that match a pattern."""
    yield from client.scan_iter(match=pattern, count=_KEYS_PER_SCAN, _type="hash")


def _send(client: Any, script: Script, calls: Sequence[ScriptCall]) -> list[Any]:
    commands = [("EVALSHA", script.name, len(call.keys), *call.keys, *call.arguments) for call in calls]
    if len(commands) == 1:  # without what a pipeline costs
        try:
            return [client.execute_command(*commands[0])]
        except redis.ResponseError as error:
            return [error]
    pipeline = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    return list(pipeline.execute(raise_on_error=False))
