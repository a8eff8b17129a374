"""Gathers records and the checkpoints that cover them into one Kafka transaction after another."""

import math
import time
from collections.abc import Callable, Iterator

from relay.kafka.assignment import Assignment
from relay.kafka.checkpoints import partition_of
from relay.kafka.publisher import Publisher, TooSlow

LONGEST_OPEN = 0.1
"""How many seconds a transaction stays open while more changes arrive, if commits are quick."""

LARGEST_TRANSACTION = 32 << 20
"""A transaction is committed at this many bytes of values (I11: they are kept in memory in case it is aborted)."""

SMALLEST_TRANSACTION = 256 << 10
"""The same while commits are slow, and at the start. One page may be larger."""

GATHER_FOR = 0.01
"""How many seconds after the last commit a transaction stays open under load, to gather more changes."""

CHANGES_ARRIVE_FOR = 0.1
"""For this many seconds after a change of a stream the next is expected, which should not wait for a snapshot."""

LATE_AFTER = 2.0
"""Seconds after which a change is late: the relay is catching up, so it may wait until the transaction is long."""

_FASTER_BY = 2
_COMMIT_GOAL = 1.0  # seconds that a commit should take at most
_TOO_SLOW = 4.0  # times as long: a guess at what records that did not arrive in time would have taken

_HIGH_LOAD = 2 << 20  # bytes of values per second above which small commits would cost more than the changes
_COMMIT_SHARE = 0.05  # of the time, at most, while changes keep arriving
_LONGEST_EVER = 1.0


class TransactionSize:
    """How many bytes of values a transaction may have: what the broker takes in the time that a commit may last."""

    def __init__(self) -> None:
        self.most = SMALLEST_TRANSACTION

    def note(self, size: int, took: float) -> None:
        """Learn from a transaction of ``size`` bytes whose commit took ``took`` seconds, or would have."""
        if took > _COMMIT_GOAL or size >= self.most / 2:
            possible = size * _COMMIT_GOAL / max(took, 1e-3)
            self.most = int(min(LARGEST_TRANSACTION, max(SMALLEST_TRANSACTION, min(possible, _FASTER_BY * self.most))))


class OpenTransaction:
    """The current transaction. It begins with its first record; after a commit or abort the object is reused.

    ``publishers``: gives the publisher of each transaction. ``clock``: monotonic seconds.
    """

    def __init__(
        self, publishers: Iterator[Publisher], group: Assignment, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.clock = clock
        self._publishers = publishers
        self._publisher: Publisher | None = None
        self._allowed = TransactionSize()
        self.group = group
        self.size = 0
        # Those of the rows of snapshots.
        self.yielding = 0
        # Seconds since its newest change was committed at the source.
        self.lag = 0.0
        self._begun = 0.0
        # Whether it has changes of a stream, and when any had some last.
        self._has_changes = False
        self._changed_at = -math.inf
        # Seconds that the last commit took.
        self._commit_took = 0.0
        self._committed_at = 0.0
        # The newest checkpoint per key, None to remove it. Sent with the commit, so once per shard.
        self._records: dict[bytes, bytes | None] = {}
        # Checkpoint partitions that must be owned although no record is written to them.
        self._required: set[int] = set()

    @property
    def publisher(self) -> Publisher:
        """The publisher of the open transaction."""
        if self._publisher is None:
            raise RuntimeError("no transaction is open")
        return self._publisher

    @property
    def open(self) -> bool:
        return self._publisher is not None

    @property
    def age(self) -> float:
        """Seconds since its first record."""
        return self.clock() - self._begun if self.open else 0.0

    @property
    def is_long(self) -> bool:
        """Whether it must be committed although more changes wait."""
        return self.age >= self._longest or self.size >= self._allowed.most

    @property
    def _longest(self) -> float:
        return min(_LONGEST_EVER, max(LONGEST_OPEN, self._commit_took / _COMMIT_SHARE))

    def linger(self, *, backlog: bool) -> float:
        """Return for how many seconds to keep it open although no change waits: 0 unless the load is high.

        ``backlog``: whether a shard that is being read is known to have more.
        """
        since = self.clock() - self._committed_at
        # Rows of a snapshot gather too, but changes do not wait because of them.
        load = self.size if self.takes_rows else self.size - self.yielding
        # The changes that waited for the last commit arrived while it ran.
        if load < _HIGH_LOAD * (since + self._commit_took):
            return 0.0
        return max(0.0, self._longest - self.age if backlog and self.lag > LATE_AFTER else GATHER_FOR - since)

    def begin(self) -> None:
        """Begin, unless it is open. Raises ``Aborted`` or ``Fenced``, as do ``record`` and ``commit``."""
        if self._publisher is None:
            publisher = next(self._publishers)
            publisher.begin()
            self._publisher = publisher
            self._begun = self.clock()

    @property
    def takes_rows(self) -> bool:
        """Whether rows of a snapshot may join it: changes wait for the commit of all that is in their transaction.

        While changes arrive, they find rows of one page at most.
        """
        if self._has_changes:
            return False
        return not self.yielding or self.clock() - self._changed_at > CHANGES_ARRIVE_FOR

    def sent(self, size: int, *, yields: bool) -> None:
        """Count what was sent. ``yields``: rows of a snapshot, which let the changes of streams pass."""
        self.size += size
        if yields:
            self.yielding += size
        else:
            self._has_changes = True
            self._changed_at = self.clock()

    def record(self, key: bytes, value: bytes | None) -> None:
        """Add a checkpoint or plan record; None removes it."""
        self.begin()
        self._records.pop(key, None)  # so that what is recorded before it is seen before it
        self._records[key] = value

    def require_owned(self, key: bytes) -> None:
        """Let the transaction commit only while this worker owns the checkpoint partition of ``key``."""
        self._required.add(partition_of(key))

    def commit(self) -> set[int]:
        """Commit; return the checkpoint partitions written. Also raises ``NotAMember``."""
        if not self.open:
            return set()
        begun = self.clock()
        partitions = {partition_of(key) for key in self._records}
        try:
            # I1: a checkpoint leaves only when the broker has every record before it. Nothing of the transaction waits
            # to be sent then, so what follows takes one round trip after another, however slow the way is.
            self.publisher.flush()
        except TooSlow:
            self._allowed.note(self.size, _TOO_SLOW * (self.clock() - begun))
            raise
        for key, value in self._records.items():
            self.publisher.send(self.group.view.topic, value, key, partition_of(key))
        # I3, I4: the offsets of exactly these partitions tie the commit to their ownership.
        self.publisher.commit(self.group.offsets(partitions | self._required), self.group.metadata)
        self._committed_at = self.clock()
        self._commit_took = self._committed_at - begun
        self._allowed.note(self.size, self._commit_took)
        # I2: another publisher may send only now that these records are committed before its own.
        self.forget()
        return partitions

    def abort(self) -> None:
        """Abort, so that none of its records ever becomes visible. Raises ``Fenced``."""
        if self._publisher is not None:
            self._publisher.abort()
        self.forget()

    def forget(self) -> None:
        """Forget what was open: it has ended, or its publisher has."""
        self._publisher = None
        self._records.clear()
        self._required.clear()
        self.size = self.yielding = 0
        self._has_changes = False
        self.lag = 0.0
