"""Which shards have been read up to the start of the command: what ``--until-caught-up`` waits for.

A part of the contract of the command: a shard is finished, or has given a change from after the start, or five empty
pages in a row that were asked for after it; or, where a source can be asked for its head, all that it had then.
Shards that are discovered later count if their parents do, unless they have a head of their own.
"""

from __future__ import annotations

from relay.lineage import Checkpoint, Shard
from relay.source import Page

_EMPTY_PAGES_AT_HEAD = 5


class CaughtUp:
    """What the pages of a stream have shown since ``started``, in seconds. Used by the worker's thread.

    ``has_heads``: its source can be asked for heads.
    """

    def __init__(self, started: float, *, has_heads: bool = False) -> None:
        self.started = started
        # Whether the source says where its heads are, so that an empty page says nothing.
        self._has_heads = has_heads
        # Consecutive empty pages, and shards with a change from after the start.
        self._empty: dict[str, int] = {}
        self._past_start: set[str] = set()

    def note(self, page: Page) -> None:
        """Take in a page that is committed."""
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
        """Whether ``shard`` is caught up. ``listed_at``: when the shards were listed last, in seconds."""
        if checkpoint is not None and checkpoint.state.ended:
            # Its children must have had a chance to be listed.
            return shard.id in self._past_start or listed_at > checkpoint.updated_at
        if shard.id in self._past_start:
            return True
        if not self._has_heads and self._empty.get(shard.id, 0) >= _EMPTY_PAGES_AT_HEAD:
            return True
        if checkpoint is not None and max(checkpoint.progress or 0.0, checkpoint.reached or 0.0) > self.started:
            return True  # another worker's shard
        # Where there are heads, the parent may have ended long before the start, and says nothing of what came after.
        return not self._has_heads and bool(shard.parents) and all(p in self._past_start for p in shard.parents)
