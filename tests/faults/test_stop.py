"""SIGTERM while Kafka does not answer: the relay ends soon, with the exit code that says whether anything was open.

0: nothing was left to drain. 143: an open transaction could not be committed; the next start publishes it again.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.command_line import run_until_caught_up
from tests.dynamodb.endpoint import ScriptedStream
from tests.faults.scripted_relay import published_versions, start_relay, write_config
from tests.kafka.proxy import Api, ProxiedBroker, passing
from tests.waiting import wait_until

pytestmark = pytest.mark.services

OTHER_WAITS = pytest.mark.faults(
    "each wait ends in the same way: those that are left are before a worker, and of each of its stages"
)

HANGS = 60.0
"""Seconds after which a relay counts as hanging. It should end within 10."""


@pytest.fixture
def path(tmp_path: Path, stream: ScriptedStream, broker: ProxiedBroker, unique: str) -> Path:
    stream.shard("root")
    stream.put("root", "k", 1)
    return write_config(tmp_path, stream, broker.bootstrap_servers, unique)


def has_lost_one_of(name: str, broker: ProxiedBroker) -> bool:
    """Whether a request of this test's relay was lost, and not only some of a client that another test has left."""
    return any(request.client.startswith(f"{name}-") for request in broker.proxy.lost)


@pytest.mark.parametrize(
    ("apis", "client"),
    [
        pytest.param([Api.METADATA], "", id="looking for brokers", marks=OTHER_WAITS),
        pytest.param([Api.FETCH], "-schemas", id="reading the schemas"),
        pytest.param([Api.INIT_PRODUCER_ID], "", id="opening the producers", marks=OTHER_WAITS),
        pytest.param([Api.LIST_OFFSETS], "", id="looking up the ends of the checkpoints", marks=OTHER_WAITS),
        pytest.param([Api.FETCH], "-relay", id="reading the checkpoints"),
        pytest.param([Api.JOIN_GROUP], "", id="joining the group", marks=OTHER_WAITS),
        pytest.param([Api.OFFSET_FETCH], "", id="at the barrier of the fence"),
    ],
)
def test_a_relay_that_waits_for_kafka_at_its_start_can_be_stopped(
    path: Path, broker: ProxiedBroker, unique: str, apis: Sequence[Api], client: str
) -> None:
    run_until_caught_up(path)
    broker.proxy.lose(*apis, client=client)
    relay = start_relay(path)
    wait_until(lambda: has_lost_one_of(unique, broker), 60)
    assert relay.stop(signal.SIGTERM, HANGS) == 0, relay.log()


@pytest.mark.parametrize(
    ("apis", "codes"),
    [
        pytest.param([Api.END_TXN], {143}, id="committing"),
        pytest.param(
            [Api.ADD_OFFSETS_TO_TXN, Api.TXN_OFFSET_COMMIT], {143}, id="sending the offsets", marks=OTHER_WAITS
        ),
        pytest.param([Api.PRODUCE], {143}, id="publishing", marks=OTHER_WAITS),
        pytest.param([Api.LEAVE_GROUP], {0}, id="leaving the group"),
        pytest.param([], {143, 0}, id="doing anything"),
    ],
)
def test_a_relay_that_waits_for_kafka_while_it_runs_can_be_stopped_and_loses_nothing(
    path: Path, stream: ScriptedStream, broker: ProxiedBroker, unique: str, apis: Sequence[Api], codes: set[int]
) -> None:
    """I1, I3"""
    if codes == {143}:
        # Longer than a busy host takes to send the signal: afterwards the client is given up, and nothing is open.
        write_config(path.parent, stream, broker.bootstrap_servers, unique, transaction_timeout=30_000)
    relay = start_relay(path)
    relay.wait_for("reading shard")
    broker.proxy.lose(*apis)
    stream.put("root", "k", 2, old=1)
    if Api.LEAVE_GROUP not in apis:
        wait_until(lambda: has_lost_one_of(unique, broker), 60)
    assert relay.stop(signal.SIGTERM, HANGS) in codes, relay.log()
    broker.proxy.rule = passing
    run_until_caught_up(path)
    histories, ids = published_versions(path)
    assert histories == {"k": [1, 2]}
    assert set(ids.values()) == {1}
