"""A clock, a publisher and a group whose transactions are scripted."""

from itertools import repeat
from types import SimpleNamespace
from typing import Any

from relay.kafka.publisher import Aborted
from relay.kafka.transaction import OpenTransaction


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


def idle_transaction(clock: SteppedClock) -> OpenTransaction:
    """Return one that has been committed once, without changes."""
    sent: Any = ScriptedTransactions(clock)
    made = OpenTransaction(repeat(sent), sent, clock=clock)
    made.begin()
    made.commit()
    return made


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
