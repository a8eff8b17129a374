"""Redis as a store: an entry is a hash with the fields ``e`` (the entry's JSON) and ``v`` (the value).

The key of a generation has its id and the runs of the primaries on which it is valid.
"""

import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from struct import pack

from redis import exceptions

from relay.cache.redis_servers import Script, ScriptCall, Single, open_servers
from relay.cache.store import FOREVER, KEEP, ConditionalWrite, RemoteStore, StoredEntry, random_keys
from relay.errors import RelayError, StoreFull, Unavailable
from relay.process.store_memory import ServerMemory

_NOT_PRIMARY = "READONLY this server is not a primary"
_CUT_OFF = "NOREPLICAS Not enough good replicas: this server may have been cut off and replaced"
# I6: a connection may lead to a different server than before, behind a proxy, or to a demoted one. So each call asks
# for the role and the run: the replication id is new in each start of a primary, and when a replica becomes one.
_ROLE = f"""
local info = redis.call('INFO', 'replication')
if not string.find(info, 'role:master', 1, true) then
  return redis.error_reply('{_NOT_PRIMARY}')
elseif string.find(info, 'min_slaves_good_slaves:0', 1, true) then
  return redis.error_reply('{_CUT_OFF}')
end
"""


def _script(after_role: str) -> Script:
    return Script(_ROLE + after_role)


# KEYS: entries, and last a generation if ARGV[1] is '1'. Returns the two fields of each, the generation, and the run.
_READ = _script("""
local found, entries = {}, #KEYS - ARGV[1]
for i = 1, entries do
  local fields = redis.pcall('HMGET', KEYS[i], 'e', 'v')
  if fields.err and not string.find(fields.err, 'WRONGTYPE', 1, true) then
    return redis.error_reply(fields.err .. ': ' .. KEYS[i])
  end
  found[2 * i - 1], found[2 * i] = fields[1] or false, fields[2] or false
end
local generation = ARGV[1] == '1' and redis.pcall('GET', KEYS[#KEYS])
if type(generation) == 'table' then
  return redis.error_reply(generation.err .. ': ' .. KEYS[#KEYS])
end
found[2 * entries + 1] = generation
found[2 * entries + 2] = string.match(info, 'master_replid:(%x+)') or ''
return found
""")

# Returns the run, and what tells losses: how many entries the server has evicted and how often it was flushed, in one
# number, @ how many bytes it has received.
_STATE = _script("""
local stats = redis.call('INFO', 'stats')
local losses = tonumber(string.match(stats, 'evicted_keys:(%d+)'))
for flushes in string.gmatch(redis.call('INFO', 'commandstats'), 'cmdstat_flush%a+:calls=(%d+)') do
  losses = losses + tonumber(flushes)
end
local received = string.match(stats, 'total_net_input_bytes:(%d+)') or '0'
return {string.match(info, 'master_replid:(%x+)') or '', string.format('%d@%s', losses, received)}
""")

# ARGV: the expected text ('' for none), '1' to write whatever is there, the new text. Returns the current text.
_REPLACE = _script("""
local current = redis.call('GET', KEYS[1]) or ''
if current ~= ARGV[1] and ARGV[2] ~= '1' then
  return current
end
-- I6: first, so that a server without room for the new one keeps no old one.
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], ARGV[3])
return ARGV[3]
""")

# ARGV: ttl in milliseconds ('' keeps it, '0' is none); '1' if the writes have values; lengths, 4 bytes each; and one
# string with, for each key, the expected meta ('' for no entry), the new meta ('' to delete) and, if any, the value.
# Returns the numbers of the keys whose meta was not the expected one, the lengths of their metas, the metas, and the
# numbers of the keys that there is no room for, and of those that another program wrote, which are only ever deleted.
# Many texts travel as one string, since an argument costs the client more than a substring costs Lua.
_COMPARE_AND_SET = _script("""
local lengths, texts, position, at = ARGV[3], ARGV[4], 1, 1
local function take()
  local start, length = at, nil
  length, position = struct.unpack('>I4', lengths, position)
  at = start + length
  return string.sub(texts, start, at - 1)
end
local conflicts, sizes, found, n, refused, foreign = {}, {}, {}, 0, {}, {}
for i = 1, #KEYS do
  local key, expected, meta = KEYS[i], take(), take()
  local value = ARGV[2] == '1' and take()
  local current = redis.pcall('HGET', key, 'e') or ''
  local is_foreign = type(current) == 'table'
  if is_foreign and not string.find(current.err, 'WRONGTYPE', 1, true) then
    return redis.error_reply(current.err .. ': ' .. key)
  elseif is_foreign then
    current = ''
  end
  if current ~= expected then
    n = n + 1
    conflicts[n], sizes[n], found[n] = i, #current, current
  elseif meta == '' then
    redis.call('DEL', key)
  elseif is_foreign then
    foreign[#foreign + 1] = i
  else
    local made = value and redis.pcall('HSET', key, 'e', meta, 'v', value) or redis.pcall('HSET', key, 'e', meta)
    if type(made) == 'table' and string.find(made.err, 'OOM ', 1, true) then
      refused[#refused + 1] = i
    elseif type(made) == 'table' then
      return redis.error_reply(made.err .. ': ' .. key)
    else
      if not value and expected ~= '' then
        redis.call('HDEL', key, 'v')
      end
      if ARGV[1] == '0' then
        redis.call('PERSIST', key)
      elseif ARGV[1] ~= '' then
        redis.call('PEXPIRE', key, ARGV[1])
      end
    end
  end
end
return {
  table.concat(conflicts, ' '), table.concat(sizes, ' '), table.concat(found), table.concat(refused, ' '),
  table.concat(foreign, ' ')
}
""")

