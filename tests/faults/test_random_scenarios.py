"""Random streams through relays that are killed with -9 at random calls: I1, I2, I3, I9.

One relay reads many streams at once, each with a seed of its own (``tests/dynamodb/scenario.py``). It is killed
when a drawn call arrives at a stream, or between two steps of a commit; started again; and in the end what is on
the topics is compared with what the streams know they were written. ``RELAY_SEEDS`` says how many seeds are
played, of which ``make test`` plays the first 30; ``RELAY_SEED`` names one to be played alone.

In the second test the network fails as well (``tests/kafka/drawn_faults.py``). Its seeds are those of networks, each
with a few streams and one or two relays at a time; ``RELAY_NETWORKS`` says which are played, as in ``0-99,117``.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from _pytest.mark import ParameterSet
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from relay.avro.decode import decode
from relay.avro.registry import open_schemas
from relay.config import Config, load
from relay.records import RecordKind, ShardCheckpoint, StreamId, parse_key
from tests.dynamodb.endpoint import LABEL
from tests.dynamodb.scenario import Loss, Scenario, Seen, problems
from tests.faults.harness import Relay
from tests.kafka.drawn_faults import DrawnFaults
from tests.kafka.proxy import ProxiedBroker
from tests.waiting import wait_until

SEEDS = int(os.environ.get("RELAY_SEEDS", "100"))
ALONE = os.environ.get("RELAY_SEED")
NETWORKS = os.environ.get("RELAY_NETWORKS", "0,94")
STREAMS = 6  # of a network
LENGTH = 5  # of their histories, so that there are as many transactions as for a hundred streams
FIRST = 30  # streams that one relay of `make test` reads
AT_ONCE = 2
GAVE_UP = 3  # exit code
KILLS = 4
PARTITIONS = 2
STEPS = ("begin", "before_send_offsets", "after_send_offsets", "before_commit", "after_commit")

pytestmark = pytest.mark.services


def some_and_others() -> list[ParameterSet]:
    """Return the seeds: ``make test`` plays the first of them."""
    if ALONE:
        return [pytest.param([int(ALONE)], id="one")]
    others = pytest.mark.faults("other streams: the first are played in `make test`")
    if SEEDS <= FIRST:
        return [pytest.param(range(SEEDS), id="some")]
    return [pytest.param(range(FIRST), id="some"), pytest.param(range(FIRST, SEEDS), marks=[others], id="others")]


@pytest.mark.parametrize("seeds", some_and_others())
def test_whatever_a_stream_does_and_wherever_a_relay_dies(
    tmp_path: Path, kafka: Any, unique: str, seeds: Sequence[int]
) -> None:
    """Per item in order, nothing doubled, and nothing lost but what gap records report."""
    count = AT_ONCE if len(seeds) > FIRST else 1
    groups = [seeds[n::count] for n in range(count)]

    def play(number: int) -> list[str]:
        folder = tmp_path / str(number)
        folder.mkdir()
        with ExitStack() as stack:
            group = Group(groups[number], folder, kafka.bootstrap_servers, f"{unique}-{number}")
            for scenario in group.scenarios:
                stack.enter_context(scenario)
            stack.callback(group.close)
            group.play()
            return group.problems()

    # A group waits most of the time.
    with ThreadPoolExecutor(len(groups)) as pool:
        wrong = [problem for found in pool.map(play, range(len(groups))) for problem in found]
    assert not wrong, "\n".join(["play one of these alone with RELAY_SEED=<seed>:", *wrong[:30]])


def listed(numbers: str) -> list[int]:
    """Return the numbers of a text as ``0-9,17``."""
    ranges = (part.partition("-") for part in numbers.split(","))
    return [number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)]


def one_and_others(seeds: list[int]) -> list[ParameterSet]:
    """Return the networks: the first is played by ``make test``."""
    others = pytest.mark.faults("other networks: the first is played in `make test`")
    return [pytest.param(seed, marks=[others] if number else []) for number, seed in enumerate(seeds)]


@pytest.mark.parametrize("seed", one_and_others(listed(NETWORKS)))
def test_whatever_the_network_does_meanwhile(tmp_path: Path, broker: ProxiedBroker, unique: str, seed: int) -> None:
    """The same, while requests and answers are slow, cut off, and late beside their repetition."""
    seeds = range(seed * STREAMS, (seed + 1) * STREAMS)
    faults = DrawnFaults(seed)
    with ExitStack() as stack:
        group = Group(seeds, tmp_path, broker.bootstrap_servers, unique, faults)
        for scenario in group.scenarios:
            stack.enter_context(scenario)
        stack.callback(faults.end)
        stack.callback(group.close)
        broker.proxy.rule = faults
        group.play()
        print(f"{faults!r}: {dict(faults.done)} of {dict(faults.requests)}; {group!r}")
        wrong = group.problems()
    assert not wrong, "\n".join([f"play it with RELAY_NETWORKS={seed}: {faults!r}", *wrong[:30]])


class Group:
    """Streams that are relayed together. ``faults``: of the network; it recovers before the end."""

    def __init__(
        self, seeds: Sequence[int], folder: Path, bootstrap_servers: str, name: str, faults: DrawnFaults | None = None
    ) -> None:
        self.scenarios = [Scenario(seed, self._count, LENGTH if faults else 1) for seed in seeds]
        self.faults = faults
        # The last line of each relay that ended because it did not reach its broker.
        self.given_up: list[str] = []
        self.chance = random.Random(f"kills/{seeds[0]}/{len(seeds)}")
        self.path = folder / "relay.yaml"
        self.path.write_text(
            yaml.safe_dump(
                {
                    "name": name,
                    "kafka": {
                        "bootstrap_servers": bootstrap_servers,
                        "partitions": PARTITIONS,
                        "producer": {"transaction.timeout.ms": 2000},
                    },
                    "sources": [
                        {
                            "name": f"s{scenario.seed}",
                            "type": "dynamodb",
                            "table": scenario.table,
                            "region": "us-east-1",
                            "endpoint_url": scenario.url,
                            "on_gap": "skip",
                            "key": "item" if scenario.seed % 2 else "hash",
                        }
                        for scenario in self.scenarios
                    ],
                }
            )
        )
        self.relays: list[Relay] = []
        # Calls that are answered before the relay is killed, and whether it has been.
        self._left = 0
        self._lock = threading.Lock()
        self._killed = threading.Event()

    def __repr__(self) -> str:
        return f"<Group[{len(self.scenarios)} streams, {len(self.relays)} relays, gave up: {self.given_up}]>"

    def play(self) -> None:
        self._create_topics()
        for _ in range(KILLS):
            self._run_until_killed()
            self.close()
            checkpoints = self._committed()
            for scenario in self.scenarios:
                scenario.while_no_relay_runs(checkpoints[StreamId(f"s{scenario.seed}", LABEL)])
        for scenario in self.scenarios:
            scenario.settle()
        if self.faults is not None:
            self.faults.end()
        self._finish()

    def problems(self) -> list[str]:
        config = load(self.path)
        seen = self._published(config)
        losses: dict[str, list[Loss]] = defaultdict(list)
        for message in _committed(config, [config.internal("gaps")]):
            gap = orjson.loads(message.value() or b"")
            after = int(gap["from"]["sequence"]) if gap["from"] and "sequence" in gap["from"] else -1
            losses[gap["source"]].append(Loss(gap["shard"], gap["reason"], after))
        return [
            f"seed {scenario.seed}: {problem}"
            for scenario in self.scenarios
            for problem in problems(scenario, seen[scenario.table], losses[f"s{scenario.seed}"])
        ]

    def close(self) -> None:
        for relay in self.relays:
            relay.kill()

    # ------------------------------------------------------------------ relays

    def _run_until_killed(self) -> None:
        # Near the beginning as often as later; the first two calls of each source only look it up.
        number = int(300 ** self.chance.uniform(0.0, 1.0))
        step = self.chance.choice((None, None, *STEPS))
        self._killed.clear()
        if self.faults is not None:
            self.faults.begin()
        if self.faults is not None and self.chance.random() < 0.3:
            self._start("-m", "relay.cli", "run", str(self.path))  # beside the one that is killed first
        if step is None:
            length = LENGTH if self.faults is not None else 1
            self._left = len(self.scenarios) * 2 + (len(self.scenarios) * number // 10 + number) * length
            relay = self._start("-m", "relay.cli", "run", str(self.path))
            while not self._killed.wait(0.5):
                if not relay.is_running and not self._killed.is_set():
                    self._expect(relay, GAVE_UP)
                    relay = self._start("-m", "relay.cli", "run", str(self.path))
            relay.kill()
        else:
            relay = self._start("-m", "tests.faults.killed_worker", str(self.path), step, str(1 + number // 10))
            self._expect(relay, -9, GAVE_UP)

    def _expect(self, relay: Relay, *codes: int) -> None:
        """Wait for its end. It may have given up only where the network fails."""
        code = relay.wait(240)
        assert code in codes, f"exit code {code}: {relay.log()}"
        assert code != GAVE_UP or self.faults is not None, relay.log()
        if code == GAVE_UP:
            self.given_up.append(relay.log().splitlines()[-1])

    def _finish(self) -> None:
        relay = self._start("-m", "relay.cli", "run", str(self.path), "--until-caught-up")
        assert relay.wait(400) == 0, relay.log()

    def _start(self, *arguments: str) -> Relay:
        relay = Relay([sys.executable, *arguments], self.path.parent / f"relay-{len(self.relays)}.log")
        self.relays.append(relay)
        return relay

    def _count(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self._killed.set()  # first: whoever finds the relay dead knows why
                self.relays[-1].kill()

    # ------------------------------------------------------------------ Kafka

    def _create_topics(self) -> None:
        """So many at once take a busy broker longer than a relay waits for its own."""
        config = load(self.path)
        admin = AdminClient(config.kafka.client())
        wanted = [NewTopic(config.topic(scenario.table), PARTITIONS, 1) for scenario in self.scenarios]
        for created in admin.create_topics(wanted, request_timeout=120).values():
            created.result(180)
        names = {topic.topic for topic in wanted}

        def led() -> bool:
            known = admin.list_topics(timeout=30).topics
            return all(name in known and all(p.leader >= 0 for p in known[name].partitions.values()) for name in names)

        wait_until(lambda: led() or None, 180)

    def _published(self, config: Config) -> dict[str, list[Seen]]:
        tables = {config.topic(scenario.table): scenario.table for scenario in self.scenarios}
        schemas = open_schemas(config)
        seen: dict[str, list[Seen]] = defaultdict(list)
        for message in _committed(config, list(tables)):
            change = decode(schemas, message.value() or b"")
            seen[tables[str(message.topic())]].append(
                Seen(
                    item=(change["key"]["id"], int(change["key"]["number"])),
                    version=_version(change["new"]),
                    old=_version(change["old"]),
                    partition=int(message.partition() or 0),
                    timestamp=change["token"]["timestamp"],
                    event_id=change["event_id"],
                )
            )
        return seen

    def _committed(self) -> dict[StreamId, dict[str, ShardCheckpoint]]:
        """What the relays have committed; what a dead one left open may still be missing."""
        config = load(self.path)
        found: dict[StreamId, dict[str, ShardCheckpoint]] = defaultdict(dict)
        for message in _committed(config, [config.internal("checkpoints")]):
            kind, stream, shard = parse_key(message.key() or b"")
            if kind is RecordKind.SHARD:
                found[stream][shard] = ShardCheckpoint.from_json(message.value() or b"")
        return found


def _committed(config: Config, topics: list[str]) -> Iterator[Message]:
    """All that a read_committed reader finds, each partition in its order."""
    consumer = Consumer(
        {
            **config.kafka.client(),
            "group.id": f"{config.name}.truth",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        known = consumer.list_topics(timeout=30).topics
        waiting = {(topic, p) for topic in topics if topic in known for p in known[topic].partitions}
        consumer.assign([TopicPartition(topic, p, 0) for topic, p in waiting])
        deadline = time.monotonic() + 600
        while waiting:
            assert time.monotonic() < deadline, f"nothing comes of {sorted(waiting)}"
            for message in consumer.consume(1000, 0.1):
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    waiting.discard((message.topic(), message.partition()))
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()


def _version(image: str | None) -> int | None:
    return int(orjson.loads(image)["version"]["N"]) if image is not None else None
