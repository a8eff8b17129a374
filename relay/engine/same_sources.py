"""Whether this worker has all sources that other workers relay: nobody reads a shard whose owner lacks its source.

The committed records tell it. The members of the group would, too, but librdkafka 2.16 ends the process with an
assertion if the coordinator goes away while it is asked to describe a group.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from relay.kafka.checkpoints import CheckpointView

log = logging.getLogger(__name__)

_RELAYED_FOR = 60.0
"""How many seconds a new record of a source shows that another worker relays it: an idle shard has one every ten
seconds."""


class SameSources:
    """Used by the worker's thread. ``sources``: the sources in the config, by name."""

    def __init__(self, view: CheckpointView, sources: Collection[str]) -> None:
        self._view = view
        self._sources = frozenset(sources)
        # By source that this worker lacks: the version of its records, and when that last changed (monotonic).
        self._changed: dict[str, tuple[int, float]] = {}
        self._warned_of: set[str] = set()

    def _planned(self) -> list[str]:
        planned = {stream.source for stream, each in self._view.streams.items() if each.plan is not None}
        return sorted(planned - self._sources)

    def lacking(self) -> tuple[str, ...]:
        """Return the sources that another worker relays, and that this one does not have."""
        found, now = [], time.monotonic()
        for name in self._planned():
            version = self._view.versions[name]
            before, at = self._changed.setdefault(name, (version, -_RELAYED_FOR))
            if version != before:
                before, at = self._changed[name] = version, now
            if now - at < _RELAYED_FOR:
                found.append(name)
        for name in found:
            if name not in self._warned_of:
                self._warned_of.add(name)
                log.warning(
                    "another worker relays source %s, which this worker's config does not have. Nobody reads a shard "
                    "whose owner lacks its source: give every worker the same config",
                    name,
                )
        return tuple(found)

    def warn_of_unread(self) -> None:
        """Warn of sources that have unread shards and are not in the config: they may have been removed for good."""
        for name in self._planned():
            streams = self._view.planned(name)
            unread = sum(not each.state.ended for stream in streams for each in stream.checkpoints.values())
            if unread:
                log.warning(
                    "source %s is not in the config of this worker, but has unread shards (%d). If another worker has "
                    "it, give every worker the same config. If it was removed for good, its records in %s do no harm; "
                    "under the same name it would go on where it stopped",
                    name,
                    unread,
                    self._view.topic,
                )
