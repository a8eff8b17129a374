"""A copy in PostgreSQL that two drivers keep, beside a log, while drivers and the server are killed at random.

``RELAY_FAULT_CHANGES`` says how many changes there are, ``RELAY_KILLS`` how often something is killed: first the
server, then a driver. ``RELAY_SEED`` says what is killed after that, and which changes there are.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

from relay.change import Change, Operation
from relay.kafka.group_offsets import Offsets
from relay.services.postgres import PostgresServer
from spark_consumers.checkpoint import ConsumerCheckpoint
from spark_consumers.running import RETRY_DELAYS
from tests.spark_consumers.topic import SHARD, Topic, change
from tests.waiting import patience, wait_until

pytestmark = [
    pytest.mark.services,
    pytest.mark.faults(
        "kills of drivers: test_consumers_killed.py kills, spark_consumers/test_convergence.py has two drivers"
    ),
]

CHANGES = int(os.environ.get("RELAY_FAULT_CHANGES", "20000"))
KILLS = int(os.environ.get("RELAY_KILLS", "2"))
SEED = int(os.environ.get("RELAY_SEED", "1"))
CHUNK = 10_000  # changes published at once
SHARDS = (SHARD, SHARD, SHARD, f"{SHARD}-other")


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as found:
        yield found


class History:
    """Random changes of some items. ``newest``: the version of each item that exists after those made so far."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.newest: dict[str, int] = {}
        self.made = 0

    def next(self) -> Change:
        """Return another change. Of two in one second in different shards, the tokens do not say which is newer."""
        self.made += 1
        customer = f"c{self._chance.randrange(max(10, CHANGES // 20))}"
        if customer not in self.newest:
            kind = Operation.INSERT
        else:
            kind = Operation.DELETE if self._chance.random() < 0.1 else Operation.UPDATE
        found = change(customer, self.made, kind)
        assert found.token is not None
        seconds = 1_700_000_000 + self.made // 500
        found.token = replace(found.token, timestamp=seconds, shard=self._chance.choice(SHARDS))
        found.committed_at = seconds * 1_000_000
        self.newest[customer] = self.made
        if kind is Operation.DELETE:
            del self.newest[customer]
        return found


class Driver:
    """A process with one Spark that runs consumers, of which each has a checkpoint, and that is started again."""

    def __init__(self, topic: Topic, name: str, *consumers: str) -> None:
        self._topic = topic
        self._name = name
        self._consumers = consumers
        self._start()

    def _start(self) -> None:
        self.process = self._topic.start(" ".join(self._consumers), checkpoint=self._name)

    def reached(self) -> list[Offsets]:
        """Return up to where each consumer has applied its topics. Starts the process again if it gave up."""
        if not self.process.is_running:
            # Without the server, or while the JVM of its last life ends, for longer than it is patient.
            assert self.process.wait(1) == 3, self.process.log()
            self._start()
        folder = self._topic.folder / "checkpoints" / self._name
        folders = [folder / each for each in self._consumers] if len(self._consumers) > 1 else [folder]
        return [ConsumerCheckpoint(str(each)).resume() for each in folders]

    @property
    def has_tried_often(self) -> bool:
        """Whether its process has made its last attempt but one at a batch, and so may give up."""
        return self.process.has_logged(f'"attempt": {len(RETRY_DELAYS)},')

    def kill(self) -> None:
        self.process.kill()
        self._start()


def test_two_drivers_and_a_server_that_die_at_random_leave_the_copy_and_the_log_right(
    tmp_path: Path, kafka: Any, redis_server: Any, unique: str, server: PostgresServer
) -> None:
    """I3, I5, I7: each driver also applies what the other one did, and repeats what a crash cut off."""
    chance = random.Random(SEED)
    topic = Topic(tmp_path, unique, kafka.bootstrap_servers, redis_server.url)
    topic.set_copy_url(server.url)
    history, event_ids = History(random.Random(SEED)), list[str]()

    def publish(number: int) -> None:
        for left in range(number, 0, -CHUNK):
            changes = [history.next() for _ in range(min(CHUNK, left))]
            topic.publish(changes)
            event_ids.extend(one.event_id for one in changes)

    drivers = [Driver(topic, "both", "log", "copy"), Driver(topic, "second", "copy")]

    victims: list[Driver | PostgresServer] = [server, chance.choice(drivers)]
    victims += chance.choices([*drivers, server], k=max(0, KILLS - len(victims)))
    unharmed = [(driver, driver.process) for driver in drivers if driver not in victims[:KILLS]]

    def reached() -> list[Offsets]:
        return [each for driver in drivers for each in driver.reached()]

    try:
        for victim in victims[:KILLS]:
            seen = reached()
            publish(CHANGES // (KILLS + 1))
            wait_until(partial(lambda seen: reached() != seen, seen), 300)
            time.sleep(chance.uniform(0, 3))  # into the next batch, or a step of it
            victim.kill()
            if victim is server:
                server.restart()
                # Those that have attempts left have a server for them, however long it was away.
                unharmed = [each for each in unharmed if not each[0].has_tried_often]
        publish(CHANGES - len(event_ids))
        end = topic.ends()
        wait_until(lambda: all(each.get(topic.name) == end for each in reached()), max(300.0, CHANGES / 100))
        assert all(driver.process is process for driver, process in unharmed), "gave up without the server"
        codes = [driver.process.stop(timeout=patience(60)) for driver in drivers]
    finally:
        for driver in drivers:
            driver.process.kill()
    assert codes == [0, 0]
    rows = server.execute("SELECT customer, item::json -> 'version' ->> 'N' FROM orders.orders")
    assert {customer: int(version) for customer, version in rows} == history.newest
    files = DeltaTable(f"{topic.folder}/log").file_uris()
    with duckdb.connect() as connection:
        logged = [name for (name,) in connection.execute("SELECT event_id FROM read_parquet(?)", [files]).fetchall()]
    assert Counter(logged) == Counter(event_ids)
    assert len(event_ids) == CHANGES
