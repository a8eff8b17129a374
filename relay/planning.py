"""Where the reading of a stream begins, and what it begins under: the plan, written once for each stream of a source.

A plan that the config or the table no longer agrees with is refused, never adapted to.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from relay.errors import ConfigError
from relay.kafka.checkpoints import CheckpointView
from relay.lineage import Gap, Plan, Stream
from relay.source import Source


class Planning:
    """The plans of one source. ``stream`` is always the one that is being read."""

    def __init__(self, source: Source, view: CheckpointView, *, clock: Callable[[], float] = time.time) -> None:
        self.source = source
        self.view = view
        self.clock = clock

    def before(self, stream: Stream) -> Stream | None:
        """Return the newest other stream of this source that was planned. Labels are times, and sort as such."""
        others = [other for other in self.view.plans if other.source == self.source.name and other != stream]
        return max(others, key=lambda other: other.label, default=None)

    def first(self) -> Plan:
        """Decide where reading begins."""
        shards = self.source.shards()
        self.source.take_heads(shards)
        now = self.clock()
        since = self.source.start_since(now)
        start = {"type": "trim_horizon"} if since is None else {"since": since}
        return Plan(self.source.start, now, {s.id: start for s in shards}, self._keys(), self.source.config_hash())

    def epoch(self, stream: Stream, before: Stream) -> tuple[Plan, Gap]:
        """Return the plan, and the gap, of a stream that replaces the one ``before``: all of it is read (I9).

        Raises ``ConfigError`` if the table has another key by now.
        """
        self._check_keys(self.view.plans[before])
        now = self.clock()
        place = {"stream": before.label}, {"stream": stream.label}
        gap = Gap(self.source.name, stream.label, None, "new stream", *place, now)
        tokens = [c.token.timestamp for c in self.view.checkpoints.get(before, {}).values() if c.token]
        start = {shard.id: {"type": "trim_horizon"} for shard in self.source.shards()}
        floor = max([self.view.plans[before].floor, *tokens])
        plan = Plan(self.source.start, now, start, self._keys(), self.source.config_hash(), gap.id, floor)
        return plan, gap

    def check(self, plan: Plan) -> None:
        """Refuse to go on under ``plan`` if the config or the table no longer agrees with it."""
        name = self.source.name
        if plan.requested != self.source.start:
            raise ConfigError(
                f"source {name}: start is {self.source.start!r}, but this source was begun with "
                f"{plan.requested!r} and resumes from its checkpoints. Put {plan.requested!r} back; to read it from "
                "another place, run it under another `name`."
            )
        if plan.config_hash != self.source.config_hash():
            raise ConfigError(
                f"source {name}: its checkpoints belong to another stream than the one it names now. "
                "Give the other table a source of another name."
            )
        self._check_keys(plan)

    def _keys(self) -> dict[str, list[list[str]]]:
        return {table.table: [[c.name, c.type] for c in table.key] for table in self.source.tables()}

    def _check_keys(self, plan: Plan) -> None:
        name, keys = self.source.name, self._keys()
        if plan.keys != keys:
            raise ConfigError(
                f"source {name}: the key columns are {keys}, but its changes are keyed by {plan.keys}: "
                "they would move to other partitions. Give the new table a source of another name."
            )
