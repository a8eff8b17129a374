"""What has advanced, and when. It lives as long as the process, so no recovery resets it (I10)."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from relay.observe.status import SourceView, WorkerStatus
from relay.records import StreamId

_MOOT_AFTER = 30.0  # seconds after which a failed commit no longer counts if nothing waits
_LOOK_EVERY = 5.0  # seconds; a look takes some milliseconds with 10,000 shards


@dataclass(frozen=True, slots=True)
class Uncommitted:
    """What waits for a commit. Times are monotonic seconds."""

    since: float
    failures: int = 0  # failed attempts since then
    failed_at: float = -math.inf  # the last of them
    why: str = ""  # its reason

    def __str__(self) -> str:
        if not self.failures:
            return "no attempt has ended yet"
        attempts = f"{self.failures} attempts failed" if self.failures > 1 else "1 attempt failed"
        return f"{attempts}; the last was {self.why}"


@dataclass(frozen=True, slots=True)
class Advance:
    """When this process first saw the newest checkpoint of a shard, made at ``updated_at``; None without one."""

    updated_at: float | None
    seen_at: float


class Liveness:
    """What has advanced. The worker's thread calls the methods; any thread reads the attributes."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.started = clock()  # when this process began
        self.turned: float | None = None  # when the main loop last began a turn
        self.uncommitted: Uncommitted | None = None  # None if nothing waits for a commit
        self.advances: Mapping[StreamId, Mapping[str, Advance]] = {}  # unfinished readable shards of all workers
        self.differs_since: float | None = None  # since when another worker has had other sources
        self.outside_since: float | None = None  # since when this worker is not in the group
        self._look_at = -math.inf

    @property
    def failures(self) -> int:
        """The number of failed commits since the last successful one."""
        return self.uncommitted.failures if self.uncommitted is not None else 0

    def turn(self, *, waits: bool) -> None:
        """Record that the main loop begins a turn, and whether anything waits for a commit."""
        known, self.turned = self.uncommitted, (now := self.clock())
        if known is None:
            self.uncommitted = Uncommitted(now) if waits else None
        elif not waits and now - known.failed_at > _MOOT_AFTER:
            self.uncommitted = None  # Kafka had committed it after all, or another worker commits it

    def committed(self) -> None:
        self.uncommitted = None

    def failed(self, why: str) -> None:
        """Count a transaction that was probably not committed, with the reason ``why``."""
        now = self.clock()
        since = self.uncommitted.since if self.uncommitted is not None else now
        self.uncommitted = Uncommitted(since, self.failures + 1, now, why)

    def look(self, status: WorkerStatus) -> None:
        now = self.clock()
        if not status.differences:
            self.differs_since = None
        elif self.differs_since is None:
            self.differs_since = now
        if status.joined or status.gained:
            self.outside_since = None
        elif self.outside_since is None:
            self.outside_since = now
        if now >= self._look_at:
            self._look_at = now + _LOOK_EVERY
            self.advances = {source.stream: self._advances(source, now) for source in status.sources if source.plan}

    def _advances(self, source: SourceView, now: float) -> dict[str, Advance]:
        before, found = self.advances.get(source.stream, {}), {}
        for shard in source.unfinished():
            if source.waits_for(shard):
                continue
            checkpoint = source.checkpoints.get(shard)
            updated_at = checkpoint.updated_at if checkpoint is not None else None
            known = before.get(shard)
            found[shard] = known if known is not None and known.updated_at == updated_at else Advance(updated_at, now)
        return found
