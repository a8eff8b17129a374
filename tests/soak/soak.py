"""Everything at once: two sources, workers, a broker, consumers, and faults at random; then the comparison.

What is done is drawn from the seed; how it falls in time is the machine's affair.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from relay.config import load
from relay.services.kafka import KafkaBroker
from tests.kafka.drawn_faults import DrawnFaults
from tests.kafka.proxy import KafkaProxy, ProxiedBroker
from tests.services.broker_cluster import BrokerCluster
from tests.soak.audited_lines import AuditedLines
from tests.soak.brokers import ClusterFaults
from tests.soak.consumers import Consumers
from tests.soak.part import Fault, Part
from tests.soak.scripted_items import ScriptedItems
from tests.soak.topic import AppliedTimes, TopicCheck
from tests.soak.workers import Workers

PARTS = ("dynamodb", "mysql", "consumers")
_SOURCES: dict[str, Callable[[int, float], Part]] = {"dynamodb": ScriptedItems, "mysql": AuditedLines}
_NAME = "soak"
_PARTITIONS = 4
_CONSUMED = 500.0  # changes a second: less than what log and copy apply on two cores
_SHOWN = 20


@dataclass
class Totals:
    """``kills``: faults by what they hit. ``reads``: those of the application."""

    seed: int
    seconds: float = 0.0
    changes: int = 0
    published: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    doubled: int = 0
    disordered: int = 0
    reads: int = 0
    hits: int = 0
    stale_reads: int = 0
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> str:
        return json.dumps({**self.__dict__, "kills": dict(sorted(self.kills.items()))})


class Soak:
    """One run. ``say`` is told what happens.

    ``pause``: seconds between two faults, on average. ``rate``: about how many changes are written a second; by default
    as many as the relay reads, or as the consumers can apply. ``network``: whether the way to the broker fails too.
    ``spared``: faults that do not happen. ``brokers``: 1 or 3.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        parts: Collection[str] = PARTS,
        *,
        pause: float = 1.6,
        rate: float | None = None,
        network: bool = False,
        spared: Collection[str] = (),
        brokers: int = 1,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.totals = Totals(seed)
        self.say = say
        self.path = folder / "relay.yaml"
        self._chance = random.Random(f"soak/{seed}")
        self._pause = pause
        self._drawn = DrawnFaults(seed)  # what the network does: nothing before it is told to begin
        # Only if the network fails: a million changes take longer through a proxy.
        self._proxies: list[KafkaProxy] = []
        self.broker: KafkaBroker | BrokerCluster
        if brokers > 1:
            self.broker = BrokerCluster(folder / "kafka", proxied=network)
            self._proxies = self.broker.proxies
        elif network:
            self.broker = ProxiedBroker(folder=folder / "kafka")
            self._proxies = [self.broker.proxy]
        else:
            self.broker = KafkaBroker(folder=folder / "kafka")
        sources = [_SOURCES[name] for name in PARTS if name in parts and name in _SOURCES]
        rate = rate or (_CONSUMED if "consumers" in parts else math.inf)
        self._spared = spared
        self.parts = [source(seed, rate / len(sources)) for source in sources]
        self._workers = Workers(self.path, seed)
        self.consumers = Consumers(self.path, seed) if "consumers" in parts else None
        self._cluster_faults: ClusterFaults | None = None
        if isinstance(self.broker, BrokerCluster):
            topics = [f"{_NAME}.{part.table}" for part in self.parts]
            self._cluster_faults = ClusterFaults(self.broker, seed, _NAME, topics, self._note_broker_back)

    def play(
        self,
        seconds: float = math.inf,
        changes: float = math.inf,
        beside: Callable[[Soak], AbstractContextManager[object]] = nullcontext,
    ) -> Totals:
        """Play until so many changes were written, or for so long; let all be relayed; return what came of it.

        ``beside``: entered once all runs, left once all is applied, while the services are still there.
        """
        begun = time.monotonic()
        with ExitStack() as stack:
            stack.enter_context(self.broker)
            for part in self.parts:
                stack.enter_context(part)
            if self.consumers is not None:
                stack.enter_context(self.consumers)
            self._write_config()
            stack.callback(self._workers.kill)
            self._workers.start()
            for part in self.parts:
                part.start()
            if self.consumers is not None:
                self.consumers.start(self.parts)
            with beside(self):
                self._trouble(begun + seconds, changes)
                self._settle()
                self._compare()
        self.totals.seconds = round(time.monotonic() - begun, 1)
        return self.totals

    def _write_config(self) -> None:
        config: dict[str, Any] = {
            "name": _NAME,
            "kafka": {
                "bootstrap_servers": self.broker.bootstrap_servers,
                "partitions": _PARTITIONS,
                # Short, so that a dead worker is missed soon.
                "producer": {"transaction.timeout.ms": 2000},
            },
            "sources": [part.source() for part in self.parts],
        }
        if self.consumers is not None:
            config |= self.consumers.config(self.parts)
        self.path.write_text(yaml.safe_dump(config))

    # ------------------------------------------------------------------ trouble

    def _trouble(self, until: float, changes: float) -> None:
        of_one = [Fault("broker", 1, self._kill_broker)]
        faults = of_one if self._cluster_faults is None else self._cluster_faults.faults()
        faults += self._workers.faults()
        if self._proxies:
            faults.append(Fault("network", 4, self._disturb))
        for part in self.parts:
            faults += part.faults()
        if self.consumers is not None:
            faults += self.consumers.faults()
        faults = [fault for fault in faults if fault.name not in self._spared]
        weights = [fault.weight for fault in faults]
        # Each once, however few a busy host plays in the time.
        first = self._chance.sample(faults, len(faults))
        while first or (time.monotonic() < until and self._written() < changes):
            fault = first.pop() if first else self._chance.choices(faults, weights)[0]
            written = self._written()
            self.totals.kills[fault.name] += 1
            self.say(f"{written:,} changes; {fault.name}")
            fault.do()
            # Often in the middle of what follows from the last one.
            time.sleep(self._chance.uniform(0.1, 1.9) * self._pause)
            self._workers.revive()
            if self.consumers is not None:
                self.consumers.revive()

    def _written(self) -> int:
        return sum(part.written() for part in self.parts)

    def _kill_broker(self) -> None:
        assert isinstance(self.broker, KafkaBroker)
        self.broker.kill()
        time.sleep(self._chance.choice((0.0, 1.0, 4.0)))
        self.broker.restart()
        self._note_broker_back()

    def _note_broker_back(self) -> None:
        if self.consumers is not None:
            self.consumers.note_broker_back()

    def _disturb(self) -> None:
        """Let the network fail, until it has recovered or fails in another way."""
        self._drawn.end()
        self._drawn = DrawnFaults(f"{self.totals.seed}/{self.totals.kills['network']}")
        self._drawn.begin()
        for proxy in self._proxies:
            proxy.rule = self._drawn

    def _settle(self) -> None:
        self._drawn.end()
        if self._cluster_faults is not None:
            self._cluster_faults.settle()
        for part in self.parts:
            part.relent()
        self._workers.settle()
        for part in self.parts:
            part.stop()
        self._workers.kill()
        self.say(f"{self._written():,} changes; relaying the rest")
        self._workers.finish()
        self.totals.problems += self._workers.problems

    # ------------------------------------------------------------------ comparison

    def _compare(self) -> None:
        totals, config = self.totals, load(self.path)
        times: AppliedTimes | None = None
        if self.consumers is not None:
            self.say("consuming the rest")
            times = self.consumers.finish()
        checks = []
        for part in self.parts:
            self.say(f"comparing topic {part.table}")
            check = TopicCheck(part, part.history(), times)
            check.read(config)
            checks.append(check)
            totals.changes += check.written
            totals.published += check.published
            totals.lost += check.lost
            totals.doubled += check.doubled
            totals.disordered += check.disordered
            totals.problems += check.problems[:_SHOWN]
        if self.consumers is not None:
            self.say("comparing cache, log and copy")
            found = self.consumers.compare(config, checks)
            totals.reads, totals.hits, totals.stale_reads = found.reads, found.hits, found.stale
            totals.problems += found.problems[:_SHOWN]
