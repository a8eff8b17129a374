"""How long a transaction stays open for more changes: not at all at low load, briefly at high load."""

from __future__ import annotations

from itertools import cycle, repeat
from types import SimpleNamespace
from typing import Any

import pytest

from relay.kafka.checkpoints import partition_of
from relay.kafka.publisher import Aborted, TooSlow
from relay.kafka.transaction import (
    CHANGES_ARRIVE_FOR,
    GATHER_FOR,
    LARGEST_TRANSACTION,
    LATE_AFTER,
    LONGEST_OPEN,
    SMALLEST_TRANSACTION,
    OpenTransaction,
    TransactionSize,
)


class SteppedClock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class ScriptedTransactions:
    """Takes the place of a publisher and of its group."""

    def __init__(self, clock: SteppedClock) -> None:
        self.open = False
        self.clock = clock
        self.takes = 0.0

    def begin(self) -> None:
        self.open = True

    def flush(self) -> None: ...

    def commit(self, offsets: Any, metadata: Any) -> None:
        self.clock.now += self.takes
        self.open = False

    def offsets(self, partitions: Any) -> None:
        assert not partitions

    def metadata(self) -> None:
        raise AssertionError("nothing is sent")


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def transaction(clock: SteppedClock) -> OpenTransaction:
    sent: Any = ScriptedTransactions(clock)
    made = OpenTransaction(repeat(sent), sent, clock=clock)
    made.begin()
    made.commit()
    return made


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


class ScriptedPublisher:
    """Holds what was sent until it is committed or aborted. ``fails``: the next commit does so."""

    def __init__(self) -> None:
        self.open = False
        self.fails = False
        self.aborted = 0
        self.committed: list[Any] = []

    def begin(self) -> None:
        self.open = True

    def send(self, topic: str, value: bytes | None, key: bytes, partition: int) -> None:
        assert self.open

    def flush(self) -> None: ...

    def commit(self, offsets: Any, metadata: Any) -> None:
        if self.fails:
            raise Aborted("a rebalance")
        self.open = False
        self.committed.append(offsets)

    def abort(self) -> None:
        self.open = False
        self.aborted += 1


class Group:
    """Gives the partitions themselves for their offsets."""

    metadata = None
    view = SimpleNamespace(topic="checkpoints")

    def offsets(self, partitions: set[int]) -> list[int]:
        return sorted(partitions)


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


@pytest.mark.parametrize("rate", [50_000, 200_000, 700_000, 5_000_000, 1_000_000_000])
def test_the_size_of_transactions_becomes_what_the_broker_takes_in_a_second(rate: int) -> None:
    """I10: beyond what it takes within the transaction timeout nothing would ever be committed."""
    allowed = TransactionSize()
    sizes = []
    for _ in range(20):
        size = allowed.most
        allowed.note(size, 0.003 + size / rate)
        sizes.append(allowed.most)
    assert max(sizes) <= LARGEST_TRANSACTION
    if rate == 1_000_000_000:
        assert sizes[-1] == LARGEST_TRANSACTION
    elif rate >= SMALLEST_TRANSACTION:
        assert sizes[-1] == pytest.approx(rate, rel=0.5)
    else:
        assert sizes[-1] == SMALLEST_TRANSACTION


def test_small_transactions_at_low_load_do_not_change_how_large_one_may_be() -> None:
    allowed = TransactionSize()
    for _ in range(10):
        allowed.note(allowed.most, 0.01)
    before = allowed.most
    for took in (0.003, 0.5):
        allowed.note(500, took)
    assert allowed.most == before


def test_a_transaction_that_did_not_arrive_in_time_makes_the_next_one_smaller(clock: SteppedClock) -> None:
    """I10"""

    class TooLarge(ScriptedPublisher):
        def flush(self) -> None:
            clock.now += 8.0
            raise TooSlow("not in time")

    publishers: Any = repeat(TooLarge())
    transaction = OpenTransaction(publishers, Group(), clock=clock)  # type: ignore[arg-type]
    transaction.begin()
    transaction.sent(16 << 20, yields=False)
    with pytest.raises(TooSlow):
        transaction.commit()
    transaction.abort()
    transaction.begin()
    transaction.sent(SMALLEST_TRANSACTION, yields=False)
    assert not transaction.is_long
    transaction.sent(SMALLEST_TRANSACTION, yields=False)
    assert transaction.is_long
