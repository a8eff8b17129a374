"""Several workers, a stream that splits, and faults at random: workers and broker killed, pauses, throttling.

``make soak SECONDS=3600 SEED=7`` plays it for as long as asked and prints totals; ``test_soak.py`` plays a short one.
What was done is drawn from the seed; how it falls in time is the machine's affair.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import yaml

from relay.avro.registry import open_schemas
from relay.config import load
from relay.demo.truth import read_changes
from relay.services.kafka import KafkaBroker
from tests.dynamodb.endpoint import TABLE, Refused, ScriptedStream
from tests.faults.harness import Relay

WORKERS = 3
ITEMS = 300
MOST_LEAVES = 12
PARTITIONS = 4

_STOP_WITHIN = 30.0
# Exit codes of workers that were not killed: a stop, a broker that was away for too long, a stop without a broker,
# a stop before anything was begun.
_EXPECTED_CODES = {0, 3, 143, -signal.SIGTERM}


@dataclass
class Totals:
    written: int = 0
    published: int = 0
    shards: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> str:
        return json.dumps({**self.__dict__, "faults": dict(self.faults)})


class Writer(threading.Thread):
    """Writes items while their shards split, and knows what it wrote."""

    def __init__(self, stream: ScriptedStream, seed: int) -> None:
        super().__init__(daemon=True)
        self.stream = stream
        self.chance = random.Random(f"writer/{seed}")
        self.versions: dict[str, int] = {f"item-{n}": 0 for n in range(ITEMS)}
        self.leaves: dict[str, list[str]] = {"root": list(self.versions)}
        self.shards = 1
        self.done = threading.Event()
        stream.shard("root")

    def run(self) -> None:
        while not self.done.is_set():
            for _ in range(self.chance.choice((1, 5, 40, 200))):
                self._write()
            if self.chance.random() < 0.08:
                self._split()
            time.sleep(self.chance.choice((0.0, 0.05, 0.2, 1.0)))

    def _write(self) -> None:
        shard = self.chance.choice(list(self.leaves))
        item = self.chance.choice(self.leaves[shard])
        version = self.versions[item] = self.versions[item] + 1
        self.stream.put(shard, item, version, old=version - 1 or None)

    def _split(self) -> None:
        shard = self.chance.choice([name for name, items in self.leaves.items() if len(items) > 1])
        items = self.leaves.pop(shard)
        self.chance.shuffle(items)
        # Shards also roll over into a single one, and do so once there are enough of them.
        rolls_over = len(self.leaves) >= MOST_LEAVES or self.chance.random() < 0.3
        cut = 0 if rolls_over else self.chance.randrange(1, len(items))
        parts = [part for part in (items[:cut], items[cut:]) if part]
        names = [f"s{self.shards + n}" for n in range(len(parts))]
        self.shards += len(parts)
        self.stream.split(shard, *names)
        self.leaves |= dict(zip(names, parts, strict=True))


class Soak:
    """One run. ``say`` is told what happens."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None] = lambda line: None) -> None:
        self.folder = folder
        self.chance = random.Random(f"soak/{seed}")
        self.say = say
        self.totals = Totals()
        self.stream = ScriptedStream(page=50, listing_page=4)
        self.writer = Writer(self.stream, seed)
        self.broker = KafkaBroker(folder=folder / "kafka")
        self.path = folder / "relay.yaml"
        self.workers: list[Relay | None] = [None] * WORKERS
        self.started = 0
        self.paused: set[int] = set()

    def play(self, seconds: float) -> Totals:
        """Play for ``seconds``, let all be relayed, and return what came of it."""
        with self.broker, self.stream:
            self._write_config()
            self.writer.start()
            try:
                self._start_all()
                self._trouble(time.monotonic() + seconds)
                self._settle()
            finally:
                self.writer.done.set()
                for worker in self.workers:
                    if worker is not None:
                        worker.kill()
            self.writer.join()
            self._finish()
            self._compare()
        return self.totals

    # ------------------------------------------------------------------ trouble

    def _trouble(self, until: float) -> None:
        acts = [self._kill, self._kill, self._pause, self._pause, self._stop, self._expire, self._throttle]
        acts.append(self._broker)
        while time.monotonic() < until:
            act = self.chance.choice(acts)
            self.totals.faults[act.__name__.lstrip("_")] += 1
            self.say(act.__name__.lstrip("_"))
            act()
            time.sleep(self.chance.uniform(0.2, 3.0))
            self._revive()

    def _kill(self) -> None:
        number = self._one()
        if (worker := self.workers[number]) is not None:
            worker.kill()
            self.workers[number] = None
            self.paused.discard(number)

    def _stop(self) -> None:
        number = self._one()
        worker = self.workers[number]
        if worker is None or number in self.paused:
            return
        self.workers[number] = None
        try:
            code = worker.stop(timeout=_STOP_WITHIN)
        except subprocess.TimeoutExpired:
            self.totals.problems.append(f"a worker does not stop within {_STOP_WITHIN} s: {worker.where_it_hangs()}")
        else:
            self._expect(code, worker)

    def _pause(self) -> None:
        """Past the transaction's and the session's time-out, sometimes, and woken after others took over."""
        number = self._one()
        worker = self.workers[number]
        if worker is None or number in self.paused:
            return
        worker.pause()
        self.paused.add(number)
        threading.Timer(self.chance.choice((0.3, 2.5, 6.0)), self._wake, (number, worker)).start()

    def _wake(self, number: int, worker: Relay) -> None:
        worker.wake()
        self.paused.discard(number)

    def _expire(self) -> None:
        self.stream.expire_iterators()

    def _throttle(self) -> None:
        share = self.chance.uniform(0.2, 1.0)
        chance = random.Random(self.chance.random())

        def before(operation: str) -> None:
            if operation in ("GetRecords", "GetShardIterator", "DescribeStream") and chance.random() < share:
                raise Refused(*chance.choice((("ThrottlingException", 400), ("InternalServerError", 500))))

        self.stream.before = before
        threading.Timer(self.chance.uniform(0.5, 4.0), self._relent).start()

    def _relent(self) -> None:
        self.stream.before = lambda operation: None

    def _broker(self) -> None:
        self.broker.kill()
        time.sleep(self.chance.choice((0.0, 1.0, 4.0)))
        self.broker.restart()

    def _one(self) -> int:
        return self.chance.randrange(WORKERS)

    # ------------------------------------------------------------------ workers

    def _start_all(self) -> None:
        for number in range(WORKERS):
            self._start(number)

    def _start(self, number: int) -> None:
        log = self.folder / f"worker-{self.started}.log"
        self.started += 1
        self.workers[number] = Relay([sys.executable, "-m", "relay.cli", "run", str(self.path)], log)

    def _revive(self) -> None:
        for number, worker in enumerate(self.workers):
            if worker is not None and worker.is_running:
                continue
            if worker is not None:
                self._expect(worker.wait(1), worker)
            if worker is None and self.chance.random() < 0.3:
                continue  # it stays away for a while
            self._start(number)

    def _expect(self, code: int, worker: Relay) -> None:
        if code not in _EXPECTED_CODES:
            self.totals.problems.append(f"a worker ended with exit code {code}: {worker.log()}")

    def _settle(self) -> None:
        """Let the workers run on undisturbed for a moment: they have to be alive and well."""
        deadline = time.monotonic() + 10.0
        while self.paused and time.monotonic() < deadline:
            time.sleep(0.1)
        self._relent()
        self._revive()
        time.sleep(3.0)
        self._revive()

    def _finish(self) -> None:
        log = self.folder / "last.log"
        last = Relay([sys.executable, "-m", "relay.cli", "run", str(self.path), "--until-caught-up"], log)
        code = last.wait(300)
        if code != 0:
            self.totals.problems.append(f"the last relay ended with exit code {code}: {last.log()}")

    # ------------------------------------------------------------------ the truth

    def _write_config(self) -> None:
        entry = {
            "name": "s",
            "type": "dynamodb",
            "table": TABLE,
            "region": "us-east-1",
            "endpoint_url": self.stream.url,
        }
        kafka = {
            "bootstrap_servers": self.broker.bootstrap_servers,
            "partitions": PARTITIONS,
            "producer": {"transaction.timeout.ms": 2000},
        }
        self.path.write_text(yaml.safe_dump({"name": "soak", "kafka": kafka, "sources": [entry]}))

    def _compare(self) -> None:
        """I1, I2, I3, against what the writer knows."""
        config = load(self.path)
        histories: dict[str, list[int]] = defaultdict(list)
        partitions: dict[str, set[int]] = defaultdict(set)
        ids: Counter[str] = Counter()
        changes = read_changes(config.kafka.client(), config.topic(TABLE), open_schemas(config))
        for partition, _, change in sorted(changes, key=lambda found: found[:2]):
            item = change["key"]["id"]
            histories[item].append(int(orjson.loads(change["new"])["version"]["N"]))
            partitions[item].add(partition)
            ids[change["event_id"]] += 1
        totals = self.totals
        totals.written = sum(self.writer.versions.values())
        totals.published = len(changes)
        totals.shards = self.writer.shards
        for item, last in self.writer.versions.items():
            if histories[item] != list(range(1, last + 1)):
                wrong = [found for at, found in enumerate(histories[item], 1) if found != at]
                totals.problems.append(
                    f"{item}: {len(histories[item])} changes of {last}, out of order or missing from {wrong[:3]}"
                )
            if len(partitions[item]) > 1:
                totals.problems.append(f"{item} is in partitions {sorted(partitions[item])}")
        if doubled := [event for event, times in ids.items() if times > 1]:
            totals.problems.append(f"{len(doubled)} changes are doubled, such as {doubled[0]}")


def main() -> int:
    """Play a long run: ``RELAY_SOAK_SECONDS`` and ``RELAY_SOAK_SEED``. Exit code 4 if anything is wrong."""
    seconds = float(os.environ.get("RELAY_SOAK_SECONDS") or 600)
    seed = int(os.environ.get("RELAY_SOAK_SEED") or random.randrange(1 << 31))
    begun = time.monotonic()
    print(f"seed {seed}, {seconds:.0f} s, {WORKERS} workers", flush=True)
    with tempfile.TemporaryDirectory(prefix="relay-soak-") as folder:
        os.environ["RELAY_STATE"] = f"{folder}/state"
        soak = Soak(Path(folder), seed, lambda line: print(f"{time.monotonic() - begun:8.1f} {line}", flush=True))
        totals = soak.play(seconds)
    print(f"SOAK {totals.as_json()}")
    return 4 if totals.problems else 0


if __name__ == "__main__":
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "test")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "test")
    sys.exit(main())
