"""Whether a consumer starts where its cache namespace was last invalidated, or may have missed changes.

How far the changes of a relay were applied to a namespace is kept in its store. A consumer that starts further on, or
with other cache keys, begins a new generation, and so does one that finds nothing there: otherwise entries that the
changes in between would have invalidated would be served for ever (I6).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from relay.cache.invalidator import Invalidator
from relay.cache.store import FOREVER, KEEP, READ, ConditionalWrite
from relay.errors import RelayError, StoreFull
from relay.kafka.created_again import created_again

Offsets = Mapping[str, Mapping[str, int]]
"""By topic and partition."""

_ATTEMPTS = 100  # more conflicts in a row are a fault, not contention


@dataclass(frozen=True, slots=True)
class AppliedChanges:
    """Changes of a relay that were applied to a namespace: all before ``offsets``.

    ``keys``: identifies the cache keys that they invalidated. ``ids``: the ids of the topics.
    """

    keys: str
    ids: Mapping[str, str]
    offsets: Offsets

    def doubt(self, start: AppliedChanges, ends: Offsets) -> str | None:
        """Return why a consumer that begins at ``start`` may miss changes, or None if it cannot.

        ``ends``: the ends of the topics at present.
        """
        if self.keys != start.keys:
            return "the cache keys have changed"
        for topic in created_again(self.ids, start.ids):
            return f"topic {topic} was created again"
        for topic, partitions in start.offsets.items():
            for partition, offset in partitions.items():
                reached = self.offsets.get(topic, {}).get(partition, 0)
                if reached < offset:
                    return (
                        f"{topic}[{partition}] was applied up to offset {reached}, and the consumer starts at {offset}"
                    )
                if reached > ends[topic][partition]:
                    return f"{topic}[{partition}] ends before offset {reached}, up to which it was applied"
        return None

    def advanced(self, ends: Offsets) -> AppliedChanges:
        """Return what is applied after everything before ``ends`` was applied, too."""
        offsets = {topic: dict(partitions) for topic, partitions in self.offsets.items()}
        for topic, partitions in ends.items():
            of_topic = offsets.setdefault(topic, {})
            for partition, end in partitions.items():
                of_topic[partition] = max(of_topic.get(partition, 0), end)
        return replace(self, offsets=offsets)

    def to_json(self) -> bytes:
        return json.dumps({"keys": self.keys, "ids": self.ids, "offsets": self.offsets}).encode()

    @classmethod
    def from_json(cls, text: bytes | None) -> AppliedChanges | None:
        """Return what ``text`` says, or None if it is empty, or another version may have written it."""
        try:
            fields = json.loads(text or b"")
            found = cls(fields["keys"], fields["ids"], fields["offsets"])
            return found.advanced({})
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


class Continuity:
    """How far one relay's changes were applied to the namespace of ``invalidator``, by all consumers together.

    ``relay``: its name. ``keys``: see `AppliedChanges`. Used by one thread at a time.
    """

    def __init__(self, invalidator: Invalidator, relay: str, keys: str) -> None:
        self._invalidator = invalidator
        self._keys = keys
        # Without a colon, so no cache key can name it.
        self._key = f"{invalidator.namespace}{{applied.{relay}}}"
        self._ids: Mapping[str, str] = {}
        self._stored: bytes | None = None
        self.published_since = ""  # of the changes that are applied next, for `Invalidator.apply`
        self._since = ""
        self._ends: Offsets = {}  # of the topics, soon after `_since` began

    def begin(self, ids: Mapping[str, str], start: Offsets, ends: Offsets) -> str | None:
        """Invalidate the namespace if changes before ``start`` may not have been applied to it; return why.

        ``ids``, ``ends``: what the topics have at present. Raises ``Unavailable``.
        """
        self._ids = ids
        wanted = AppliedChanges(self._keys, ids, start)
        current = self._invalidator.store.compare_and_set([ConditionalWrite(self._key, READ, None, None, KEEP)])
        self._stored = current.get(self._key)
        doubt = None
        for _ in range(_ATTEMPTS):
            applied = AppliedChanges.from_json(self._stored)
            found = "how far it was invalidated is not known" if applied is None else applied.doubt(wanted, ends)
            if found is None:
                return doubt
            if doubt is None:
                doubt = found
                self._invalidator.bump(doubt)  # I6: before it is stored, so that a crash leaves the doubt
            if self._write(wanted):
                return doubt
        raise self._contention()

    def advance(self, ends: Offsets) -> None:
        """Store that everything before ``ends`` is applied. Raises ``Unavailable``."""
        for _ in range(_ATTEMPTS):
            applied = AppliedChanges.from_json(self._stored)
            if applied is None:
                applied = AppliedChanges(self._keys, self._ids, {})  # the store has lost it
            elif applied.keys != self._keys or created_again(applied.ids, self._ids):
                return  # a consumer with other cache keys has begun since
            if self._write(replace(applied.advanced(ends), ids={**applied.ids, **self._ids})):
                return
        raise self._contention()

    def start_at(self, start: Offsets, ends: Callable[[], Offsets]) -> None:
        """Find out ``published_since`` of the changes from ``start`` on.

        ``ends``: asks for the ends of the topics. Raises ``Unavailable``.
        """
        since = self._invalidator.since()
        if since != self._since:
            self._since, self._ends = since, ends()
        is_behind = any(
            start.get(topic, {}).get(partition, 0) < end
            for topic, partitions in self._ends.items()
            for partition, end in partitions.items()
        )
        self.published_since = "" if is_behind else since

    def _write(self, applied: AppliedChanges) -> bool:
        """Store ``applied``, if there is room, unless somebody else has stored anything since; return whether not."""
        meta = applied.to_json()
        if meta == self._stored:
            return True
        try:
            conflicts = self._invalidator.store.compare_and_set(
                [ConditionalWrite(self._key, self._stored, meta, None, FOREVER)]
            )
        except StoreFull:  # I6
            # Rather nothing than what is not true: the next start invalidates the namespace.
            conflicts = self._invalidator.store.compare_and_set(
                [ConditionalWrite(self._key, self._stored, None, None, KEEP)]
            )
            self._stored = conflicts.get(self._key)
            return True
        self._stored = conflicts.get(self._key, meta)
        return not conflicts

    def _contention(self) -> RelayError:
        return RelayError(
            f"{self._key!r} changed during each of {_ATTEMPTS} attempts to write it: check whether another program "
            "writes to it"
        )
