"""How many bytes a transaction may have: what a way to the broker takes in time."""

from __future__ import annotations

from itertools import repeat
from typing import Any

import pytest

from relay.kafka.publisher import TooSlow
from relay.kafka.transaction import LARGEST_TRANSACTION, SMALLEST_TRANSACTION, OpenTransaction
from tests.kafka.scripted_transactions import (
    Group,
    ScriptedPublisher,
    ScriptedTransactions,
    SteppedClock,
    idle_transaction,
)


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def transaction(clock: SteppedClock) -> OpenTransaction:
    return idle_transaction(clock)


class Way:
    """The way to a broker: ``rate`` bytes a second."""

    ROUND_TRIPS = 0.15  # seconds of a commit

    def __init__(self, clock: SteppedClock, rate: float) -> None:
        self.clock = clock
        self.rate = rate
        self.passed = 0

    def commit(self, size: int) -> float:
        """Return the seconds that the records take."""
        self.passed += size
        took = self.wait(size)
        self.clock.now += took + self.ROUND_TRIPS
        return took

    def wait(self, size: int) -> float:
        return size / self.rate


class Quota(Way):
    """A quota of Kafka: what exceeds the rate over the last ten seconds holds up what follows."""

    def __init__(self, clock: SteppedClock, rate: float) -> None:
        super().__init__(clock, rate)
        self._counted: list[tuple[float, int]] = []

    def wait(self, size: int) -> float:
        now = self.clock.now
        self._counted = [each for each in self._counted if each[0] > now - 10.0] + [(now, size)]
        return max(0.0, sum(each for _, each in self._counted) / self.rate - 10.0)


def committed_for(seconds: float, transaction: OpenTransaction, way: Way, page: int) -> list[float]:
    """Commit pages that all wait already. Return how long the broker took for the records of each transaction."""
    sent: Any
    end, took = way.clock.now + seconds, []
    while way.clock.now < end:
        transaction.begin()
        sent = transaction.publisher
        while transaction.has_room_for(page):
            transaction.sent(page, yields=False)
        sent.flush = lambda size=transaction.size: took.append(way.commit(size))
        transaction.commit()
    return took


@pytest.mark.parametrize("page", [100_000, 585_000])
@pytest.mark.parametrize("rate", [200_000, 700_000, 5_000_000, 1_000_000_000])
def test_transactions_use_the_way_to_the_broker_and_arrive_long_before_they_time_out(
    transaction: OpenTransaction, clock: SteppedClock, rate: int, page: int
) -> None:
    """I10: beyond what it takes within the transaction timeout nothing would ever be committed."""
    way = Way(clock, rate)
    took = committed_for(20, transaction, way, page)
    before, begun = way.passed, clock.now
    took += committed_for(60, transaction, way, page)
    assert max(took) <= 5.0
    most = min(rate, LARGEST_TRANSACTION / (Way.ROUND_TRIPS + LARGEST_TRANSACTION / rate))
    assert (way.passed - before) / (clock.now - begun) >= 0.9 * most


@pytest.mark.parametrize(
    ("rate", "page"), [(200_000, 20_000), (200_000, 585_000), (700_000, 100_000), (700_000, 975_000)]
)
def test_what_a_quota_lets_pass_at_once_is_not_followed_by_more_than_it_takes_in_time(
    transaction: OpenTransaction, clock: SteppedClock, rate: int, page: int
) -> None:
    """I10: the bytes of ten seconds pass at once. Transactions that grew with each quick commit waited for longer."""
    way = Quota(clock, rate)
    for _ in range(3):
        assert max(committed_for(60, transaction, way, page)) < 8.0  # a flush has that long
        clock.now += 3600.0


def test_with_a_short_transaction_timeout_transactions_are_smaller(clock: SteppedClock) -> None:
    """I10"""
    sent: Any = ScriptedTransactions(clock)
    transaction = OpenTransaction(repeat(sent), sent, timeout=2.0, clock=clock)
    assert max(committed_for(60, transaction, Way(clock, 2_000_000), 20_000)) <= 1.0


def test_a_transaction_never_has_more_than_can_be_kept(transaction: OpenTransaction, clock: SteppedClock) -> None:
    """I11"""
    way = Way(clock, 1e12)
    committed_for(20, transaction, way, 1 << 20)
    transaction.begin()
    while transaction.has_room_for(1 << 20):
        transaction.sent(1 << 20, yields=False)
    assert transaction.size <= LARGEST_TRANSACTION


def test_a_page_of_any_size_may_be_alone_in_a_transaction(transaction: OpenTransaction) -> None:
    """I10"""
    transaction.begin()
    assert transaction.has_room_for(LARGEST_TRANSACTION)
    transaction.sent(1, yields=False)
    assert not transaction.has_room_for(LARGEST_TRANSACTION)


def test_a_transaction_that_did_not_arrive_in_time_makes_the_next_one_smaller(clock: SteppedClock) -> None:
    """I10"""
    slow = False

    class TooLarge(ScriptedPublisher):
        def flush(self) -> None:
            if slow:
                raise TooSlow("not in time")

    publishers: Any = repeat(TooLarge())
    transaction = OpenTransaction(publishers, Group(), clock=clock)  # type: ignore[arg-type]
    transaction.begin()
    transaction.sent(16 << 20, yields=False)
    transaction.commit()
    transaction.begin()
    assert transaction.has_room_for(4 << 20)
    transaction.sent(16 << 20, yields=False)
    slow = True
    with pytest.raises(TooSlow):
        transaction.commit()
    transaction.abort()
    transaction.begin()
    transaction.sent(SMALLEST_TRANSACTION // 2, yields=False)
    assert transaction.has_room_for(SMALLEST_TRANSACTION // 2)
    assert not transaction.has_room_for(SMALLEST_TRANSACTION)
    transaction.sent(SMALLEST_TRANSACTION // 2, yields=False)
    assert transaction.is_long
