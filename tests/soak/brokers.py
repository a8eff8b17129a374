"""What happens to three brokers in a soak: those that lead what the relay writes to are killed, paused and moved."""

from __future__ import annotations

import random
import re
import socket
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from tests.services.broker_cluster import OFFSETS, TRANSACTIONS, Broker, BrokerCluster
from tests.soak.part import Fault
from tests.soak.workers import WORKERS

LEADERS = ("leader of transactions", "leader of offsets", "leader of checkpoints", "leader of changes")
"""The faults that kill whoever leads a partition in use."""


class ClusterFaults:
    """``name``: of the relay. ``topics``: those with its changes. ``back``: called when all brokers run again.

    One is away at a time, or two. Whatever else happens goes on meanwhile.
    """

    def __init__(
        self, cluster: BrokerCluster, seed: int, name: str, topics: Sequence[str], back: Callable[[], object]
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._topics = topics
        self._back = back
        self._chance = random.Random(f"brokers/{seed}")
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="brokers")
        self._away: Future[None] | None = None

    def faults(self) -> list[Fault]:
        kills = [Fault(name, 0.7, partial(self._kill, name)) for name in LEADERS]
        return [
            *kills,
            Fault("leader paused", 0.7, self._pause),
            Fault("broker stopped", 0.5, self._stop),
            Fault("two brokers", 0.5, self._kill_two),
            Fault("election", 1.0, self._elect),
            Fault("controller", 0.3, self._kill_controller),
        ]

    def settle(self) -> None:
        """Wait until all run. Raises what kept one of them from starting again."""
        away, self._away = self._away, None
        if away is not None:
            away.result()

    def leader(self, name: str) -> Broker:
        """Return the broker that leads a partition in use: one of `LEADERS`."""
        cluster, chance = self._cluster, self._chance
        if name == "leader of transactions":
            host = re.sub(r"[^a-zA-Z0-9._-]", "_", socket.gethostname())
            producer = f"{self._name}-{host}-{chance.randrange(WORKERS)}{chance.choice(('', '.2'))}"
            return cluster.leader(TRANSACTIONS, cluster.transactions_of(producer))
        if name == "leader of offsets":
            return cluster.leader(OFFSETS, cluster.offsets_of(f"{self._name}.relay"))
        topic = f"{self._name}.checkpoints" if name == "leader of checkpoints" else chance.choice(self._topics)
        return cluster.leader(topic, chance.randrange(cluster.count(topic)))

    def _kill(self, name: str) -> None:
        self.settle()
        broker = self.leader(name)
        broker.kill()
        self._return([broker], self._chance.choice((0.0, 4.0, 10.0)))

    def _kill_two(self) -> None:
        """Fewer replicas than `min.insync.replicas` are left: nothing can be committed until one is back."""
        self.settle()
        brokers = self._chance.sample(list(self._cluster.brokers.values()), 2)
        for broker in brokers:
            broker.kill()
        self._return(brokers, self._chance.choice((0.0, 4.0, 10.0)))

    def _kill_controller(self) -> None:
        """Nobody is elected until it is back."""
        self.settle()
        self._cluster.controller.kill()
        self._return([], self._chance.choice((0.0, 4.0)))

    def _stop(self) -> None:
        """In an orderly way, as in a rolling restart: it hands over what it leads."""
        self.settle()
        broker = self._chance.choice(list(self._cluster.brokers.values()))
        self._later(broker.restart)

    def _pause(self) -> None:
        """Past the time after which others lead, sometimes; then it wakes, and believes that it leads."""
        self.settle()
        broker = self.leader(self._chance.choice(LEADERS))
        broker.pause()
        seconds = self._chance.choice((0.5, 2.0, 8.0))

        def wake() -> None:
            time.sleep(seconds)
            broker.wake()

        self._later(wake)

    def _elect(self) -> None:
        """Move leaders, and with them coordinators, back to where they belong."""
        self.settle()
        self._cluster.elect()

    def _return(self, brokers: Collection[Broker], seconds: float) -> None:
        def restart() -> None:
            time.sleep(seconds)
            if not self._cluster.controller.alive:
                self._cluster.controller.restart()
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(Broker.restart, brokers))

        self._later(restart)

    def _later(self, do: Callable[[], object]) -> None:
        def done() -> None:
            do()
            self._back()

        self._away = self._pool.submit(done)
