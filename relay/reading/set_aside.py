"""The parts of a source that cannot be relayed until somebody acts (I12). They are also retried each minute."""

import logging
import math
import random
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace

from relay.errors import ConfigError, RelayError
from relay.kafka.checkpoints import partition_of
from relay.records import CommittedStream, Gap

log = logging.getLogger(__name__)

TRY_AGAIN = 60.0  # seconds until a refused read is retried without a decision
_GOES_ON_AFTER = 30.0  # seconds without changes until a retried shard counts as readable: a refusal may come late


class GapPending(RelayError):
    """Changes are missing, and ``on_gap`` leaves the decision to a person."""

    def __init__(self, gap: Gap) -> None:
        super().__init__(
            f"source {gap.source}: changes are missing: {gap} (gap {gap.id}). Nothing was skipped. Run "
            f"`relay gaps accept CONFIG {gap.id} skip|resnapshot`: skip records the gap and continues, "
            "resnapshot also reads the table again. Set `on_gap` on the source to decide for all future gaps."
        )
        self.gap = gap


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused part. ``name``: the shard, or the segment of a snapshot; None means the whole stream.

    In seconds by the clock: ``since`` it was first refused, ``again_at`` when it is retried, the last ``tried_at``.
    """

    name: str | None
    error: RelayError
    since: float
    again_at: float
    tried_at: float = math.inf


class SetAside:
    """The ``refusals`` of one source, by the key of the record of each part, including those that are being retried."""

    def __init__(self, committed: CommittedStream, *, clock: Callable[[], float]) -> None:
        self.refusals: Mapping[bytes, Refusal] = {}
        self._committed = committed
        self._clock = clock
        self._waited: frozenset[bytes] = frozenset()

    def add(self, key: bytes, name: str | None, error: RelayError) -> None:
        """Let the part with the record ``key`` wait."""
        now, before = self._clock(), self.refusals.get(key)
        if before is None or str(before.error) != str(error):
            # As text: kept log records would keep everything that a raised error refers to.
            log.error("%s; the relay continues with the rest, and retries this each minute", str(error))
        since = now if before is None else before.since
        # At different times, because each retry waits for Kafka.
        again_at = now + TRY_AGAIN * random.uniform(1.0, 1.25)
        self.refusals = {**self.refusals, key: Refusal(name, error.kept(), since, again_at)}

    @contextmanager
    def opening(self, key: bytes, name: str) -> Iterator[None]:
        """Open the part with the record ``key``; let it wait if it is refused. Raises ``ConfigError``."""
        try:
            yield
        except ConfigError as error:
            error.source = self._committed.stream.source
            raise
        except RelayError as error:  # I12
            self.add(key, name, error)
            return
        if (refusal := self.refusals.get(key)) is not None:
            self.refusals = {**self.refusals, key: replace(refusal, tried_at=self._clock())}

    def forget(self, key: bytes) -> None:
        """Remove a part that can be relayed again."""
        if key in self.refusals:
            self.refusals = {each: refusal for each, refusal in self.refusals.items() if each != key}

    def lose(self, partitions: Set[int] | None) -> None:
        """Drop parts in ``partitions``, or all: other workers may own them now, and find out for themselves."""
        kept = {} if partitions is None else self.refusals
        self.refusals = {key: each for key, each in kept.items() if partition_of(key) not in (partitions or ())}

    def read(self, key: bytes, *, has_passed: bool) -> None:
        """Note that a page is published. ``has_passed``: the page is not empty, so it passed the refused position."""
        refusal = self.refusals.get(key)
        if refusal is not None and (has_passed or self._clock() > refusal.tried_at + _GOES_ON_AFTER):
            log.warning("source %s: %s is relayed again", self._committed.stream.source, refusal.name)
            self.forget(key)

    def waiting(self) -> frozenset[bytes]:
        """Return the keys of parts that must not be tried now."""
        if not self.refusals:
            return frozenset()
        now = self._clock()
        return frozenset(
            key for key, each in self.refusals.items() if now < each.again_at and not self._is_decided(each)
        )

    @property
    def has_news(self) -> bool:
        """Whether `released` would return anything, or a part has begun to wait."""
        return self.waiting() != self._waited

    def released(self) -> dict[bytes, Refusal]:
        """Return the parts that waited at the last call and may be tried now."""
        before, self._waited = self._waited, self.waiting()
        return {key: self.refusals[key] for key in before - self._waited if key in self.refusals}

    @property
    def next_try(self) -> float:
        """When the first part is retried without a decision, by the clock; infinity without parts."""
        now = self._clock()
        return min((each.again_at for each in self.refusals.values() if each.again_at > now), default=math.inf)

    def _is_decided(self, refusal: Refusal) -> bool:
        if not isinstance(refusal.error, GapPending):
            return False
        pending = self._committed.pending_gaps.get(refusal.error.gap.id)
        return pending is not None and pending.decision is not None
