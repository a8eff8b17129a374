"""Which shards are read up to the start of the command, as ``--until-caught-up`` requires.

A shard is caught up once it is finished, has given a change from after the start, or was read to its head after the
start (for DynamoDB see ``relay.dynamodb.head``). If its source knows its head, everything up to that has to be read. A
shard that is discovered later is caught up if its parents are, unless its head is known.
"""

from collections.abc import Iterable

from relay.records import Shard, ShardCheckpoint
from relay.source import Page
from relay.stream.watermark_records import MARGIN


class CaughtUp:
    """What pages of a stream have shown since ``started`` (seconds). ``has_heads``: whether its source knows heads."""

    def __init__(self, started: float, *, has_heads: bool = False) -> None:
        self.started = started
        self._has_heads = has_heads
        # Shards whose last page was at their head, and shards with a change from after the start.
        self._at_head: set[str] = set()
        self._past_start: set[str] = set()

    def note(self, page: Page) -> None:
        shard = page.shard.id
        if page.at_head and page.begun >= self.started:
            self._at_head.add(shard)
        else:
            self._at_head.discard(shard)
        if page.counts.records and self._is_past(page.progress):
            self._past_start.add(shard)
        if page.reached is not None and page.reached >= self.started:
            self._past_start.add(shard)

    def _is_past(self, progress: float | None) -> bool:
        """Whether all records after one created at ``progress`` (seconds) must have been created after the start."""
        return progress is not None and progress > self.started + MARGIN  # I1: times may go backwards

    def keep(self, listed: Iterable[Shard]) -> None:
        """Forget all shards that are neither ``listed`` nor parents of listed ones (I11)."""
        known = {name for shard in listed for name in (shard.id, *shard.parents)}
        self._at_head &= known
        self._past_start &= known

    def has(self, shard: Shard, checkpoint: ShardCheckpoint | None, listed_at: float) -> bool:
        """Whether ``shard`` is caught up, by a listing that began at ``listed_at`` (seconds)."""
        if checkpoint is not None and checkpoint.state.ended:
            # Only after a listing that could show its children.
            return shard.id in self._past_start or listed_at > checkpoint.updated_at
        if shard.id in self._past_start:
            return True
        # An apparent head of a shard that is now closed may have been only a gap between its records.
        if shard.id in self._at_head and not shard.closed and listed_at >= self.started:
            return True
        if checkpoint is not None and (
            self._is_past(checkpoint.progress) or (checkpoint.reached or 0.0) > self.started
        ):
            return True  # another worker read it
        # With heads, a parent may have ended long before the start, so it proves nothing about later changes.
        return not self._has_heads and bool(shard.parents) and all(p in self._past_start for p in shard.parents)
