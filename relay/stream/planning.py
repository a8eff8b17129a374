"""The plan of a stream: where reading begins and how tables are keyed. Only ``relay reset`` replaces it."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from relay.config.topic_routes import TopicClaims
from relay.errors import ConfigError, RelayError
from relay.process.slow_call import SlowCall
from relay.records import CommittedRecords, CommittedStream, Gap, Plan, StreamId, TableKey
from relay.source import Source
from relay.stream.journals import renamed
from relay.stream.lost_state import CHECKPOINTS_LOST, Loss
from relay.stream.topic_partitions import moved_tables
from relay.table import TableSchema


class Planning:
    """Makes and checks the plans of one source. ``stream`` is always the stream that is being read."""

    def __init__(self, source: Source, view: CommittedRecords, claims: TopicClaims) -> None:
        self.source = source
        self.view = view
        self._claims = claims
        self.clock = source.clock
        # The id of the Kafka cluster, for new plans.
        self.cluster = ""
        self._making: SlowCall[tuple[Plan, Gap | None]] | None = None
        self._is_outdated = False  # whether the config was reloaded since the present plan was begun
        self.wanted_at: float | None = None  # since when this worker has had to make a plan

    def before(self, stream: StreamId) -> CommittedStream | None:
        return self.view.newest(self.source.name, but=stream)

    def first(self, stream: StreamId) -> tuple[Plan, Gap | None]:
        """Return a first plan, and a gap for lost shards (I9). Raises ``ConfigError``, ``Unavailable``."""
        begin = self.source.starting_points(self.source.shards())
        now, gap = begin.decided_at, None
        if begin.lost:
            lost = {"shards": dict(begin.lost)}
            gap = Gap(self.source.name, stream.label, None, "shards of the token lost", lost, None, now)
        keys, config_hash = self._keys(), self.source.config_hash()
        gap_id = gap.id if gap else None
        tables = self.source.tables() if self.source.has_journals else ()
        hashed = {table.table: table.hash_columns for table in tables}
        return Plan(self.source.start, now, begin.shards, keys, config_hash, gap_id, hashed=hashed), gap

    def again(self, committed: CommittedStream, before: Plan, requested: str) -> tuple[Plan, Gap]:
        """Return another plan, ``requested`` by `start`, and a gap that says what it skips (I9). Raises as `first`.

        ``before``: the committed plan, with the tables that only checkpoints announce.
        """
        checkpoints = committed.checkpoints
        self._check_source(before)
        begin = self.source.starting_points(self.source.shards())
        now = begin.decided_at
        # The time of the plan distinguishes two resets without a read in between.
        unfinished = {shard: each.position for shard, each in checkpoints.items() if not each.state.ended}
        left = {"planned_at": before.planned_at, "shards": unfinished}
        to: dict[str, Any] = {"start": self.source.start, "planned_at": now}
        if begin.lost:
            to["lost"] = dict(begin.lost)
        gap = Gap(self.source.name, committed.stream.label, None, "reset", left, to, now)
        shards, past = begin.shards, before.past
        if self.source.has_journals:
            shards, past = renamed(begin.shards, before, checkpoints)
        floor = committed.floor
        made = Plan(requested, now, shards, before.keys, before.config_hash, gap.id, floor, before.hashed, past)
        return replace(made, partitions=before.partitions, routes=before.routes, topics=before.topics), gap

    def after_loss(self, stream: StreamId, requested: str, loss: Loss) -> tuple[Plan, Gap]:
        """Return a new plan for a stream whose plan is lost, and its gap (I9). Parameters: see `again`."""
        plan, expired = self.first(stream)
        to: dict[str, Any] = {"start": self.source.start, "planned_at": plan.planned_at}
        if expired is not None:
            to["lost"] = (expired.begin or {})["shards"]
        gap = loss.gap(self.source.name, stream.label, CHECKPOINTS_LOST, to, plan.planned_at)
        return replace(plan, requested=requested, gap=gap.id), gap

    @property
    def is_making(self) -> bool:
        """Whether a plan is being made, or is ready but was not taken yet."""
        return self._making is not None

    @property
    def is_asking(self) -> bool:
        """Whether the source is still being asked for a plan."""
        return self._making is not None and not self._making.done()

    def make(self, stream: StreamId) -> tuple[Plan, Gap | None] | None:
        """Return the plan of ``stream`` and the gap before it; None while it is made. Raises as `first` does.

        Only the owner of the source's key calls this.
        """
        if self.wanted_at is None:
            self.wanted_at = self.clock()
        if self._making is None:
            before = self.before(stream)  # here: the call asks the source in another thread, and must not use the view
            make: Callable[[], tuple[Plan, Gap | None]] = partial(self.first, stream)
            if before is not None and before.plan is not None:
                make = partial(self._successor, stream, before.stream.label, before.plan, floor=before.floor)
            self._making = SlowCall(f"plan-{self.source.name}", make)
        if not self._making.done():
            return None
        made, self._making = self._making, None
        if self._is_outdated:
            self._is_outdated = False
            return None
        plan, gap = made.result()
        return replace(plan, cluster=self.cluster), gap

    def reloaded(self) -> None:
        """Note that the config was read again: a plan in the making may name shards that the config no longer has."""
        self._is_outdated = self.is_making

    def drop(self) -> None:
        """Forget a plan in the making: it is no longer needed, or another worker makes it now."""
        self._making = self.wanted_at = None
        self._is_outdated = False

    def _successor(self, stream: StreamId, label: str, before: Plan, *, floor: int) -> tuple[Plan, Gap]:
        """Return the plan of a stream, from its horizon, that replaces ``label``, and the gap between them (I9)."""
        self._check_keys(before)
        now = self.clock()
        gap = Gap(self.source.name, stream.label, None, "new stream", {"stream": label}, {"stream": stream.label}, now)
        start = {shard.id: {"type": "trim_horizon"} for shard in self.source.shards()}
        keys, config_hash = self._keys(), self.source.config_hash()
        made = Plan(self.source.start, now, start, keys, config_hash, gap.id, floor, in_force=before.in_force)
        return replace(made, partitions=before.partitions, routes=before.routes, topics=before.topics), gap

    def check(self, plan: Plan) -> None:
        """Refuse ``plan`` if it contradicts the config or the table. Raises ``ConfigError``."""
        name = self.source.name
        if problem := changed_start(name, self.source.start, plan):
            raise ConfigError(f"source {name}: {problem}")
        self._check_source(plan)

    def _check_source(self, plan: Plan) -> None:
        name = self.source.name
        if plan.config_hash != self.source.config_hash():
            raise ConfigError(
                f"source {name}: its checkpoints belong to a stream other than the one in the config. To read the "
                "other table, add a source with another name"
            )
        self._check_keys(plan)

    def _keys(self) -> dict[str, TableKey]:
        return {table.table: key_of(table) for table in self.source.tables()}

    def check_tables(self, plan: Plan, tables: Iterable[TableSchema]) -> None:
        """Refuse ``tables`` whose key differs from the key of earlier changes (I2). Raises ``RelayError``."""
        for table in tables:
            planned = plan.keys.get(table.table)
            if planned is None:
                continue
            before = [name for name, *_ in planned]
            keys, hashed = [column.name for column in table.key], plan.hashed.get(table.table, table.hash_columns)
            if keys != before or hashed != table.hash_columns:
                raise RelayError(
                    f"source {self.source.name}: the key of table {table.table} is now {', '.join(keys)} (partitioned "
                    f"by {', '.join(keys[: table.hash_columns])}), but its published changes are keyed by "
                    f"{', '.join(before)} (partitioned by {', '.join(before[:hashed])}): they would move to other "
                    f"partitions. Set `key: {{{table.table}: [...]}}` to the previous columns, or remove the table "
                    "from `tables` and read it with a source that has another name"
                )

    def check_topics(self, plan: Plan, tables: Iterable[str]) -> None:
        """Refuse ``tables`` that the config gives another topic than before (I2). Raises ``ConfigError``."""
        if not (moved := moved_tables(plan, tables, self._claims)):
            return
        first, *more = moved.values()
        others = (
            f". {len(more)} more of its tables would move, too; `--moved '*'` stands for all tables" if more else ""
        )
        raise ConfigError(f"source {self.source.name}: {first}{others}")

    def _check_keys(self, plan: Plan) -> None:
        if self.source.has_journals:
            # Columns may have become wider since, and tables may have been added or dropped.
            self.check_tables(plan, self.source.tables())
        elif plan.keys != (keys := self._keys()):
            raise ConfigError(
                f"source {self.source.name}: the key columns are {keys}, but its published changes are keyed by "
                f"{plan.keys}: they would move to other partitions. To read the new table, add a source with another "
                "name"
            )


def key_of(table: TableSchema) -> TableKey:
    keys = ((column.name, column.type, column.sql) for column in table.key)
    return tuple(key if key[-1] else key[:-1] for key in keys)


def changed_start(name: str, start: str, plan: Plan) -> str:
    """Return why ``plan`` of the source ``name`` contradicts ``start`` in its config, or ""."""
    if plan.requested == start:
        return ""
    return (
        f"`start` is {start!r}, but this source started at {plan.requested!r} and resumes from its checkpoints. Set "
        f"`start` back to {plan.requested!r}, or run `relay reset CONFIG {name} --to ...` to read from another position"
    )
