"""Three brokers with three replicas, two of which have to confirm: what a relay does when some of them are lost."""

from __future__ import annotations

import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
import yaml
from confluent_kafka.admin import AdminClient

from relay.config import load
from relay.kafka.partition_offsets import offset_bounds
from relay.kafka.producers import Identity
from relay.process.managed import HOST, free_port
from tests.command_line import run_until_caught_up
from tests.dynamodb.endpoint import TABLE, ScriptedStream
from tests.faults.harness import PAUSED_WORKER, Relay
from tests.faults.scripted_relay import SplittingTable, published_versions, start_relay, write_config
from tests.in_memory import folder_in_memory
from tests.services.broker_cluster import OFFSETS, TRANSACTIONS, Broker, BrokerCluster
from tests.waiting import PATIENCE, wait_until

pytestmark = [
    pytest.mark.services,
    pytest.mark.faults("brokers of many are lost: `test_broker_lost.py` loses the only one in `make test`"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with folder_in_memory() as folder, BrokerCluster(folder or tmp_path_factory.mktemp("kafka")) as cluster:
        yield cluster


@pytest.fixture
def stream() -> Iterator[ScriptedStream]:
    with ScriptedStream(page=7) as scripted:
        yield scripted


@contextmanager
def writing(table: SplittingTable) -> Iterator[None]:
    """Write to the table all the time."""
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(0.05):
            table.write(2)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


def wait_for_more(path: Path) -> None:
    """Wait until changes are committed that were not before."""
    config = load(path)
    admin = AdminClient(config.client("test"))
    partitions = [(config.topic(TABLE), number) for number in range(config.kafka.partitions)]

    def seen() -> int:
        return sum(end for _, end in offset_bounds(admin, partitions, PATIENCE).values())

    before = seen()
    wait_until(lambda: seen() > before)


def compare(path: Path, table: SplittingTable) -> None:
    run_until_caught_up(path)
    histories, ids = published_versions(path)
    assert histories == table.histories
    assert set(ids.values()) == {1}


def with_one_coordinator(cluster: BrokerCluster, name: str) -> tuple[str, int]:
    """Return a name with which both producers of a worker have one coordinator, and the partition that it leads."""
    for number in count():
        identity = Identity(f"{name}{number}")
        identity.release()
        first, second = (cluster.transactions_of(f"{identity.transactional_id}{which}") for which in ("", ".2"))
        if first == second:
            return identity.name, first
    raise AssertionError("unreachable")


def healthz(port: int) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/healthz", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("step", ["before_send_offsets", "after_send_offsets", "before_commit"])
def test_a_coordinator_that_moves_in_the_middle_of_a_commit_loses_and_doubles_nothing(
    cluster: BrokerCluster, tmp_path: Path, stream: ScriptedStream, unique: str, step: str
) -> None:
    """I1, I3: the broker that leads the partition of the step is killed while the worker is at it."""
    name, transactions = with_one_coordinator(cluster, unique)
    path = write_config(tmp_path, stream, cluster.bootstrap_servers, name)
    table = SplittingTable(stream, seed=2)
    table.write(30)
    run_until_caught_up(path)
    relay = Relay([sys.executable, "-m", PAUSED_WORKER, str(path), step, "8", "0", "120000"], tmp_path / "relay.log")
    try:
        with writing(table):
            relay.wait_until_paused()
            topic, partition = (
                (OFFSETS, cluster.offsets_of(f"{name}.relay"))
                if step == "before_send_offsets"
                else (TRANSACTIONS, transactions)
            )
            lost = cluster.leader(topic, partition)
            lost.kill()
            cluster.leader(topic, partition)  # waits for another one
            relay.wake()
            wait_for_more(path)
            lost.restart()
            cluster.elect()  # and back again, while the worker commits
            wait_for_more(path)
        assert relay.stop() == 0, relay.log()
    finally:
        relay.kill()
    compare(path, table)


def test_a_relay_says_that_too_few_replicas_are_left_and_goes_on_once_they_are_back(
    cluster: BrokerCluster, tmp_path: Path, stream: ScriptedStream, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1, I3, I10: red with the reason in one line, and green again without a restart."""
    monkeypatch.setenv("RELAY_STALLED_AFTER", "3")
    path = write_config(tmp_path, stream, cluster.bootstrap_servers, unique)
    port = free_port()
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "http": f"{HOST}:{port}"}))
    table = SplittingTable(stream, seed=3)
    table.write(30)
    relay = start_relay(path)
    try:
        relay.wait_for("reading shard")
        with writing(table):
            wait_for_more(path)
            lost = [cluster.brokers[1], cluster.brokers[2]]
            for broker in lost:
                broker.kill()
            reason = "1 of its 3 replicas is in sync, and min.insync.replicas is 2. Start the brokers that are away"
            wait_until(lambda: healthz(port)[0] == 503 and reason in healthz(port)[1])
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(Broker.restart, lost))
            wait_for_more(path)
            wait_until(lambda: healthz(port)[0] == 200)
        assert relay.stop() == 0, relay.log()
        assert relay.has_logged(reason)
    finally:
        relay.kill()
    compare(path, table)
