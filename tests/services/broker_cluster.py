"""Three brokers and a controller, with three replicas of everything, two of which have to confirm a write."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from confluent_kafka import ElectionType, KafkaException
from confluent_kafka.admin import AdminClient

from relay.process.managed import HOST, accepts, free_port
from relay.services.kafka import KafkaBroker, coordinates, random_id
from tests.kafka.proxy import KafkaProxy
from tests.waiting import pause, wait_until

BROKERS = 3
TRANSACTIONS = "__transaction_state"
OFFSETS = "__consumer_offsets"

_CONTROLLER = 100
_SETTINGS = {
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CLIENT:PLAINTEXT,BROKERS:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "BROKERS",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    # Leaders move when a test says so.
    "auto.leader.rebalance.enable": "false",
    # How soon a broker that was killed or paused is replaced as a leader.
    "broker.session.timeout.ms": "3000",
    "metadata.max.idle.interval.ms": "0",
}


class _Node(KafkaBroker):
    """A process of the cluster. Its ports are chosen before any starts, because each has to know the controller's."""

    ports_needed = 0

    def __init__(self, number: int, ports: tuple[int, ...], cluster_id: str, folder: Path, **options: str) -> None:
        super().__init__(folder, options={**_SETTINGS, "node.id": str(number), **options})
        self.number = number
        self._own_ports = ports
        self._cluster_id = cluster_id

    def _prepare(self) -> None:
        self._ports = self._own_ports
        super()._prepare()
        meta = {"version": 1, "node.id": self.number, "cluster.id": self._cluster_id, "directory.id": random_id()}
        lines = "".join(f"{key}={value}\n" for key, value in meta.items())
        (self.folder / "data" / "meta.properties").write_text(lines)

    def _ready(self) -> bool:
        return accepts(self.port)

    def pause(self) -> None:
        pause(self.process.pid)

    def wake(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)


class Broker(_Node):
    """One of the brokers."""

    @property
    def own_address(self) -> str:
        return f"{HOST}:{self.port}"

    def _ready(self) -> bool:
        """Return whether it has caught up with the controller, which counts it among the brokers again."""
        try:
            return accepts(self.port) and self.number in client(self.own_address).list_topics(timeout=5.0).brokers
        except KafkaException:
            return False


class BrokerCluster:
    """The brokers by number, from 1 on, and their controller, for the time of a context.

    ``proxied``: clients reach each broker through a proxy of its own, in ``proxies``; the brokers each other without.
    """

    def __init__(self, folder: Path, *, proxied: bool = False) -> None:
        cluster_id = random_id()
        ports = [free_port() for _ in range(2 * BROKERS + 2)]
        quorum = {"controller.quorum.voters": f"{_CONTROLLER}@{HOST}:{ports[0]}"}
        # The second port of a controller is not used.
        self.controller = _Node(
            _CONTROLLER,
            (ports[0], ports[1]),
            cluster_id,
            folder / "controller",
            **quorum,
            **{
                "process.roles": "controller",
                "listeners": f"CONTROLLER://{HOST}:{ports[0]}",
                "advertised.listeners": f"CONTROLLER://{HOST}:{ports[0]}",
            },
        )
        self.brokers: dict[int, Broker] = {}
        self.proxies: list[KafkaProxy] = []
        for number in range(1, BROKERS + 1):
            own, others = ports[2 * number : 2 * number + 2]
            advertised = own
            if proxied:
                proxy = KafkaProxy()
                proxy.target, advertised = own, proxy.port
                self.proxies.append(proxy)
            self.brokers[number] = Broker(
                number,
                (own, others),
                cluster_id,
                folder / f"broker-{number}",
                **quorum,
                **{
                    "process.roles": "broker",
                    "listeners": f"CLIENT://{HOST}:{own},BROKERS://{HOST}:{others}",
                    "advertised.listeners": f"CLIENT://{HOST}:{advertised},BROKERS://{HOST}:{others}",
                },
            )
        self._addresses = [f"{HOST}:{broker}" for broker in self._advertised()]
        self._stack = ExitStack()

    def _advertised(self) -> Iterable[int]:
        return [proxy.port for proxy in self.proxies] or [b._own_ports[0] for b in self.brokers.values()]

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(self._addresses)

    def __enter__(self) -> Self:
        with ExitStack() as stack, ThreadPoolExecutor(BROKERS + 1) as pool:
            for proxy in self.proxies:
                stack.callback(proxy.close)
            nodes: list[_Node] = [self.controller, *self.brokers.values()]
            for node in nodes:
                stack.callback(node.stop)
                stack.callback(node.kill)  # an orderly stop waits for the others, which stop as well
            for started in [pool.submit(node.start) for node in nodes]:
                started.result()
            wait_until(lambda: coordinates(self.bootstrap_servers))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def leader(self, topic: str, partition: int = 0) -> Broker:
        """Return the broker that leads a partition, as soon as one that lives does."""

        def found() -> Broker | None:
            try:
                described = self._client().list_topics(topic, timeout=5.0).topics[topic].partitions
            except KafkaException:
                return None
            leader = self.brokers.get(described[partition].leader) if partition in described else None
            return leader if leader is not None and leader.alive else None

        return wait_until(found)

    def transactions_of(self, transactional_id: str) -> int:
        """Return the partition of `__transaction_state` in which a producer's transactions are."""
        return _java_hash(transactional_id) % self.count(TRANSACTIONS)

    def offsets_of(self, group: str) -> int:
        """Return the partition of `__consumer_offsets` in which the offsets of a group are."""
        return _java_hash(group) % self.count(OFFSETS)

    def elect(self) -> None:
        """Give each partition back to the broker that leads it by preference, if that is in sync."""
        admin = self._client()  # which has to live until the answer
        admin.elect_leaders(ElectionType.PREFERRED).result(60)

    def count(self, topic: str) -> int:
        """Return how many partitions a topic has."""
        return len(self._client().list_topics(topic, timeout=60.0).topics[topic].partitions)

    def _client(self) -> AdminClient:
        return client(",".join(b.own_address for b in self.brokers.values()))


def client(addresses: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": addresses, "log_level": 0, "socket.connection.setup.timeout.ms": 2000})


def _java_hash(text: str) -> int:
    """Return the hash of a string in Java, without its sign."""
    number = 0
    for each in text.encode("ascii"):
        number = (31 * number + each) & 0xFFFFFFFF
    return number & 0x7FFFFFFF
