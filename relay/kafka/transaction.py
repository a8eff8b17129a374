"""Records and the checkpoints that cover them, gathered into one Kafka transaction after another."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from relay.kafka.assignment import Assignment
from relay.kafka.checkpoints import partition_of
from relay.kafka.publisher import Publisher

LONGEST = 0.1
"""Seconds for which a transaction stays open while more work keeps coming, if commits are quick."""

LARGEST = 32 << 20
"""Bytes of values after which a transaction is committed (I11: what is in it is kept, in case it is aborted)."""

GATHERED = 0.03
"""Seconds after the last commit for which a transaction is kept open for more to come, while much comes."""

LATE = 2.0
"""Seconds after which a change is late: it may as well wait for others until the transaction is a long one."""

_MUCH = 2 << 20  # bytes of values a second: with as many, commits would cost more than what they commit
_COMMITS = 0.05  # the share of the time that commits may take while work keeps coming
_LONGEST_EVER = 1.0


class OpenTransaction:
    """The transaction being filled; it begins with the first record and is reused after its end.

    ``publishers``: take turns, each after the commit of the one before it. The broker refuses the next transaction of
    a producer until all markers of its last one are written, and librdkafka then waits for 20 ms to ask again; under
    another name it can begin at once. ``clock``: seconds that never go back.
    """

    def __init__(
        self,
        publishers: Sequence[Publisher],
        group: Assignment,
        checkpoints: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._publishers = publishers
        self._turn = 0
        self.group = group
        self.checkpoints = checkpoints
        self.size = 0
        # Seconds since the last change in it was committed at its source.
        self.lag = 0.0
        self._begun = 0.0
        # What the last commit took, in seconds.
        self._commit_took = 0.0
        self._committed_at = 0.0
        # The newest checkpoint per key; None prunes. Sent at the end, so once for each shard.
        self._records: dict[bytes, bytes | None] = {}
        # Partitions of checkpoints, of which none was written, that have to be owned all the same.
        self._fenced: set[int] = set()

    @property
    def publisher(self) -> Publisher:
        """Whose turn it is: of the open transaction, or of the next."""
        return self._publishers[self._turn]

    @property
    def open(self) -> bool:
        return self.publisher.open

    @property
    def age(self) -> float:
        """Seconds since its first record."""
        return self.clock() - self._begun if self.open else 0.0

    @property
    def is_long(self) -> bool:
        """Whether it is to be committed though more work waits."""
        return self.age >= self._longest or self.size >= LARGEST

    @property
    def _longest(self) -> float:
        return min(_LONGEST_EVER, max(LONGEST, self._commit_took / _COMMITS))

    @property
    def linger(self) -> float:
        """Seconds that it is still kept open though nothing more waits: none, unless much comes."""
        since = self.clock() - self._committed_at
        # What waited for the last commit to end has come in the time that it took.
        if self.size < _MUCH * (since + self._commit_took):
            return 0.0
        return max(0.0, self._longest - self.age if self.lag > LATE else GATHERED - since)

    def begin(self) -> None:
        """Begin, unless it is open. Raises ``Aborted`` or ``Fenced``, as all that follows."""
        if not self.open:
            self.publisher.begin()
            self._begun = self.clock()

    def record(self, key: bytes, value: bytes | None) -> None:
        """Write a checkpoint or plan record."""
        self.begin()
        self._records[key] = value

    def fence(self, key: bytes) -> None:
        """Let the transaction commit only while the partition of ``key`` is owned."""
        self._fenced.add(partition_of(key))

    def commit(self) -> set[int]:
        """Commit, and return the checkpoint partitions written. Raises ``NotAMember`` too."""
        if not self.open:
            return set()
        begun = self.clock()
        partitions = {partition_of(key) for key in self._records}
        for key, value in self._records.items():
            self.publisher.send(self.checkpoints, value, key, partition_of(key))
        # I3, I4: the offsets of exactly the partitions written tie the transaction to their ownership.
        self.publisher.commit(self.group.offsets(partitions | self._fenced), self.group.metadata)
        self._committed_at = self.clock()
        self._commit_took = self._committed_at - begun
        # I2: only now, when it is decided that what was sent is visible before whatever comes next.
        self._turn = (self._turn + 1) % len(self._publishers)
        self._forget()
        return partitions

    def abort(self) -> None:
        """Abort, so that nothing of it is ever visible. Raises ``Fenced``."""
        self.publisher.abort()
        self._forget()

    def close(self) -> None:
        """End the publishers. What is open stays open until the broker or a successor ends it."""
        for publisher in self._publishers:
            publisher.close()

    def _forget(self) -> None:
        self._records.clear()
        self._fenced.clear()
        self.size = 0
        self.lag = 0.0
