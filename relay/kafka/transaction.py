"""Gathers records and the checkpoints that cover them into successive Kafka transactions."""

import math
import time
from collections.abc import Callable, Iterator

from relay.errors import RelayError
from relay.kafka.assignment import Assignment
from relay.kafka.checkpoints import partition_of
from relay.kafka.publisher import Publisher, TooSlow
from relay.records import parse_key

LONGEST_OPEN = 0.1  # how many seconds a transaction stays open while more changes arrive, if commits are fast
LARGEST_TRANSACTION = 32 << 20
"""A transaction is committed at this many bytes of values (I11: they stay in memory in case it is aborted)."""

SMALLEST_TRANSACTION = 256 << 10  # the same limit after a pause, and while commits are slow. One page may be larger
GATHER_FOR = 0.01  # under load, for how many seconds after the last commit it stays open, to gather more changes
CHANGES_ARRIVE_FOR = 0.1  # seconds after a stream's change in which another is expected, to go before a snapshot
LATE_AFTER = 2.0  # seconds after which a change is late: while the relay catches up, transactions may be long
_SHARE = 5  # a transaction may have one part in this many of the bytes that the broker has lately accepted
_LATELY = 10.0  # seconds: Kafka's quotas count over such a time, and let a burst pass at once

_HIGH_LOAD = 2 << 20  # bytes of values per second above which small commits would cost more than the changes
_COMMIT_SHARE = 0.05  # share of the time, at most, while changes keep arriving
_LONGEST_EVER = 1.0


class TransactionSize:
    """How many bytes of values a transaction may have: a part of what the broker took in ``lately`` seconds."""

    def __init__(self, lately: float, clock: Callable[[], float]) -> None:
        self._lately = lately
        self._clock = clock
        # The committed bytes, weighted less the older they are, and when that sum was computed.
        self._taken = 0.0
        self._at = clock()

    @property
    def most(self) -> int:
        return max(SMALLEST_TRANSACTION, min(LARGEST_TRANSACTION, int(self._now() / _SHARE)))

    def committed(self, size: int) -> None:
        self._taken, self._at = self._now() + size, self._clock()

    def too_slow(self) -> None:
        """Note that the broker did not accept a transaction in time: begin again with small ones (I10)."""
        self._taken = 0.0

    def _now(self) -> float:
        return self._taken * math.exp((self._at - self._clock()) / self._lately)


class OpenTransaction:
    """The current transaction, which begins with its first record, and then the next. ``timeout``: seconds."""

    def __init__(
        self,
        publishers: Iterator[Publisher],
        group: Assignment,
        *,
        timeout: float = _LATELY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._publishers = publishers
        self._publisher: Publisher | None = None
        self._allowed = TransactionSize(min(timeout, _LATELY), clock)
        self.group = group
        self.size = 0
        self.yielding = 0  # bytes of snapshot rows
        # Seconds since its newest change was committed at the source.
        self.lag = 0.0
        self._begun = 0.0
        # Whether it has changes of a stream, and when a transaction last had some.
        self._has_changes = False
        self._changed_at = -math.inf
        # The duration of the last commit in seconds.
        self._commit_took = 0.0
        self._committed_at = 0.0
        # The newest checkpoint per key, None to remove it. Sent with the commit, so only once per shard.
        self._records: dict[bytes, bytes | None] = {}
        # Checkpoint partitions that must be owned although no record is written to them.
        self._required: set[int] = set()

    @property
    def publisher(self) -> Publisher:
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

    def has_room_for(self, size: int) -> bool:
        """Whether a page with ``size`` bytes of changes may join it. Any page may be the first."""
        return not self.is_long and (not self.size or self.size + size <= self._allowed.most)

    @property
    def _longest(self) -> float:
        return min(_LONGEST_EVER, max(LONGEST_OPEN, self._commit_took / _COMMIT_SHARE))

    def linger(self, *, backlog: bool) -> float:
        """Return how many seconds to keep it open although no change waits. ``backlog``: a shard has more to read."""
        since = self.clock() - self._committed_at
        # Snapshot rows are gathered too, but changes do not wait because of them.
        load = self.size if self.takes_rows else self.size - self.yielding
        # The changes that waited for the last commit arrived while it ran.
        if load < _HIGH_LOAD * (since + self._commit_took):
            return 0.0
        return max(0.0, self._longest - self.age if backlog and self.lag > LATE_AFTER else GATHER_FOR - since)

    def begin(self) -> None:
        """Begin, unless it is open. Raises ``Aborted`` or ``Fenced``, like ``record`` and ``commit``."""
        if self._publisher is None:
            publisher = next(self._publishers)
            publisher.begin()
            self._publisher = publisher
            self._begun = self.clock()

    @property
    def takes_rows(self) -> bool:
        """Whether snapshot rows may join it: changes wait until all of it is committed, one page of rows at most."""
        if self._has_changes:
            return False
        return not self.yielding or self.clock() - self._changed_at > CHANGES_ARRIVE_FOR

    def sent(self, size: int, *, yields: bool) -> None:
        """Count the bytes sent. ``yields``: whether they are snapshot rows, which give way to changes of streams."""
        self.size += size
        if yields:
            self.yielding += size
        else:
            self._has_changes = True
            self._changed_at = self.clock()

    def record(self, key: bytes, value: bytes | None) -> None:
        """Add a checkpoint or plan record; None removes it."""
        self.begin()
        self._records.pop(key, None)  # so that records become visible in this order
        self._records[key] = value

    def require_owned(self, key: bytes) -> None:
        """Let the transaction commit only while this worker owns the checkpoint partition of ``key``."""
        self._required.add(partition_of(key))

    def commit(self) -> set[int]:
        """Commit, and return the checkpoint partitions written. Also raises ``NotAMember``."""
        if not self.open:
            return set()
        begun = self.clock()
        partitions = {partition_of(key) for key in self._records}
        try:
            # I1: a checkpoint leaves only when the broker has every record before it. By then the whole transaction is
            # sent, so each further step takes just one round trip, however slow the connection is.
            self.publisher.flush()
        except TooSlow:
            self._allowed.too_slow()
            raise
        for key, value in self._records.items():
            try:
                self.publisher.send(self.group.view.topic, value, key, partition_of(key))
            except RelayError as error:  # the record is too large for the topic
                error.source = parse_key(key)[1].source or None  # I12: other sources go on
                raise
        # I3, I4: the offsets of exactly these partitions tie the commit to their ownership.
        self.publisher.commit(self.group.offsets(partitions | self._required), self.group.metadata)
        self._committed_at = self.clock()
        self._commit_took = self._committed_at - begun
        self._allowed.committed(self.size)
        # I2: another publisher may send only now, because these records are committed before its own.
        self.forget()
        return partitions

    def abort(self) -> None:
        """Abort, so that none of the records ever becomes visible. Raises ``Fenced``."""
        if self._publisher is not None:
            self._publisher.abort()
        self.forget()

    def forget(self) -> None:
        """Reset the object: the transaction has ended, or its publisher has."""
        self._publisher = None
        self._records.clear()
        self._required.clear()
        self.size = self.yielding = 0
        self._has_changes = False
        self.lag = 0.0
