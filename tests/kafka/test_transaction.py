"""How long a transaction is kept open for more: not at all for a few changes, a little while much comes."""

from __future__ import annotations

from typing import Any

import pytest

from relay.kafka.transaction import GATHERED, LATE, LONGEST, OpenTransaction


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Sent:
    """Stands where a publisher and its group do."""

    def __init__(self, clock: Clock) -> None:
        self.open = False
        self.clock = clock
        self.takes = 0.0

    def begin(self) -> None:
        self.open = True

    def commit(self, offsets: Any, metadata: Any) -> None:
        self.clock.now += self.takes
        self.open = False

    def offsets(self, partitions: Any) -> None:
        assert not partitions

    def metadata(self) -> None:
        raise AssertionError("nothing is sent")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def transaction(clock: Clock) -> OpenTransaction:
    sent: Any = Sent(clock)
    made = OpenTransaction([sent], sent, "checkpoints", clock=clock)
    made.begin()
    made.commit()
    return made


@pytest.mark.parametrize("pause", [0.005, 1.0, 3600.0])
def test_a_few_changes_are_committed_at_once(transaction: OpenTransaction, clock: Clock, pause: float) -> None:
    clock.now += pause
    transaction.begin()
    transaction.size += 5_000
    assert transaction.linger == 0.0


def test_what_has_come_while_the_last_commit_took_its_time_is_not_much(
    transaction: OpenTransaction, clock: Clock
) -> None:
    """At a few hundred changes a second some always wait for a commit to end, which is no reason to keep them."""
    transaction.begin()
    sent: Any = transaction.publisher
    sent.takes = 0.014
    transaction.commit()
    clock.now += 0.0001
    transaction.begin()
    transaction.size += 1_500
    assert transaction.linger == 0.0


def test_a_burst_after_a_while_is_committed_at_once(transaction: OpenTransaction, clock: Clock) -> None:
    clock.now += 1.0
    transaction.begin()
    transaction.size += 1 << 20
    assert transaction.linger == 0.0


def test_while_much_comes_a_transaction_gathers_some_and_no_longer_than_that(
    transaction: OpenTransaction, clock: Clock
) -> None:
    clock.now += 0.005
    transaction.begin()
    transaction.size += 1 << 20
    assert transaction.linger == pytest.approx(GATHERED - 0.005)
    clock.now += GATHERED
    assert transaction.linger == 0.0


def test_what_is_late_already_is_gathered_until_the_transaction_is_long(
    transaction: OpenTransaction, clock: Clock
) -> None:
    """A relay that catches up spends its time on changes, not on commits; one that has caught up does not wait."""
    clock.now += 0.005
    transaction.begin()
    transaction.size += 8 << 20
    transaction.lag = LATE + 1.0
    assert transaction.linger == pytest.approx(LONGEST)
    clock.now += GATHERED
    assert transaction.linger == pytest.approx(LONGEST - GATHERED)
    clock.now += LONGEST
    assert transaction.is_long
    assert transaction.linger == 0.0
    transaction.commit()
    assert transaction.lag == 0.0
    clock.now += 0.005
    transaction.begin()
    transaction.size += 5_000
    transaction.lag = 3600.0
    assert transaction.linger == 0.0, "a few late changes are not waited with"
