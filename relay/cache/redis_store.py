"""Redis as a store: one script for compare-and-set, pipelines, and a generation bound to the server's life.

An entry is a hash with the fields ``e`` (the entry's JSON) and ``v`` (the value). Works with one primary,
version 6 or newer; not with Redis Cluster, since a call of the script spans keys.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from struct import pack
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)
from redis.retry import Retry

from relay.cache.store import FOREVER, KEEP, ConditionalWrite, StoredEntry
from relay.errors import RelayError, Unavailable

# ARGV: ttl in milliseconds ('' keep, '0' none); '1' if there are values; lengths, 4 bytes each; and in one
# string, for each key, the expected meta ('' nothing), the new one ('' delete), the value if there are any.
# Returns, of the keys that did not stand as expected, the numbers, the lengths of what stands there, and that.
# Many texts travel as one: a client spends more on an argument or answer than Lua on a substring.
_COMPARE_AND_SET = """
local lengths, texts, position, at = ARGV[3], ARGV[4], 1, 1
local function take()
  local start, length = at, nil
  length, position = struct.unpack('>I4', lengths, position)
  at = start + length
  return string.sub(texts, start, at - 1)
end
local lost, sizes, found, n = {}, {}, {}, 0
for i = 1, #KEYS do
  local key, expected, meta = KEYS[i], take(), take()
  local value = ARGV[2] == '1' and take()
  local standing = redis.pcall('HGET', key, 'e') or ''
  if type(standing) == 'table' then
    return redis.error_reply(standing.err .. ': ' .. key)
  elseif standing ~= expected then
    n = n + 1
    lost[n], sizes[n], found[n] = i, #standing, standing
  elseif meta == '' then
    redis.call('DEL', key)
  else
    if value then
      redis.call('HSET', key, 'e', meta, 'v', value)
    else
      redis.call('HSET', key, 'e', meta)
      if expected ~= '' then
        redis.call('HDEL', key, 'v')
      end
    end
    if ARGV[1] == '0' then
      redis.call('PERSIST', key)
    elseif ARGV[1] ~= '' then
      redis.call('PEXPIRE', key, ARGV[1])
    end
  end
