"""What fencings, aborts, reconnects and rebalances leave in a worker's process: nothing (I11)."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from relay.kafka.assignment import Assignment
from relay.kafka.checkpoints import CheckpointView
from relay.kafka.producers import Producers
from relay.kafka.publisher import Aborted, Fenced, Publisher
from relay.kafka.settings import KafkaSettings
from relay.kafka.topics import CHECKPOINT_PARTITIONS
from tests.kafka.configs import config
from tests.kafka.proxy import Api, Cut, ProxiedBroker, Verdict, passing
from tests.kafka.transactional import create, publish
from tests.waiting import wait_until

pytestmark = pytest.mark.services

GROWTH = 8 << 20  # bytes; a hundred clients of Kafka take more than ten times that


@dataclass(frozen=True)
class Held:
    """What this process holds. ``memory``: bytes that are resident."""

    threads: int
    descriptors: int
    memory: int

    @classmethod
    def now(cls) -> Held:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        threads, descriptors = (len(os.listdir(f"/proc/self/{what}")) for what in ("task", "fd"))
        return cls(threads, descriptors, pages * os.sysconf("SC_PAGE_SIZE"))


class Disturbed:
    """The Kafka clients of a worker, and what happens to them."""

    def __init__(self, broker: ProxiedBroker, settings: KafkaSettings) -> None:
        self.broker = broker
        self.settings = settings
        self.producers = Producers(settings)
        self.producers.open()
        self._member = ExitStack()
        self.group = self._join(self._member)
        self._share([self.group])

    def close(self) -> None:
        self._member.close()
        self.producers.close()
        self.producers.release()

    def fence(self) -> None:
        self._share([self.group])  # as a worker serves its group: or a busy host has it expelled meanwhile
        publisher = self._begun()
        Publisher(self.settings.producer, publisher.transactional_id).close()
        with pytest.raises((Fenced, Aborted)):
            publisher.commit(self.group.offsets({0}), self.group.metadata)
        self.producers.start_over(under_a_new_name=True)

    def abort(self) -> None:
        self._begun().abort()

    def reconnect(self) -> None:
        """A connection breaks before the answer to a commit."""
        publisher = self._begun()
        self.broker.proxy.lose(Api.END_TXN, verdict=Verdict(answer=Cut(2)), times=1)
        publisher.commit_without_offsets()
        self.broker.proxy.rule = passing

    def rebalance(self) -> None:
        """Another worker comes, and goes."""
        with ExitStack() as opened:
            self._share([self.group, self._join(opened)])
        self._share([self.group])

    def _begun(self) -> Publisher:
        publisher = next(self.producers)
        publish(publisher, self.settings.name, b"1")
        return publisher

    def _join(self, opened: ExitStack) -> Assignment:
        client = self.settings.client
        view = opened.enter_context(closing(CheckpointView(client, self.settings.checkpoints)))
        timeout = self.settings.transaction_timeout
        made = opened.enter_context(closing(Assignment(client, self.settings.group, view, transaction_timeout=timeout)))
        made.join()
        return made

    def _share(self, members: list[Assignment]) -> None:
        """Wait until each owns its share."""

        def is_shared() -> bool:
            for member in members:
                member.poll(0.02)
                member.fence()
            return all(len(member.owned) == CHECKPOINT_PARTITIONS // len(members) for member in members)

        wait_until(is_shared, 60)


@pytest.fixture
def disturbed(broker: ProxiedBroker, unique: str) -> Iterator[Disturbed]:
    settings = KafkaSettings.from_config(config(unique, broker.bootstrap_servers))
    create({"bootstrap.servers": broker.bootstrap_servers}, unique)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(settings.checkpoints, CHECKPOINT_PARTITIONS, 1)])[settings.checkpoints].result(120)
    with closing(Disturbed(broker, settings)) as made:
        yield made


# Each with a rebalance, and three fencings, aborts and reconnects.
@pytest.mark.parametrize(
    "rounds", [2, pytest.param(10, marks=pytest.mark.faults("a hundred, of which twenty show most of what stays"))]
)
@pytest.mark.timeout(1800)
def test_fencings_aborts_reconnects_and_rebalances_leave_nothing_behind(disturbed: Disturbed, rounds: int) -> None:
    """I11: the clients end at once, and do not wait for the collector of garbage, which a relay rarely runs."""

    def play(times: int) -> None:
        for _ in range(times):
            disturbed.rebalance()
        gc.collect()  # the other worker, whose process would have ended
        for _ in range(3 * times):
            disturbed.fence()
            disturbed.abort()
            disturbed.reconnect()

    gc.disable()
    try:
        play(1)
        before = settled()
        play(rounds)
        wait_until(lambda: Held.now().threads <= before.threads and Held.now().descriptors <= before.descriptors, 30)
        assert Held.now().memory <= before.memory + GROWTH
    finally:
        gc.enable()


def settled() -> Held:
    """Return what is held once nothing ends any more: connections and clients do so in their own time."""
    seen: list[Held] = []

    def is_settled() -> bool:
        seen.append(Held.now())
        return len(seen) > 20 and len({(each.threads, each.descriptors) for each in seen[-20:]}) == 1

    wait_until(is_settled, 60)
    return seen[-1]
