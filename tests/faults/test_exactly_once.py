"""Exactly once on the topic, whatever happens to the relay: I1, I2, I3, I4 against the writers' own record."""

from __future__ import annotations

import random
import time

import pytest
from confluent_kafka.admin import AdminClient

from relay.kafka.group import members
from relay.kafka.topics import CHECKPOINT_PARTITIONS
from tests.faults.harness import Scene
from tests.waiting import wait_until

pytestmark = pytest.mark.services

OTHER_STEPS = pytest.mark.faults("the fence is the same at each step; the two that are left are before and after it")


@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.faults("more kills: three are in make test"))])
def test_kills_in_mid_stream_lose_and_double_nothing(scene: Scene, kills: int) -> None:
    """I1, I2, I3: kill -9 several times in a row while writers write, then a clean finish."""
    chance = random.Random(7)
    workload = scene.workload(pause=0.1)
    workload.start()
    seen = 0
    for _ in range(kills):
        relay = scene.relay()
        seen = scene.wait_for_more(seen)
        time.sleep(chance.uniform(0.0, 0.7))
        assert relay.is_running, relay.log()
        relay.kill()
    history = workload.stop()
    assert sum(map(len, history.values())) > 20 * kills
    assert scene.finish(history) == []


# The delay lets the woken worker's background thread hear of its expulsion before its main thread goes on.
@pytest.mark.parametrize(
    ("step", "delay"),
    [
        pytest.param("before_send_offsets", 0.0, marks=OTHER_STEPS),
        ("before_send_offsets", 2.0),
        pytest.param("after_send_offsets", 0.0, marks=OTHER_STEPS),
        ("before_commit", 2.0),
        pytest.param("after_commit", 0.0, marks=OTHER_STEPS),
    ],
)
def test_a_worker_paused_in_its_commit_and_woken_after_another_took_over_doubles_nothing(
    scene: Scene, step: str, delay: float
) -> None:
    """I3, I4: the fence alone holds at every step of the commit path, no timeout helping."""
    workload = scene.workload(pause=0.1)
    workload.start()
    paused = scene.paused_relay(step, 8, delay, transaction_timeout=120_000)
    paused.wait_until_paused()
    other = scene.relay()
    # Readers see nothing behind the open transaction. The other one gets its partitions once the group has expelled the
    # paused one, and then may have to wait for the end of that transaction; before that if a checkpoint is in it.
    other.wait_for("took over", "waiting for the transaction", "for the transaction of another worker", timeout=120)
    paused.wake()
    time.sleep(delay + 3.0)
    history = workload.stop()
    assert other.is_running, other.log()
    assert paused.terminate() == 0, paused.log()
    assert other.terminate() == 0, other.log()
    assert scene.finish(history) == []


def test_a_worker_paused_past_its_transaction_timeout_doubles_nothing(scene: Scene) -> None:
    """I3: as configured, the broker ends the paused transaction, and the other worker goes on meanwhile."""
    workload = scene.workload(pause=0.1)
    workload.start()
    paused = scene.paused_relay("before_commit", 8, 0.0, transaction_timeout=2000)
    paused.wait_until_paused()
    other = scene.relay()
    # The paused worker publishes nothing, so what comes now is the other's.
    scene.wait_for_more(scene.wait_for_more(0))
    paused.wake()
    time.sleep(3.0)
    history = workload.stop()
    assert paused.terminate() == 0, paused.log()
    assert other.terminate() == 0, other.log()
    assert scene.finish(history) == []


@pytest.mark.parametrize("times", [2, pytest.param(4, marks=pytest.mark.faults("more often: the same test with two"))])
def test_two_workers_that_come_and_go_lose_and_double_nothing(scene: Scene, times: int) -> None:
    """I1, I2, I3: clean hand-overs between workers in mid-stream."""
    workload = scene.workload(pause=0.05)
    workload.start()
    seen = 0
    first = scene.relay()
    for _ in range(times):
        seen = scene.wait_for_more(seen)
        second = scene.relay()
        second.wait_for("took over")
        seen = scene.wait_for_more(seen)
        assert first.terminate() == 0, first.log()
        first = second
    history = workload.stop()
    assert first.terminate() == 0, first.log()
    assert scene.finish(history) == []


def test_a_worker_paused_while_it_keeps_what_it_has_to_hand_over_doubles_nothing_and_goes_on(scene: Scene) -> None:
    """I3, I10: it is expelled meanwhile, so what it keeps belongs to another worker when it wakes."""
    workload = scene.workload(pause=0.05)
    workload.start()
    first = scene.relay()
    seen = scene.wait_for_more(0)
    second = scene.relay()
    group, checkpoints = f"{scene.config.name}.relay", scene.config.internal("checkpoints")
    admin = AdminClient(scene.config.kafka.client())

    def shares() -> list[int]:
        return sorted(len(member.partitions) for member in members(admin, group, checkpoints))

    # A half was taken from the first worker, which keeps it for a second: this usually sees [0, half].
    wait_until(lambda: max(shares(), default=0) == CHECKPOINT_PARTITIONS // 2 or None, 60)
    first.pause()
    first.wait_until_paused()
    wait_until(lambda: shares() == [CHECKPOINT_PARTITIONS] or None, 60)
    seen = scene.wait_for_more(scene.wait_for_more(seen))
    first.wake()
    wait_until(lambda: shares() == [CHECKPOINT_PARTITIONS // 2] * 2 or None, 60)
    assert second.terminate() == 0, second.log()
    scene.wait_for_more(scene.wait_for_more(seen))  # now from the first one alone
    history = workload.stop()
    assert first.terminate() == 0, first.log()
    assert scene.finish(history) == []
