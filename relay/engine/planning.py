"""Where the reading of a stream begins, and what it begins under: the plan, written once for each stream of a source.

It is written anew only by ``relay reset``. A plan that the config or the table no longer agrees with is refused, never
adapted to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from relay.engine.journals import renamed
from relay.errors import ConfigError, RelayError
from relay.kafka.checkpoints import CheckpointView
from relay.lineage import Checkpoint, Gap, Plan, StreamId
from relay.source import Source
from relay.table import TableSchema


def newest_planned(view: CheckpointView, source: str) -> StreamId | None:
    """Return the newest stream of ``source`` that was planned: the one that is read, or was last."""
    planned = [stream for stream in view.plans if stream.source == source]
    return max(planned, key=lambda stream: stream.label, default=None)


class Planning:
    """The plans of one source. ``stream`` is always the one that is being read."""

    def __init__(self, source: Source, view: CheckpointView, *, clock: Callable[[], float] = time.time) -> None:
        self.source = source
        self.view = view
        self.clock = clock

    def before(self, stream: StreamId) -> StreamId | None:
        """Return the newest other stream of this source that was planned. Labels are times, and sort as such."""
        others = [other for other in self.view.plans if other.source == self.source.name and other != stream]
        return max(others, key=lambda other: other.label, default=None)

    def first(self, stream: StreamId) -> tuple[Plan, Gap | None]:
        """Decide where reading begins. Return the gap, too, if the start names shards that are lost (I9).

        Raises ``ConfigError`` if the start is of another stream, ``Unavailable``.
        """
        begin = self.source.starting_points(self.source.shards(), self.clock)
        now, gap = begin.decided_at, None
        if begin.lost:
            lost = {"shards": dict(begin.lost)}
            gap = Gap(self.source.name, stream.label, None, "shards of the token lost", lost, None, now)
        keys, config_hash = self._keys(), self.source.config_hash()
        gap_id = gap.id if gap else None
        return Plan(self.source.start, now, begin.shards, keys, config_hash, gap_id, hashed=self._hashed()), gap

    def again(self, stream: StreamId, requested: str) -> tuple[Plan, Gap]:
        """Decide where the reading of ``stream``, which was planned before, begins anew, and what that skips (I9).

        ``requested``: the ``start`` of the config, which may say something else than this source's. Raises as
        ``first``.
        """
        before = self.view.plans[stream]
        self._check_source(before)
        begin = self.source.starting_points(self.source.shards(), self.clock)
        now = begin.decided_at
        checkpoints = self.view.checkpoints.get(stream, {})
        # The time of the plan tells two resets apart between which nothing was read.
        left = {"planned_at": before.planned_at, "shards": {s: c.position for s, c in _unfinished(checkpoints)}}
        to: dict[str, Any] = {"start": self.source.start, "planned_at": now}
        if begin.lost:
            to["lost"] = dict(begin.lost)
        gap = Gap(self.source.name, stream.label, None, "reset", left, to, now)
        floor = max([before.floor, *(c.token.timestamp for c in checkpoints.values() if c.token)])
        shards, past = begin.shards, before.past
        if self.source.has_journals:
            shards, past = renamed(begin.shards, before, checkpoints)
        return Plan(requested, now, shards, before.keys, before.config_hash, gap.id, floor, before.hashed, past), gap

    def successor(self, stream: StreamId, before: StreamId) -> tuple[Plan, Gap]:
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
                f"{plan.requested!r} and resumes from its checkpoints. Put {plan.requested!r} back, or run "
                f"`relay reset CONFIG {name} --to ...` to read it from another place."
            )
        self._check_source(plan)

    def _hashed(self) -> dict[str, int]:
        return _hashed(self.source.tables()) if self.source.has_journals else {}

    def _check_source(self, plan: Plan) -> None:
        name = self.source.name
        if plan.config_hash != self.source.config_hash():
            raise ConfigError(
                f"source {name}: its checkpoints belong to another stream than the one it names now. "
                "Give the other table a source of another name."
            )
        self._check_keys(plan)

    def _keys(self) -> dict[str, list[list[str]]]:
        return _keys(self.source.tables())

    def added(self, plan: Plan, tables: Iterable[TableSchema]) -> Plan | None:
        """Return ``plan`` with the keys of those of ``tables`` that came later, None if it has them all."""
        new = [table for table in tables if table.table not in plan.keys]
        if not new:
            return None
        return replace(plan, keys={**plan.keys, **_keys(new)}, hashed={**plan.hashed, **_hashed(new)})

    def check_tables(self, plan: Plan, tables: Iterable[TableSchema]) -> None:
        """Refuse changes of ``tables`` whose key is not the one that earlier changes had (I2). ``RelayError``."""
        for table in tables:
            planned = plan.keys.get(table.table)
            if planned is None:
                continue
            before = [column for column, _ in planned]
            keys, hashed = [column.name for column in table.key], plan.hashed.get(table.table, table.hash_columns)
            if keys != before or hashed != table.hash_columns:
                raise RelayError(
                    f"source {self.source.name}: {table.table} is keyed by {', '.join(keys)} from here on, "
                    f"{', '.join(keys[: table.hash_columns])} choosing the partition, but its changes are keyed by "
                    f"{', '.join(before)}, {', '.join(before[:hashed])} choosing it: they would move to other "
                    f"partitions. Say `key: {{{table.table}: [...]}}` with the columns of before, or leave the table "
                    "out of `tables` and read it by a source of another name."
                )

    def _check_keys(self, plan: Plan) -> None:
        if self.source.has_journals:
            # The columns may have become wider since, and tables may have come and gone.
            return self.check_tables(plan, self.source.tables())
        name, keys = self.source.name, self._keys()
        if plan.keys != keys:
            raise ConfigError(
                f"source {name}: the key columns are {keys}, but its changes are keyed by {plan.keys}: "
                "they would move to other partitions. Give the new table a source of another name."
            )
        return None


def _keys(tables: Iterable[TableSchema]) -> dict[str, list[list[str]]]:
    return {table.table: [[column.name, column.type] for column in table.key] for table in tables}


def _hashed(tables: Iterable[TableSchema]) -> dict[str, int]:
    return {table.table: table.hash_columns for table in tables}


def _unfinished(checkpoints: Mapping[str, Checkpoint]) -> Iterator[tuple[str, Checkpoint]]:
    return ((shard, checkpoint) for shard, checkpoint in checkpoints.items() if not checkpoint.state.ended)
