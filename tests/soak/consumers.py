"""The consumers part: cache, log and copy as processes that are killed, a Redis that is killed, and an application."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import orjson

from relay.cache import RedisStore, State, TokenCache, entry_key, generation_key
from relay.cache.entry import decode
from relay.config import Config, load
from relay.kafka import topics
from relay.services.redis import RedisServer
from tests.faults.harness import Relay
from tests.soak.application import Application
from tests.soak.part import Fault, Item, Part
from tests.soak.topic import AppliedTimes, TopicCheck
from tests.waiting import wait_until

CONSUMERS = ("cache", "log", "copy")
NAMESPACE = "soak"

_TOPICS_WITHIN = 120.0
_STOP_WITHIN = 120.0
_CATCH_UP_WITHIN = 1800.0
_READ_BACK_WITHIN = 900.0
# Exit codes of consumers that were not killed: a stop, something that was away for too long, a stop before anything was
# begun.
_EXPECTED_CODES = {0, 3, -signal.SIGTERM}
_NOT_DRAINED = 143
_SHOWN = 5


@dataclass
class Found:
    """What became of cache, log and copy. ``stale``: reads."""

    reads: int = 0
    hits: int = 0
    stale: int = 0
    problems: list[str] = field(default_factory=list)


class Consumers:
    """The processes, Redis, and the application's threads."""

    def __init__(self, path: Path, seed: int) -> None:
        self.problems: list[str] = []
        self._path = path
        self._chance = random.Random(f"consumers/{seed}")
        self._seed = seed
        self._redis = RedisServer()
        self._running: dict[str, Relay] = {}
        # Where the log of the process that runs begins, and where logs were when the broker came back.
        self._begun: dict[str, int] = {}
        self._broker_back: dict[str, int] = {}
        self.applications: list[Application] = []

    def __enter__(self) -> Self:
        self._redis.start()
        return self

    def __exit__(self, *error: object) -> None:
        for application in self.applications:
            application.end()
        for process in self._running.values():
            process.kill()
        self._redis.stop()

    def config(self, parts: Sequence[Part]) -> dict[str, Any]:
        keys = {part.table: [part.cache_key] for part in parts}
        folder = self._path.parent
        return {
            "cache": {"url": self._redis.url, "namespace": NAMESPACE, "keys": keys, "tombstone_ttl": "1h"},
            "log": {"path": f"file://{folder}/log"},
            "copy": {"url": f"delta://{folder}/copy"},
        }

    def start(self, parts: Sequence[Part]) -> None:
        """Start all, once there are topics."""
        config = load(self._path)
        admin = topics.connect(config)
        wanted = {topic.name for topic in topics.required(config, [part.table for part in parts])}
        wait_until(lambda: wanted <= admin.list_topics(timeout=60).topics.keys() or None, _TOPICS_WITHIN)
        for consumer in CONSUMERS:
            self._start(consumer)
        for part in parts:
            application = Application(part, self._cache(), self._seed)
            application.start()
            self.applications.append(application)

    def faults(self) -> list[Fault]:
        """Rarely: a start of Spark costs twenty seconds of a core."""
        kills = [Fault(name, 0.4, lambda name=name: self._kill(name)) for name in CONSUMERS]  # type: ignore[misc]
        return [Fault("redis", 0.6, self._kill_redis), *kills]

    def revive(self) -> None:
        for consumer, process in self._running.items():
            if not process.is_running:
                self._expect(consumer, process.wait(1), process)
                self._start(consumer)

    def finish(self) -> AppliedTimes:
        """Let all consumers apply the rest, and return when the cache's did."""
        for application in self.applications:
            application.end()
        for consumer, process in self._running.items():
            waits = self._waits_for_broker(consumer)
            try:
                code = process.stop(timeout=_STOP_WITHIN)
                if code != _NOT_DRAINED or not waits:
                    self._expect(consumer, code, process)
            except AssertionError as error:
                self.problems.append(f"the consumer {consumer} does not stop: {error}")
        for consumer in CONSUMERS:
            self._start(consumer, "--until-caught-up")
        for consumer, process in self._running.items():
            try:
                code = process.wait(_CATCH_UP_WITHIN)
            except subprocess.TimeoutExpired:
                where = process.where_it_hangs()
                self.problems.append(f"the consumer {consumer} is not caught up after {_CATCH_UP_WITHIN} s: {where}")
            else:
                if code != 0:
                    self.problems.append(f"the last {consumer} ended with exit code {code}: {process.log()}")
        return AppliedTimes(self.log("cache"))

    # ------------------------------------------------------------------ faults

    def note_broker_back(self) -> None:
        self._broker_back = {consumer: self.log(consumer).stat().st_size for consumer in self._running}

    def _waits_for_broker(self, consumer: str) -> bool:
        """Whether its process may still be in the batch that it was in while there was no broker."""
        back = self._broker_back.get(consumer, -1)
        return back >= self._begun[consumer] and not self._has_applied(consumer, back)

    def _has_applied(self, consumer: str, since: int) -> bool:
        with self.log(consumer).open("rb") as log:
            log.seek(since)
            return b'"event": "batch"' in log.read()

    def _kill(self, consumer: str) -> None:
        # One that never lives long enough would not get anywhere.
        if self._has_applied(consumer, self._begun[consumer]) or self._chance.random() < 0.3:
            self._running[consumer].kill()
            self._start(consumer)

    def _kill_redis(self) -> None:
        self._redis.kill()
        time.sleep(self._chance.choice((0.0, 0.5, 3.0)))
        self._redis.restart()

    def _start(self, consumer: str, *arguments: str) -> None:
        checkpoint = str(self._path.with_name("checkpoints") / consumer)
        command = ["-m", "relay.cli", "consume", consumer, str(self._path), "--checkpoint", checkpoint, *arguments]
        log = self.log(consumer)
        self._begun[consumer] = log.stat().st_size if log.exists() else 0
        self._running[consumer] = Relay([sys.executable, *command], log)

    def log(self, consumer: str) -> Path:
        """Return the log of all processes of a consumer."""
        return self._path.with_name(f"{consumer}.log")

    def _expect(self, consumer: str, code: int, process: Relay) -> None:
        if code not in _EXPECTED_CODES:
            self.problems.append(f"the consumer {consumer} ended with exit code {code}: {process.log()}")

    def _cache(self) -> TokenCache:
        return TokenCache(RedisStore(self._redis.url), NAMESPACE, tombstone_ttl=3600.0)

    # ------------------------------------------------------------------ comparison

    def compare(self, config: Config, checks: Sequence[TopicCheck]) -> Found:
        """I6, I7, against what the topics say, which were compared with the truth before."""
        found = Found(problems=list(self.problems))
        for application, check in zip(self.applications, checks, strict=True):
            if application.failure is not None:
                found.problems.append(f"the application failed: {application.failure!r}")
            stale = application.stale(check)
            found.reads += len(application.reads)
            found.hits += sum(read.hit for read in application.reads)
            found.stale += len(stale)
            found.problems += stale[:_SHOWN]
            found.problems += self._entries(check)
        found.problems += self._stored(checks)
        return found

    def _entries(self, check: TopicCheck) -> list[str]:
        """Each entry keeps out all before the item's last change; and what is read now is the truth."""
        part, final, problems = check.part, check.final(), []
        store = RedisStore(self._redis.url)
        names = [entry_key(NAMESPACE, part.key_of(item)) for item in check.history]
        stored, generation = store.read(names, generation_key(NAMESPACE))
        for item, found in zip(check.history, stored, strict=True):
            entry = decode(found.meta) if found else None
            if found is None or entry is None or entry.generation != generation:
                continue
            if entry.state is State.VALUE:
                version = None if found.value is None else part.version_in(found.value)
                if version != final.get(item):
                    problems.append(f"cache: {item} holds version {version}, not {final.get(item)}")
                continue
            last = check.items[item].position
            if last not in [token.position for token in entry.tokens.values() if token]:
                problems.append(f"cache: {item} has the tokens {dict(entry.tokens)}, none of them at {last}")
        store.close()
        cache = self._cache()
        for item in check.history:
            value = cache.get_or_load(part.key_of(item), part.load).value
            version = None if value is None else part.version_in(value)
            if version != final.get(item):
                problems.append(f"cache: a read of {item} at the end returns version {version}, not {final.get(item)}")
        return problems[:_SHOWN]

    def _stored(self, checks: Sequence[TopicCheck]) -> list[str]:
        """Compare log and copy. Read in a process of their own: the memory of a JVM is given back at its end."""
        out = self._path.with_name("read-back")
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        command = [sys.executable, "-m", "tests.soak.read_back", str(self._path), str(out)]
        answer = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_READ_BACK_WITHIN, check=False
        )
        if answer.returncode != 0:
            return [f"log and copy cannot be read: {answer.stdout.decode(errors='replace')[-4000:]}"]
        problems = self._compare_log(out / "log", set().union(*(check.events for check in checks)))
        for check in checks:
            rows = map(orjson.loads, (out / check.part.table).read_bytes().splitlines())
            copied: dict[Item, int] = dict(map(check.part.item_in, rows))
            final = check.final()
            wrong = [item for item in final.keys() | copied.keys() if final.get(item) != copied.get(item)]
            problems += [f"copy: {i} is at version {copied.get(i)}, not {final.get(i)}" for i in wrong[:_SHOWN]]
        return problems

    @staticmethod
    def _compare_log(path: Path, left: set[int]) -> list[str]:
        logged = array("Q")
        logged.frombytes(path.read_bytes())
        wrong = 0
        for event in logged:
            if event in left:
                left.remove(event)
            else:
                wrong += 1
        problems = [f"log: {wrong} rows are there twice, or were never on a topic"] if wrong else []
        return problems + ([f"log: it lacks {len(left)} changes, such as {next(iter(left)):016x}"] if left else [])
