"""How far behind its topic a reader is, which a paused process, or a consumer without a broker, does not notice."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import TopicPartition

from relay.errors import RelayError
from relay.kafka.compaction import DELETIONS_KEPT

_ASK_EVERY = 10.0
_REQUEST_TIMEOUT = 5.0
_LONGEST_UNREAD = DELETIONS_KEPT / 2

AskForEnds = Callable[[float], Mapping[TopicPartition, "Future[Any]"]]  # takes a timeout in seconds


class MissedDeletions(RelayError):
    """A partition lacks deletions that were not read, or ends before the last offset read: read the topic anew."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The same moment by the monotonic clock and by the wall clock, in seconds."""

    monotonic: float
    wall: float

    def until(self, later: Moment) -> float:
        """Return the seconds until ``later``. While a machine sleeps, its monotonic clock may stand still."""
        return max(later.monotonic - self.monotonic, later.wall - self.wall)


class Freshness:
    """How fresh a reader is, for its own thread. ``positions``: the next offset to read of each partition."""

    def __init__(
        self,
        topic: str,
        positions: Mapping[int, int],
        ask: AskForEnds,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.topic = topic
        self.clock = clock
        self.wall = wall
        self._positions = positions
        self._ask = ask
        # Everything that was in the partition at this moment has been read.
        self._read_at = dict.fromkeys(positions, self.now())
        # Ends that are not reached yet, and when they were asked for.
        self._ends: dict[int, tuple[Moment, int]] = {}
        self._asking: tuple[Moment, Mapping[int, int], Mapping[TopicPartition, Future[Any]]] | None = None
        self._ask_at = 0.0

    def now(self) -> Moment:
        return Moment(self.clock(), self.wall())

    @property
    def read_at(self) -> dict[int, float]:
        """By partition, a monotonic time: everything in the partition at that time has been read."""
        return {partition: moment.monotonic for partition, moment in self._read_at.items()}

    def poll(self) -> None:
        """Ask for the ends when it is time, without waiting. Raises ``MissedDeletions``."""
        if self._asking is not None:
            self._take_answers()
        elif self.clock() >= self._ask_at:
            self._ask_at = self.clock() + _ASK_EVERY
            self._asking = self.now(), dict(self._positions), self._ask(_REQUEST_TIMEOUT)
        for partition, (asked_at, end) in list(self._ends.items()):
            if self._positions[partition] >= end:
                del self._ends[partition]
                self.reached(partition, asked_at)

    def reached(self, partition: int, asked_at: Moment) -> None:
        """Record that the end of ``partition`` at the time ``asked_at`` was reached. Raises ``MissedDeletions``."""
        unread = self._read_at[partition].until(self.now())
        if unread > _LONGEST_UNREAD:  # I4
            raise MissedDeletions(
                f"{self.topic}[{partition}] was not read for {unread:.0f} s, because this process was paused or could "
                f"not reach a broker. Kafka keeps deletions for at least {DELETIONS_KEPT:.0f} s"
            )
        if asked_at.monotonic > self._read_at[partition].monotonic:
            self._read_at[partition] = asked_at

    def require_same(self, partition: int, position: int, end: int) -> None:
        """Raise ``MissedDeletions`` if ``partition``, read up to ``position``, now ends before that, at ``end``."""
        if end < position:  # I3
            raise MissedDeletions(
                f"{self.topic}[{partition}] was read up to offset {position} and now ends at {end}: the topic was "
                "created again, or has lost its last records"
            )

    def _take_answers(self) -> None:
        assert self._asking is not None
        asked_at, positions, answers = self._asking
        if not all(answer.done() for answer in answers.values()):
            return
        self._asking = None
        for where, answer in answers.items():
            # A partition that gave no answer may not have been read to its end; a timed-out request gives offset -1001.
            if answer.exception() is None and (end := answer.result().offset) >= 0:
                self.require_same(where.partition, positions[where.partition], end)
                # An end that is not reached yet stays: while the partition grows, a later end might never be reached.
                self._ends.setdefault(where.partition, (asked_at, end))