end
return {table.concat(lost, ' '), table.concat(sizes, ' '), table.concat(found)}
"""

_REPLACE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2]) end"

# Keys in a call of the script: few enough to hold the server up for about a millisecond.
_KEYS_PER_CALL = 256
_CALLS_PER_PIPELINE = 32
_READS_PER_PIPELINE = 1000
_VALUE_BYTES_PER_CALL = 1 << 20

_Call = tuple[list[str], list[bytes]]
_Ask = Callable[..., Any]
_T = TypeVar("_T")


class RedisStore:
    """A ``Store`` in Redis. Shared by threads; connects when first used. ``timeout``: seconds per answer.

    A generation names the life of the server (its run id) it was begun in. Each new connection compares,
    and replaces the generations of another life: a server that restarted from a snapshot, or a replica
    that took over, may have lost acknowledged invalidations and brought old values back (I6). No reader
    misses it, since its connection broke.
    """

    def __init__(self, url: str, *, timeout: float = 5.0) -> None:
        self.address = _without_password(url)
        self._script = ""
        self._run = ""
        self._generation_keys: set[str] = set()  # compared on each new connection
        self._settled: set[str] = set()  # compared at least once
        self._settling = threading.Lock()
        self._redis: Any = redis.Redis.from_url(  # its execute_command is untyped
            url,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            decode_responses=False,
            redis_connect_func=self._connected,
            # I6: a lease sent twice could stand twice, with an invalidation forgotten in between, and let
            # a fill sent twice through. So nothing is sent twice; callers try again with new nonces.
            retry=Retry(NoBackoff(), retries=0),
        )

    def __repr__(self) -> str:
        return f"<RedisStore[{self.address}]>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._redis.close()

    def read(self, keys: Sequence[str], generation_key: str) -> tuple[list[StoredEntry | None], str]:
        with self._errors():
            self._know(generation_key)
            entries: list[StoredEntry | None] = []
            raw = None
            for part in _parts(keys, _READS_PER_PIPELINE) or [[]]:
                pipeline = self._redis.pipeline(transaction=False)
                for key in part:
                    pipeline.execute_command("HMGET", key, "e", "v")
                # Last, so that entry and generation were both current when the entry was read (I6).
                pipeline.execute_command("GET", generation_key)
                *found, raw = pipeline.execute()
                entries += [None if meta is None else StoredEntry(meta, value) for meta, value in found]
            return entries, self._begin(generation_key) if raw is None else raw.decode()

    def compare_and_set(self, writes: Sequence[ConditionalWrite]) -> dict[str, bytes | None]:
        lost: dict[str, bytes | None] = {}
        with self._errors():
            calls = list(_calls(writes))
            for part in _parts(calls, _CALLS_PER_PIPELINE):
                for (keys, _), (numbers, lengths, found) in zip(part, self._run_scripts(part), strict=True):
                    at = 0
                    for number, length in zip(numbers.split(), map(int, lengths.split()), strict=True):
                        lost[keys[int(number) - 1]] = found[at : at + length] or None
                        at += length
        return lost

    def generation(self, generation_key: str) -> str:
        with self._errors():
            self._know(generation_key)
            raw = self._redis.execute_command("GET", generation_key)
            return self._begin(generation_key) if raw is None else str(raw.decode())

    def renew(self, generation_key: str) -> str:
        with self._errors():
            self._know(generation_key)
            generation = self._fresh()
            self._redis.execute_command("SET", generation_key, generation)
            return generation

    def _begin(self, generation_key: str) -> str:
        """Begin a generation where there is none; another process may be faster, then it is its one."""
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.execute_command("SET", generation_key, self._fresh(), "NX")
        pipeline.execute_command("GET", generation_key)
        return str(pipeline.execute()[1].decode())

    def _fresh(self) -> str:
        return f"{self._run}-{secrets.token_hex(8)}"

    def _run_scripts(self, calls: Sequence[_Call]) -> list[Any]:
        """Run the script for each call, in one pipeline, loading it where the server does not have it."""
        answers: list[Any] = [None] * len(calls)
        left = list(range(len(calls)))
        while left:
            if not self._script:
                self._script = str(self._redis.script_load(_COMPARE_AND_SET))
            pipeline = self._redis.pipeline(transaction=False)
            for number in left:
                keys, arguments = calls[number]
                pipeline.execute_command("EVALSHA", self._script, len(keys), *keys, *arguments)
            missing = []
            for number, answer in zip(left, pipeline.execute(raise_on_error=False), strict=True):
                if isinstance(answer, NoScriptError):
                    missing.append(number)
                elif isinstance(answer, Exception):
                    raise answer
                else:
                    answers[number] = answer
            if missing:
                self._script = ""  # the server restarted, or its scripts were flushed
            left = missing
        return answers

    def _know(self, generation_key: str) -> None:
        """Watch over a generation from its first use on."""
        if generation_key in self._settled:
            return
        with self._settling:
            self._generation_keys.add(generation_key)
            self._settle(self._redis.execute_command, [generation_key])
            self._settled.add(generation_key)

    def _connected(self, connection: Any) -> None:
        """Set up a new connection before anything is asked over it."""
        connection.on_connect()

        def ask(*command: Any) -> Any:
            connection.send_command(*command, check_health=False)
            return connection.read_response()

        self._settle(ask, sorted(self._generation_keys))

    def _settle(self, ask: _Ask, generation_keys: Iterable[str]) -> None:
        """Replace the generations begun in another life of the server. Of many who try, one does."""
        self._run = _run_id(ask("INFO", "server"))
        for key in generation_keys:
            standing = ask("GET", key)
            if standing is not None and not standing.startswith(f"{self._run}-".encode()):
                ask("EVAL", _REPLACE, 1, key, standing, self._fresh())  # I6, I9

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (RedisConnectionError, RedisTimeoutError, ReadOnlyError, OutOfMemoryError) as error:
            raise Unavailable(f"Redis at {self.address}: {error}") from error
        except RedisError as error:
            raise RelayError(f"Redis at {self.address}: {error}") from error


def _calls(writes: Sequence[ConditionalWrite]) -> Iterator[_Call]:
    """Return keys and arguments of the script's calls that make the writes."""
    for (ttl, valued), group in groupby(sorted(writes, key=_kind), key=_kind):
        head = (_milliseconds(ttl), b"1" if valued else b"0")
        keys: list[str] = []
        texts: list[bytes] = []
        size = 0
        for write in group:
            keys.append(write.key)
            texts += (write.expected or b"", write.meta or b"")
            if write.value is not None:
                texts.append(write.value)
                size += len(write.value)
            if len(keys) == _KEYS_PER_CALL or size > _VALUE_BYTES_PER_CALL:
                yield keys, [*head, *_joined(texts)]
                keys, texts, size = [], [], 0
        if keys:
            yield keys, [*head, *_joined(texts)]


def _joined(texts: Sequence[bytes]) -> tuple[bytes, bytes]:
    return pack(f">{len(texts)}I", *map(len, texts)), b"".join(texts)


def _kind(write: ConditionalWrite) -> tuple[float, bool]:
    return write.ttl, write.value is not None


def _milliseconds(ttl: float) -> bytes:
    if ttl == KEEP:
        return b""
    return b"0" if ttl == FOREVER else str(max(1, round(ttl * 1000))).encode()


def _parts(items: Sequence[_T], size: int) -> list[Sequence[_T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _run_id(info: Any) -> str:
    """Return the id of this life of the server from ``INFO server``, text or already parsed."""
    if isinstance(info, dict):
        return str(info.get("run_id", ""))
    for line in info.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == b"run_id":
            return str(value.decode())
    return ""


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
