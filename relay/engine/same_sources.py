"""Whether all workers of a relay have the same sources, and publish the same parts of them.

The owner of each checkpoint partition writes its own sources there, since librdkafka 2.16 may abort a process that
describes its group. A source is read only by workers whose config is *in force*, as the source's plan says: what one
config leaves out is not skipped while another worker wants it (I1). Once no worker has that config, the owner of the
plan puts its own into force.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace

from relay.engine.publishing import Publishing
from relay.kafka.assignment import Assignment
from relay.kafka.checkpoints import OWNER_KEYS
from relay.records import PartitionOwner, Plan

log = logging.getLogger(__name__)

_COMES_BACK = 30.0  # the most seconds to wait while no worker has the config in force: the last one may restart


class SameSources:
    """Compares workers. ``mine``: this worker's record. ``differences``: in words, how others' configs differ (I10)."""

    def __init__(self, group: Assignment, mine: PartitionOwner, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.differences: Sequence[str] = ()
        self._group = group
        self._mine = mine
        # This worker's partitions and the version of all records, when they were last looked at.
        self._seen: tuple[frozenset[int], int] | None = None
        # By source, the other workers that have something else of it.
        self._others: dict[str, list[PartitionOwner]] = {}
        # By source, when such workers were first seen to have the config in force, and until when that counts.
        self._differed: dict[str, tuple[float, float]] = {}

    def serve(self, publishing: Publishing, ready: Mapping[str, int]) -> None:
        """Write this worker's sources to all partitions that it owns, and read what others have written to theirs.

        ``ready``: see ``PartitionOwner``.
        """
        if ready != self._mine.ready:
            self._mine, self._seen = replace(self._mine, ready=ready), None
        owned, view = frozenset(self._group.owned), self._group.view
        if (seen := (owned, view.versions[""])) != self._seen:
            unsaid = [key for each in owned if view.owners.get(key := OWNER_KEYS[each]) != self._mine]
            for key in unsaid:
                publishing.record(key, self._mine.to_json())
            if unsaid:
                publishing.commit()
            self._look(owned)
            self._seen = seen
        now = self.clock()
        for name in self._others:
            plans = [stream.plan for stream in view.planned(name)]
            if any(self._is_wanted(name, plan) for plan in plans if plan is not None):
                since, until = self._differed.get(name, (now, now))
                self._differed[name] = (since if now - until <= _COMES_BACK else now), now

    def _look(self, owned: Set[int]) -> None:
        # Until this worker owns a partition, the records may be of its predecessors.
        keys = [key for partition, key in OWNER_KEYS.items() if owned and partition not in owned]
        found = [each for key in keys if (each := self._group.view.owners.get(key)) is not None]
        self._others = {}
        for other in {each.to_json(): each for each in found}.values():
            for name in {name for name, _ in self._mine.sources.items() ^ other.sources.items()}:
                self._others.setdefault(name, []).append(other)
        words = [self._in_words(*each) for each in sorted(self._others.items())]
        for what in set(words).difference(self.differences):
            log.warning("%s: give every worker the same config", what)
        waiting = (
            f"topic {topic} waits for {number} partitions, until every worker has seen the request and the one that "
            "keeps the plan reads the source"
            for topic, number in self._mine.ready.items()
        )
        self.differences = [*words, *waiting]  # I10

    def _in_words(self, name: str, others: Sequence[PartitionOwner]) -> str:
        processes = ", ".join(sorted(each.process for each in others))
        if name not in self._mine.sources:
            return f"source {name} is relayed by {processes}, but not in this worker's config"
        if any(name in each.sources for each in others):
            return f"the config of {processes} publishes source {name} differently, and only one of the two is in force"
        return f"source {name} is relayed here, but not in the config of {processes}"

    def are_ready(self, topic: str, partitions: int) -> bool:
        """Whether no worker publishes to ``topic`` until it has so many partitions."""
        owners = map(self._group.view.owners.get, OWNER_KEYS.values())
        return all(owner is not None and owner.ready.get(topic) == partitions for owner in owners)

    def is_in_force(self, name: str, plan: Plan) -> bool:
        return plan.in_force == self._mine.sources[name]

    def _is_wanted(self, name: str, plan: Plan) -> bool:
        """Whether another worker has the config in force, and this one does not."""
        return any(other.sources.get(name) == plan.in_force for other in self._others.get(name, ()))

    def put_into_force(self, name: str, plan: Plan) -> Plan | None:
        """Return ``plan`` with this worker's config in force; None if it already is, or may not be yet."""
        since, until = self._differed.get(name, (0.0, 0.0))
        # By the end of a short difference, all workers have been restarted.
        is_wanted = self._is_wanted(name, plan) or self.clock() - until < min(_COMES_BACK, until - since)
        if self.is_in_force(name, plan) or (plan.in_force and is_wanted):  # I1
            return None
        if plan.in_force:
            log.info("source %s: the config of this worker is in force from here on", name)
        return replace(plan, in_force=self._mine.sources[name])

    def warn_of_unread(self) -> None:
        """Warn of unread shards of sources that are missing in the config: they may have been removed for good."""
        view = self._group.view
        planned = {stream.source for stream, each in view.streams.items() if each.plan is not None}
        for name in sorted(planned - self._mine.sources.keys()):
            streams = view.planned(name)
            unread = sum(not each.state.ended for stream in streams for each in stream.checkpoints.values())
            said = (
                "source %s is not in the config of this worker, but has unread shards (%d). If another worker has it, "
                "give every worker the same config. If it was removed for good, its records in %s do no harm; under "
                "the same name it would go on where it stopped"
            )
            if unread:
                log.warning(said, name, unread, view.topic)
