"""How long a transaction stays open for more changes: not at all at low load, briefly at high load."""

from __future__ import annotations

from itertools import cycle, repeat
from typing import Any

import pytest

from relay.errors import RelayError
from relay.kafka.checkpoints import partition_of
from relay.kafka.publisher import Aborted
from relay.kafka.transaction import CHANGES_ARRIVE_FOR, GATHER_FOR, LATE_AFTER, LONGEST_OPEN, OpenTransaction
from relay.records import StreamId, owner_key
from tests.kafka.scripted_transactions import Group, ScriptedPublisher, SteppedClock, idle_transaction


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def transaction(clock: SteppedClock) -> OpenTransaction:
    return idle_transaction(clock)


@pytest.mark.parametrize("pause", [0.005, 1.0, 3600.0])
def test_at_low_load_a_transaction_is_committed_at_once(
    transaction: OpenTransaction, clock: SteppedClock, pause: float
) -> None:
    clock.now += pause
    transaction.begin()
    transaction.size += 5_000
    assert transaction.linger(backlog=True) == 0.0


def test_changes_that_arrived_during_the_last_commit_do_not_count_as_high_load(
    transaction: OpenTransaction, clock: SteppedClock
) -> None:
    """At a few hundred changes a second, some always wait for a commit to end; that is not a reason to delay them."""
    transaction.begin()
    sent: Any = transaction.publisher
    sent.takes = 0.014
    transaction.commit()
    clock.now += 0.0001
    transaction.begin()
    transaction.size += 1_500
    assert transaction.linger(backlog=True) == 0.0


def test_a_burst_after_a_pause_is_committed_at_once(transaction: OpenTransaction, clock: SteppedClock) -> None:
    clock.now += 1.0
    transaction.begin()
    transaction.size += 1 << 20
    assert transaction.linger(backlog=True) == 0.0


def test_at_high_load_a_transaction_stays_open_for_a_short_time(
    transaction: OpenTransaction, clock: SteppedClock
) -> None:
    clock.now += 0.005
    transaction.begin()
    transaction.size += 1 << 20
    assert transaction.linger(backlog=True) == pytest.approx(GATHER_FOR - 0.005)
    clock.now += GATHER_FOR
    assert transaction.linger(backlog=True) == 0.0


def test_rows_of_a_snapshot_gather_but_are_not_a_load_that_changes_have_to_wait_for(
    transaction: OpenTransaction, clock: SteppedClock
) -> None:
    clock.now += 0.005
    transaction.begin()
    transaction.sent(4 << 20, yields=True)
    assert transaction.linger(backlog=True) == pytest.approx(GATHER_FOR - 0.005)
    transaction.sent(1000, yields=False)
    assert transaction.linger(backlog=True) == 0.0


def test_no_rows_of_a_snapshot_join_changes(transaction: OpenTransaction) -> None:
    def takes_rows() -> bool:
        return transaction.takes_rows

    transaction.begin()
    for _ in range(2):
        assert takes_rows()
        transaction.sent(1 << 20, yields=True)
    transaction.sent(1000, yields=False)
    assert not takes_rows()
    transaction.commit()
    assert takes_rows()


def test_while_changes_arrive_a_transaction_takes_one_page_of_a_snapshot_and_does_not_wait_for_more(
    transaction: OpenTransaction, clock: SteppedClock
) -> None:
    def takes_rows() -> bool:
        return transaction.takes_rows

    transaction.begin()
    transaction.sent(1000, yields=False)
    transaction.commit()
    clock.now += 0.001
    transaction.begin()
    assert takes_rows()
    transaction.sent(4 << 20, yields=True)
    assert not takes_rows()
    assert transaction.linger(backlog=True) == 0.0
    clock.now += 2 * CHANGES_ARRIVE_FOR
    assert takes_rows()


