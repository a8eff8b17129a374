"""How far the changes of a relay were applied to a cache namespace, as its store says, and whether some may be missing.

A consumer that starts later than that, or with different cache keys, or that finds nothing stored, begins a new
generation: otherwise entries that the skipped changes would have invalidated would be served for ever (I6).
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

from relay.cache.invalidator import Invalidator
from relay.cache.store import FOREVER, KEEP, READ, ConditionalWrite
from relay.errors import ConfigError, RelayError, StoreFull
from relay.kafka.created_again import created_again
from relay.records.codec import StoredRecord

Offsets = Mapping[str, Mapping[str, int]]  # by topic and partition
_ATTEMPTS = 100  # more conflicts in a row mean a fault, not contention


@dataclass(frozen=True, slots=True)
class AppliedChanges(StoredRecord):
    """The changes of a relay that were applied to a namespace: all changes before ``offsets``.

    ``keys``: identifies the set of cache keys that they invalidated. ``ids``: the ids of the topics.
    """

    keys: str
    ids: Mapping[str, str]
    offsets: Offsets

    def doubt(self, start: Self, ends: Offsets) -> str | None:
        """Return why a consumer that begins at ``start`` may miss changes, if so. ``ends``: the topics' at present."""
        if self.keys != start.keys:
            return "the cache keys have changed"
        for topic in created_again(self.ids, start.ids):
            return f"topic {topic} was created again"
        for topic in self.offsets.keys() - start.offsets.keys():  # I6
            return f"topic {topic}, which was applied up to now, is no longer read"
        for topic, partitions in start.offsets.items():
            for partition, offset in partitions.items():
                reached = self.offsets.get(topic, {}).get(partition, 0)
                where = f"{topic}[{partition}]"
                if reached < offset:
                    return f"{where} was applied up to offset {reached}, and the consumer starts at {offset}"
                if reached > ends[topic][partition]:
                    return f"{where} ends before offset {reached}, up to which it was applied"
        return None

    def advanced(self, ends: Offsets) -> Self:
        """Return the state after everything before ``ends`` was applied, too."""
        offsets = {topic: dict(partitions) for topic, partitions in self.offsets.items()}
        for topic, partitions in ends.items():
            of_topic = offsets.setdefault(topic, {})
            for partition, end in partitions.items():
                of_topic[partition] = max(of_topic.get(partition, 0), end)
        return replace(self, offsets=offsets)

    @classmethod
    def read(cls, text: bytes | None) -> Self | None:
        """Return the state in ``text``; None if it is empty, or may come from another version."""
        with suppress(ValueError):
            return cls.from_json(text or b"")
        return None


class Continuity:
    """How far one relay's changes were applied to the namespace of ``invalidator``, by all its consumers together.

    ``relay``: the relay's name. ``keys``: see `AppliedChanges`. Used by one thread at a time.
    """

    def __init__(self, invalidator: Invalidator, relay: str, keys: str) -> None:
        self._invalidator = invalidator
        self._keys = keys
        # Without a colon, so no cache key can name it.
        self._key = f"{invalidator.namespace}{{applied.{relay}}}"
        self._ids: Mapping[str, str] = {}
        self._stored: bytes | None = None
        self.published_since = ""  # for the next changes to be applied, see `Invalidator.apply`
        self._since = ""
        self._ends: Offsets = {}  # of the topics, read soon after `_since` began

    def begin(self, ids: Mapping[str, str], start: Offsets, ends: Offsets, refusal: str | None = None) -> str | None:
        """Invalidate the namespace if changes before ``start`` may be missing in it, and return why.

        ``ids``, ``ends``: the topics' present ids and ends. ``refusal``: the text of the ``ConfigError`` to raise if
        the store has no state for this cache, so that the offsets may be another cache's. Raises ``Unavailable``.
        """
        self._ids = ids
        wanted = AppliedChanges(self._keys, ids, start)
        current = self._invalidator.store.compare_and_set([ConditionalWrite(self._key, READ, None, None, KEEP)])
        self._stored = current.get(self._key)
        doubt = None
        for _ in range(_ATTEMPTS):
            applied = AppliedChanges.read(self._stored)
            found = "how far it was invalidated is unknown" if applied is None else applied.doubt(wanted, ends)
            if found is None:
                return doubt
            if refusal is not None and applied is None:  # I10
                raise ConfigError(refusal)
            if doubt is None:
                doubt = found
                self._invalidator.bump(doubt)  # I6: before the state is stored, so that a crash leaves the doubt
            if self._write(wanted):
                return doubt
        raise self._contention()

    def advance(self, ends: Offsets) -> None:
        """Store that everything before ``ends`` is applied. Raises ``Unavailable``."""
        for _ in range(_ATTEMPTS):
            applied = AppliedChanges.read(self._stored)
            if applied is None:
                applied = AppliedChanges(self._keys, self._ids, {})  # the store has lost the state
            elif applied.keys != self._keys or created_again(applied.ids, self._ids):
                return  # a consumer with different cache keys has begun since
            if self._write(replace(applied.advanced(ends), ids={**applied.ids, **self._ids})):
                return
        raise self._contention()

    def start_at(self, start: Offsets, ends: Callable[[], Offsets]) -> None:
        """Determine ``published_since`` from ``start`` on. ``ends``: returns the topics'. Raises ``Unavailable``."""
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
        """Store ``applied`` if there is room. Return False if somebody else has stored a state in the meantime."""
        meta = applied.to_json()
        if meta == self._stored:
            return True
        write = ConditionalWrite(self._key, self._stored, meta, None, FOREVER)
        try:
            conflicts = self._invalidator.store.compare_and_set([write])
        except StoreFull:  # I6
            # Better no state than a wrong one: the next start invalidates the namespace.
            conflicts = self._invalidator.store.compare_and_set([write._replace(meta=None)])
            self._stored = conflicts.get(self._key)
            return True
        self._stored = conflicts.get(self._key, meta)
        return not conflicts

    def _contention(self) -> RelayError:
        return RelayError(
            f"{self._key!r} changed during each of {_ATTEMPTS} attempts to write it: check whether another program "
            "writes to it"
        )