_RUN = re.compile(rb"master_replid:([0-9a-f]+)")
_VALUE_BYTES_PER_CALL = 1 << 20
_RUN_LENGTH = 16  # characters of a replication id's 40: enough to tell the runs of one Redis apart
_ATTEMPTS = 10  # attempts to read a generation that others replace
# Errors of a server that may recover later, or that another one has replaced. Older servers wrap scripts' errors.
_TEMPORARY = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
)
_TEMPORARY_TEXT = re.compile("(?:^|: -)(?:BUSY|READONLY|MASTERDOWN|NOREPLICAS|MISCONF|OOM) ")


_Found = tuple[list[StoredEntry | None], str, set[str]]
"""Entries, the text of the generation ('' for none), and the runs of the servers that answered."""


class RedisStore(RemoteStore):
    """A ``Store`` in Redis. Threads may share it. It connects when first used. ``timeout``: seconds per answer.

    ``url``: ``redis://host:port/db``, ``redis+sentinel://host:port,host:port/service/db``, with Sentinel's hosts,
    ``redis+cluster://host:port,host:port``; with ``rediss`` these use TLS; ``unix://path``.

    A generation ends with the runs of the primaries that it began on. A server that restarted from a snapshot, or a
    replica that took over, may have lost acknowledged invalidations and restored old values (I6); it has a new run.
    """

    def __init__(self, url: str, *, timeout: float = 5.0) -> None:
        super().__init__(url)
        self._servers = open_servers(url, timeout)

    def close(self) -> None:
        self._servers.close()

    def read(self, keys: Sequence[str], generation_key: str) -> tuple[list[StoredEntry | None], str]:
        with self._errors():
            for _ in range(_ATTEMPTS):
                entries, generation, runs = self._read_once(keys, generation_key)
                name, _, valid = generation.partition(" ")
                if name and runs <= set(valid.split()):
                    return entries, name
                # I6: it began on other runs, or there is none. If several processes replace it, one succeeds.
                self._replace(generation_key, generation)
        raise RelayError(
            f"the generation {generation_key} in Redis at {self.address} keeps changing: check what else writes to it"
        )

    def compare_and_set(self, writes: Sequence[ConditionalWrite]) -> dict[str, bytes | None]:
        conflicts: dict[str, bytes | None] = {}
        refused: dict[str, str] = {}
        with self._errors():
            calls = list(_calls(writes, self._servers.keys_per_call))
            answers = self._servers.run(_COMPARE_AND_SET, calls)
            for call, (numbers, lengths, metas, full, others) in zip(calls, answers, strict=True):
                for key in _named(call, full):
                    refused[key] = "its memory is full: see its maxmemory and policy"
                for key in _named(call, others):
                    hint = "give it another database or namespace"
                    refused[key] = f"another program has written to the cache key {key}: {hint}"
                start = 0
                for key, length in zip(_named(call, numbers), map(int, lengths.split()), strict=True):
                    conflicts[key] = metas[start : start + length] or None
                    start += length
        if refused:
            raise StoreFull(f"Redis at {self.address}: {next(iter(refused.values()))}", refused, conflicts)
        return conflicts

    def renew(self, generation_key: str) -> str:
        with self._errors():
            return self._replace(generation_key, None).partition(" ")[0]

    def sample(self, prefix: str, count: int) -> list[str]:
        pattern = "".join(f"\\{each}" if each in "\\*?[]^" else each for each in prefix) + "*"
        with self._errors():
            return random_keys((key.decode(errors="replace") for key in self._servers.scan(pattern)), count)

    def losses(self) -> str:
        """Return an answer that tells whether a server has evicted entries, was flushed, or restarted."""
        with self._errors():
            return " ".join(sorted(f"{run}:{losses}" for run, losses in self._states()))

    def memory(self) -> list[ServerMemory]:
        with self._errors():
            return list(self._servers.memory())

    def _read_once(self, keys: Sequence[str], generation_key: str) -> _Found:
        if len(keys) == 1 and isinstance(self._servers, Single):
            try:
                return self._read_one(self._servers, keys[0], generation_key)
            except exceptions.ResponseError as error:
                if not str(error).startswith("WRONGTYPE "):  # another program's key, which the script skips
                    raise
        count = self._servers.keys_per_call
        parts = [keys[start : start + count] for start in range(0, len(keys), count)]
        last = [*parts.pop(), generation_key] if parts and count > 1 else [generation_key]
        answers = self._servers.run(_READ, [ScriptCall(part, [b"0"]) for part in parts])
        # Last, so that the generation was still current after the entries were read (I6).
        answers += self._servers.run(_READ, [ScriptCall(last, [b"1"])])
        entries: list[StoredEntry | None] = []
        runs = set()
        for *fields, _, run in answers:
            pairs = zip(fields[::2], fields[1::2], strict=True)
            entries += [None if meta is None else StoredEntry(meta, value) for meta, value in pairs]
            runs.add(self._run(run))
        return entries, (answers[-1][-2] or b"").decode(), runs

    def _read_one(self, server: Single, key: str, generation_key: str) -> _Found:
        """Read one entry by plain commands, which take the server and the client less time than the script."""
        # In this order, so that generation, role and run were still those after the entry was read (I6).
        asked = ("HMGET", key, "e", "v"), ("GET", generation_key), ("INFO", "replication")
        (meta, value), generation, info = server.ask(asked)
        if b"role:master" not in info:  # I6
            raise exceptions.ReadOnlyError(_NOT_PRIMARY)
        if b"min_slaves_good_slaves:0" in info:  # I6
            raise exceptions.ResponseError(_CUT_OFF)
        run = _RUN.search(info)
        entry = None if meta is None else StoredEntry(meta, value)
        return [entry], (generation or b"").decode(), {self._run(run[1] if run else b"")}

    def _replace(self, generation_key: str, expected: str | None) -> str:
        """Begin a generation if the text is the expected one ('' for none, None for any); return the current text."""
        text = " ".join([secrets.token_hex(8), *sorted(run for run, _ in self._states())])
        arguments = [(expected or "").encode(), b"1" if expected is None else b"0", text.encode()]
        return str(self._servers.run(_REPLACE, [ScriptCall([generation_key], arguments)])[0].decode())

    def _states(self) -> list[tuple[str, str]]:
        """Return the run of each primary, with its answer about losses."""
        return [(self._run(run), losses.decode()) for run, losses in self._servers.run_on_each(_STATE)]

    def _run(self, found: bytes) -> str:
        if not found:
            raise RelayError(
                f"Redis at {self.address} lacks `master_replid` in INFO replication, so failovers and restarts would "
                "go unnoticed: it cannot be used"
            )
        return found[:_RUN_LENGTH].decode()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except exceptions.RedisError as error:
            if isinstance(error, _TEMPORARY) or _TEMPORARY_TEXT.search(str(error)):
                self._servers.reconnect()
                raise Unavailable(f"Redis at {self.address} is not available: {error}") from error
            if isinstance(error, (exceptions.AskError, exceptions.ClusterCrossSlotError)):
                hint = "use redis+cluster:// or rediss+cluster:// in its URL"
                raise RelayError(f"Redis at {self.address} is a cluster ({error}): {hint}") from error
            raise RelayError(f"Redis at {self.address} refused a command: {error}") from error


def _calls(writes: Sequence[ConditionalWrite], keys_per_call: int) -> Iterator[ScriptCall]:
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
            if len(keys) == keys_per_call or size > _VALUE_BYTES_PER_CALL:
                yield ScriptCall(keys, [*head, *_joined(texts)])
                keys, texts, size = [], [], 0
        if keys:
            yield ScriptCall(keys, [*head, *_joined(texts)])


def _joined(texts: Sequence[bytes]) -> tuple[bytes, bytes]:
    return pack(f">{len(texts)}I", *map(len, texts)), b"".join(texts)


def _named(call: ScriptCall, numbers: bytes) -> list[str]:
    return [call.keys[int(number) - 1] for number in numbers.split()]


def _kind(write: ConditionalWrite) -> tuple[float, bool]:
    return write.ttl, write.value is not None


def _milliseconds(ttl: float) -> bytes:
    if ttl == KEEP:
        return b""
    return b"0" if ttl == FOREVER else str(max(1, round(ttl * 1000))).encode()