def test_while_catching_up_a_transaction_stays_open_until_it_is_long(
    transaction: OpenTransaction, clock: SteppedClock
) -> None:
    """A relay that catches up spends its time on changes, not on commits; once caught up it does not wait."""
    clock.now += 0.005
    transaction.begin()
    transaction.size += 8 << 20
    transaction.lag = LATE_AFTER + 1.0
    assert transaction.linger(backlog=True) == pytest.approx(LONGEST_OPEN)
    clock.now += GATHER_FOR
    assert transaction.linger(backlog=True) == pytest.approx(LONGEST_OPEN - GATHER_FOR)
    clock.now += LONGEST_OPEN
    assert transaction.is_long
    assert transaction.linger(backlog=True) == 0.0
    transaction.commit()
    assert transaction.lag == 0.0
    clock.now += 0.005
    transaction.begin()
    transaction.size += 5_000
    transaction.lag = 3600.0
    assert transaction.linger(backlog=True) == 0.0, "a few late changes do not wait"


def test_late_changes_do_not_wait_once_no_shard_has_more(transaction: OpenTransaction, clock: SteppedClock) -> None:
    """The last changes of a backlog, and those whose successors another shard has, which is read after their commit."""
    clock.now += 0.005
    transaction.begin()
    transaction.size += 8 << 20
    transaction.lag = LATE_AFTER + 1.0
    assert transaction.linger(backlog=False) == pytest.approx(GATHER_FOR - 0.005)


def test_a_transaction_that_fails_to_commit_is_the_one_that_is_aborted() -> None:
    """I2, I3: else its records stay open beside those of the other publisher, and may be committed after them."""
    first, second = ScriptedPublisher(), ScriptedPublisher()
    publishers: Any = cycle([first, second])
    transaction = OpenTransaction(publishers, Group())  # type: ignore[arg-type]
    transaction.record(b"k", b"v")
    first.fails = True
    with pytest.raises(Aborted):
        transaction.commit()
    transaction.abort()
    assert (first.open, first.aborted, second.aborted) == (False, 1, 0)
    first.fails = False
    for _ in range(3):
        transaction.record(b"k", b"v")
        transaction.commit()
    assert [len(first.committed), len(second.committed)] == [1, 2]


def test_a_transaction_commits_only_with_the_partitions_that_it_requires() -> None:
    """I4: those of its checkpoints, and those that it says it needs, such as of a watermark."""
    publisher = ScriptedPublisher()
    publishers: Any = repeat(publisher)
    transaction = OpenTransaction(publishers, Group())  # type: ignore[arg-type]
    transaction.record(b"written", b"v")
    transaction.require_owned(b"required")
    assert transaction.commit() == {partition_of(b"written")}
    transaction.begin()
    transaction.commit()
    assert publisher.committed == [sorted({partition_of(b"written"), partition_of(b"required")}), []]


@pytest.mark.parametrize(("key", "source"), [(StreamId("orders", "label").plan_key, "orders"), (owner_key(1), None)])
def test_a_record_that_is_too_large_for_the_checkpoints_is_a_fault_of_its_source(
    key: bytes, source: str | None
) -> None:
    """I12"""

    class Bounded(ScriptedPublisher):
        def send(self, topic: str, value: bytes | None, key: bytes, partition: int) -> None:
            raise RelayError("the record is too large")

    publishers: Any = repeat(Bounded())
    transaction = OpenTransaction(publishers, Group())  # type: ignore[arg-type]
    transaction.record(key, b"v")
    with pytest.raises(RelayError, match="too large") as raised:
        transaction.commit()
    assert raised.value.source == source


def test_a_checkpoint_leaves_only_when_the_broker_has_every_record_before_it() -> None:
    """I1: if a transaction is torn, its checkpoint is not the half that becomes visible."""
    steps: list[str] = []

    class Ordered(ScriptedPublisher):
        def send(self, topic: str, value: bytes | None, key: bytes, partition: int) -> None:
            steps.append(topic)

        def flush(self) -> None:
            steps.append("acknowledged")

        def commit(self, offsets: Any, metadata: Any) -> None:
            steps.append("committed")

    publishers: Any = repeat(Ordered())
    transaction = OpenTransaction(publishers, Group())  # type: ignore[arg-type]
    transaction.record(b"k", b"v")
    transaction.publisher.send("orders", b"v", b"k", 0)
    transaction.commit()
    assert steps == ["orders", "acknowledged", "checkpoints", "committed"]
