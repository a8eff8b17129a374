"""Which shards have been read up to the start of the command: what ``--until-caught-up`` waits for.

A shard is caught up once it is finished, or has given a change from after the start, or five consecutive empty pages
that were requested after it; if its source knows its head, once everything up to that head is read. A shard that is
discovered later is caught up if its parents are, unless it has a head of its own.
"""

from __future__ import annotations

from relay.lineage import Checkpoint, Shard
from relay.source import Page

_EMPTY_PAGES_AT_HEAD = 5


class CaughtUp:
    """What the pages of a stream have shown since ``started`` (seconds). Used by the worker's thread.

    ``has_heads``: its source knows the heads of its shards.
    """

    def __init__(self, started: float, *, has_heads: bool = False) -> None:
        self.started = started
        # With heads, empty pages prove nothing.
        self._has_heads = has_heads
        # Consecutive empty pages, and shards with a change from after the start.
        self._empty: dict[str, int] = {}
        self._past_start: set[str] = set()

    def note(self, page: Page) -> None:
        """Note a committed page."""
        shard = page.shard.id
        if page.records or page.gap:
            self._empty[shard] = 0
        elif page.begun >= self.started:
            self._empty[shard] = 1 if page.fresh else self._empty.get(shard, 0) + 1
        if page.changes and page.progress is not None and page.progress > self.started:
            self._past_start.add(shard)
        if page.reached is not None and page.reached >= self.started:
            self._past_start.add(shard)

    def has(self, shard: Shard, checkpoint: Checkpoint | None, listed_at: float) -> bool:
        """Whether ``shard`` is caught up. ``listed_at``: seconds, when the shards were listed last."""
        if checkpoint is not None and checkpoint.state.ended:
            # Only after a listing that can have its children.
            return shard.id in self._past_start or listed_at > checkpoint.updated_at
        if shard.id in self._past_start:
            return True
        if not self._has_heads and self._empty.get(shard.id, 0) >= _EMPTY_PAGES_AT_HEAD:
            return True
        if checkpoint is not None and max(checkpoint.progress or 0.0, checkpoint.reached or 0.0) > self.started:
            return True  # read by another worker
        # With heads, a parent may have ended long before the start, and proves nothing about what came after it.
        return not self._has_heads and bool(shard.parents) and all(p in self._past_start for p in shard.parents)
