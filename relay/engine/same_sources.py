"""Whether all workers of the group have the same sources: nobody reads a shard whose owner lacks its source."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection

from confluent_kafka.admin import AdminClient

from relay.errors import Unavailable
from relay.kafka.checkpoints import CheckpointView
from relay.kafka.group import Member, fingerprint, members
from relay.kafka.settings import KafkaSettings
from relay.process.slow_call import SlowCall

log = logging.getLogger(__name__)

_ASK_EVERY = 10.0  # seconds


class SameSources:
    """Asks Kafka for the members of the group, without waiting for the answer. Used by the worker's thread.

    ``sources``: the names of those in the config. ``differing``: the workers that have others, as `relay status` calls
    them. ``clock``: monotonic seconds.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        view: CheckpointView,
        sources: Collection[str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.differing: tuple[str, ...] = ()
        self._settings = settings
        self._view = view
        self._sources = frozenset(sources)
        self._admin = AdminClient(dict(settings.client))
        self._asking: SlowCall[list[Member]] | None = None
        self._ask_at = 0.0
        self._warned_of: tuple[str, ...] = ()

    def lacking(self) -> tuple[str, ...]:
        """Return the sources that some worker has planned, and that this one does not have."""
        return tuple(sorted(name for name, streams in self._view.planned.items() if streams and self._lacks(name)))

    def _lacks(self, source: str) -> bool:
        return source not in self._sources

    def warn_of_unread(self) -> None:
        """Say which sources have shards left to read and are not in the config: they may have been removed for good."""
        checkpoints = self._view.checkpoints
        for name in self.lacking():
            streams = self._view.planned[name]
            unread = sum(not c.state.ended for stream in streams for c in checkpoints.get(stream, {}).values())
            if unread:
                log.warning(
                    "source %s is not in the config of this worker, but has unread shards (%d). If another worker has "
                    "it, give every worker the same config. If it was removed for good, its records in %s do no harm; "
                    "under the same name it would go on where it stopped",
                    name,
                    unread,
                    self._view.topic,
                )

    def poll(self) -> None:
        """Take the members of the group, or ask for them when it is time."""
        if self._asking is None:
            if self.clock() >= self._ask_at:
                self._ask_at = self.clock() + _ASK_EVERY
                group, topic = self._settings.group, self._settings.checkpoints
                self._asking = SlowCall("members", lambda: members(self._admin, group, topic))
        elif self._asking.done:
            asking, self._asking = self._asking, None
            try:
                self._take(asking.result())
            except Unavailable as error:
                log.debug("cannot tell whether all workers have the same sources: %s", error)

    def _take(self, found: list[Member]) -> None:
        own, before = fingerprint(self._sources), self.differing
        self.differing = tuple(sorted(member.client for member in found if member.sources != own))
        # The second time: workers may just be getting another config, one after the other.
        if self.differing and self.differing == before != self._warned_of:
            self._warned_of = self.differing
            log.warning(
                "%s: other sources in the config than this worker's (%s). Nobody reads a shard whose owner lacks its "
                "source: give every worker the same config",
                ", ".join(self.differing),
                ", ".join(sorted(self._sources)),
            )
