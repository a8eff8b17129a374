"""Redis as a store: compare-and-set by one script, in pipelines, and generations bound to the server's run.

An entry is a hash with the fields ``e`` (the entry's JSON) and ``v`` (the value). It needs one primary, version 6 or
newer, and not Redis Cluster, since a call of the script spans keys.
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

from relay.cache.store import FOREVER, KEEP, ConditionalWrite, StoredEntry, random_keys
from relay.errors import RelayError, Unavailable

# ARGV: ttl in milliseconds ('' keeps it, '0' is none); '1' if the writes have values; lengths, 4 bytes each; and one
# string with, for each key, the expected meta ('' for no entry), the new meta ('' to delete) and, if any, the value.
# Returns the numbers of the keys whose meta was not the expected one, the lengths of their metas, and the metas.
# Many texts travel as one string, since an argument costs the client more than a substring costs Lua.
_COMPARE_AND_SET = """
local lengths, texts, position, at = ARGV[3], ARGV[4], 1, 1
local function take()
  local start, length = at, nil
  length, position = struct.unpack('>I4', lengths, position)
  at = start + length
  return string.sub(texts, start, at - 1)
end
local conflicts, sizes, found, n = {}, {}, {}, 0
for i = 1, #KEYS do
  local key, expected, meta = KEYS[i], take(), take()
  local value = ARGV[2] == '1' and take()
  local current = redis.pcall('HGET', key, 'e') or ''
  if type(current) == 'table' then
    return redis.error_reply(current.err .. ': ' .. key)
  elseif current ~= expected then
    n = n + 1
    conflicts[n], sizes[n], found[n] = i, #current, current
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
return {table.concat(conflicts, ' '), table.concat(sizes, ' '), table.concat(found)}
"""

_REPLACE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2]) end"

# Keys in a call of the script: few enough to occupy the server for about a millisecond.
_KEYS_PER_CALL = 256
_CALLS_PER_PIPELINE = 32
_READS_PER_PIPELINE = 1000
_KEYS_PER_SCAN = 1000
_VALUE_BYTES_PER_CALL = 1 << 20

_Call = tuple[list[str], list[bytes]]
_Ask = Callable[..., Any]
_T = TypeVar("_T")


class RedisStore:
    """A ``Store`` in Redis. Shared by threads; connects when first used. ``timeout``: seconds per answer.

    A generation starts with the run id of the server on which it began. Each new connection compares it, and replaces
    the generations of another run: a server that restarted from a snapshot, or a replica that took over, may have lost
    acknowledged invalidations and restored old values (I6). No reader misses the replacement, since its connection
    broke.
    """

    def __init__(self, url: str, *, timeout: float = 5.0) -> None:
        self.address = _without_password(url)
        # Any thread sets these two, without a lock: an outdated script costs another round trip, and an outdated run id
        # a generation that the next connection replaces.
        self._script = ""
        self._run_id = ""
        self._lock = threading.Lock()  # guards the two sets below; never held while the server is asked
        self._generation_keys: set[str] = set()  # compared on each new connection
        self._compared: set[str] = set()  # those compared at least once
        self._redis: Any = redis.Redis.from_url(  # its execute_command is untyped
            url,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            decode_responses=False,
            redis_connect_func=self._on_connect,
            # I6: a lease that is sent twice could be written again after an invalidation was evicted, and then let a
            # fill through that is sent twice. So nothing is sent twice; callers retry with new nonces.
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
            self._check_once(generation_key)
            entries: list[StoredEntry | None] = []
            raw = None
            for part in _parts(keys, _READS_PER_PIPELINE) or [[]]:
                pipeline = self._redis.pipeline(transaction=False)
                for key in part:
                    pipeline.execute_command("HMGET", key, "e", "v")
                # Last, so that the generation was still current after the entries were read (I6).
                pipeline.execute_command("GET", generation_key)
                *found, raw = pipeline.execute()
                entries += [None if meta is None else StoredEntry(meta, value) for meta, value in found]
            return entries, self._begin_generation(generation_key) if raw is None else raw.decode()

    def compare_and_set(self, writes: Sequence[ConditionalWrite]) -> dict[str, bytes | None]:
        conflicts: dict[str, bytes | None] = {}
        with self._errors():
            calls = list(_calls(writes))
            for part in _parts(calls, _CALLS_PER_PIPELINE):
                for (keys, _), (numbers, lengths, metas) in zip(part, self._run_scripts(part), strict=True):
                    start = 0
                    for number, length in zip(numbers.split(), map(int, lengths.split()), strict=True):
                        conflicts[keys[int(number) - 1]] = metas[start : start + length] or None
                        start += length
        return conflicts

    def generation(self, generation_key: str) -> str:
        with self._errors():
            self._check_once(generation_key)
            raw = self._redis.execute_command("GET", generation_key)
            return self._begin_generation(generation_key) if raw is None else str(raw.decode())

    def renew(self, generation_key: str) -> str:
        with self._errors():
            self._check_once(generation_key)
            generation = self._new_generation()
            self._redis.execute_command("SET", generation_key, generation)
            return generation

    def sample(self, prefix: str, count: int) -> list[str]:
        pattern = "".join(f"\\{each}" if each in "\\*?[]^" else each for each in prefix) + "*"
        with self._errors():
            found = self._redis.scan_iter(match=pattern, count=_KEYS_PER_SCAN, _type="hash")
            return random_keys((key.decode(errors="replace") for key in found), count)

    def _begin_generation(self, generation_key: str) -> str:
        """Begin a generation if there is none; return the one that another process began meanwhile."""
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.execute_command("SET", generation_key, self._new_generation(), "NX")
        pipeline.execute_command("GET", generation_key)
        return str(pipeline.execute()[1].decode())

    def _new_generation(self) -> str:
        return f"{self._run_id}-{secrets.token_hex(8)}"

    def _run_scripts(self, calls: Sequence[_Call]) -> list[Any]:
        """Run the script for each call, in one pipeline, and load it where the server lacks it."""
        answers: list[Any] = [None] * len(calls)
        pending = list(range(len(calls)))
        while pending:
            script = self._script
            if not script:
                script = self._script = str(self._redis.script_load(_COMPARE_AND_SET))
            pipeline = self._redis.pipeline(transaction=False)
            for number in pending:
                keys, arguments = calls[number]
                pipeline.execute_command("EVALSHA", script, len(keys), *keys, *arguments)
            missing = []
            for number, answer in zip(pending, pipeline.execute(raise_on_error=False), strict=True):
                if isinstance(answer, NoScriptError):
                    missing.append(number)
                elif isinstance(answer, Exception):
                    raise answer
                else:
                    answers[number] = answer
            if missing:
                self._script = ""  # the server restarted, or its scripts were flushed
            pending = missing
        return answers

    def _check_once(self, generation_key: str) -> None:
        """Check a generation on its first use, and from then on with each new connection."""
        with self._lock:
            if generation_key in self._compared:
                return
            self._generation_keys.add(generation_key)
        # Several threads may do so at once; each goes on only after a check of its own.
        self._replace_generations_of_other_runs(self._redis.execute_command, [generation_key])
        with self._lock:
            self._compared.add(generation_key)

    def _on_connect(self, connection: Any) -> None:
        """Set up a new connection before its first command."""
        connection.on_connect()

        def ask(*command: Any) -> Any:
            connection.send_command(*command, check_health=False)
            return connection.read_response()

        with self._lock:
            generation_keys = sorted(self._generation_keys)
        self._replace_generations_of_other_runs(ask, generation_keys)

    def _replace_generations_of_other_runs(self, ask: _Ask, generation_keys: Iterable[str]) -> None:
        """Replace the generations that began in another run of the server. If several try, one succeeds."""
        run_id = self._run_id = _parse_run_id(ask("INFO", "server"))
        for key in generation_keys:
            current = ask("GET", key)
            if current is not None and not current.startswith(f"{run_id}-".encode()):
                ask("EVAL", _REPLACE, 1, key, current, self._new_generation())  # I6, I9

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (RedisConnectionError, RedisTimeoutError, ReadOnlyError, OutOfMemoryError) as error:
            raise Unavailable(f"Redis at {self.address} is not available: {error}") from error
        except RedisError as error:
            raise RelayError(f"Redis at {self.address} refused a command: {error}") from error


def _calls(writes: Sequence[ConditionalWrite]) -> Iterator[_Call]:
    """Yield the keys and arguments of the script's calls that make the writes."""
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


def _parse_run_id(info: Any) -> str:
    """Return the server's run id from the answer to ``INFO server``, text or already parsed."""
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
