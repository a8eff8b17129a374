"""``relay reset``: restarts a source at another place, and publishes a gap to tell consumers.

It works like a worker: it joins the group as its only member, passes the fence, and commits everything in one
transaction with the offsets of the partitions it writes. A worker that joins meanwhile makes the transaction fail (I3).
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any

from relay.avro.debezium import value_schema
from relay.avro.registry import open_schemas
from relay.config import Config, SourceConfig
from relay.config.errors import did_you_mean
from relay.config.per_table import NO_READS
from relay.config.topic_routes import by_table, matches
from relay.config.yaml_file import parse
from relay.engine.kinds import open_source
from relay.errors import ConfigError, NotDrained, RelayError, Unavailable
from relay.kafka import topics
from relay.kafka.assignment import Assignment, NotAMember
from relay.kafka.checkpoints import CheckpointView, read_checkpoints, requested_partitions
from relay.kafka.group import members
from relay.kafka.producers import Identity
from relay.kafka.publisher import Aborted, Fenced, Publisher
from relay.kafka.settings import KafkaSettings
from relay.kafka.transaction import OpenTransaction
from relay.operations.status import find_source
from relay.process.slow_call import call_all
from relay.records import Gap, Plan, SnapshotControl, StreamId
from relay.snapshots.control import restarted
from relay.stream.lost_state import SCHEMAS_LOST, LostState
from relay.stream.new_tables import known_in
from relay.stream.planning import Planning
from relay.stream.topic_partitions import topic_under
from relay.stream.watermark_records import key_beside

_JOIN_TIMEOUT = 60.0  # seconds until this process must have become the only member of the group

_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Reset:
    stream: StreamId
    plan: Plan
    gap: Gap
    removed_keys: tuple[bytes, ...]  # of checkpoints
    workers: tuple[str, ...]  # the running ones
    snapshot: SnapshotControl | None = None  # of the unfinished snapshot, which begins again

    @property
    def start(self) -> str:
        """Where the source will start, as the gap names it."""
        return str((self.gap.end or {})["start"])

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values. ``removed`` is the number of removed checkpoint records."""
        return {
            "stream": self.stream.label,
            "start": self.start,
            "removed": len(self.removed_keys),
            "gap": self.gap.id,
            "snapshot_begins_again": self.snapshot is not None,
            "workers": list(self.workers),
        }


def preview(config: Config, name: str, to: str) -> Reset:
    """Return what ``reset`` would do now. Raises like ``reset``, except for running workers."""
    entry = _with_start(config, name, to)
    settings = KafkaSettings.from_config(config)
    workers = _workers(config, settings)
    return _decide(config, entry, read_checkpoints(settings.client, settings.checkpoints), workers)


def accept_lost_state(config: Config) -> Iterator[Gap]:
    """Let the next run begin although state is lost, with the tables' present schemas. Yield each gap once published.

    Sources whose checkpoints are lost begin where ``start`` says. After an error, call it again. Raises like ``reset``.
    """
    settings, admin = KafkaSettings.from_config(config), topics.connect(config)
    with ExitStack() as stack:
        sources = [stack.enter_context(closing(open_source(entry))) for entry in config.sources]
        streams = call_all("connect", [source.connect for source in sources])
        tables = [table for source in sources for table in source.tables()]
        names = [table.table for table in tables]
        topics.create_missing(admin, config, names, partial(requested_partitions, config, admin))
        _require_no_workers(config, settings)
        lost, schemas = LostState(admin, config), stack.enter_context(closing(open_schemas(config)))
        for name, loss in lost.without_schema(schemas, tables).items():
            (label,) = (stream.label for stream in streams if stream.source == name)
            gap = loss.gap(name, label, SCHEMAS_LOST, None, time.time())
            _publish(settings, gap)  # I9: before the schemas, so that a crash between them repeats it with the same id
            for table in tables:
                if table.source == name:
                    schemas.register(config.topic(table.table), value_schema(config, table))
            yield gap
        names = list(lost.lost(read_checkpoints(settings.client, settings.checkpoints), sources))
    for name in names:
        yield reset(config, name, None).gap


def accept_moves(config: Config, names: Sequence[str], *, patience: float = _PATIENCE) -> dict[str, str]:
    """Let the next run publish tables, also named by patterns with `*`, to their topics in the config.

    Return the topics that they had, by table; without the tables that stay. To repeat it does no harm. Raises
    ``ConfigError`` for a name of no table that was relayed; ``RelayError`` while workers are running; ``Unavailable``.
    """
    settings, moved, known = KafkaSettings.from_config(config), dict[str, str](), set[str]()
    _require_no_workers(config, settings)
    with ExitStack() as stack:
        group, view = _only_member(stack, settings)  # nobody publishes to the former topic any longer
        plans: dict[StreamId, Plan] = {}
        for committed in (each for entry in config.sources for each in view.planned(entry.name)):
            assert committed.plan is not None
            plan = known_in(committed.plan, committed, config.claims)
            before = {table: topic_under(plan, table, config.claims) for table in plan.keys}
            known.update(before)
            chosen = [table for table in before if any(matches(name, table) for name in names)]
            now = {**before, **{table: config.topic(table) for table in chosen}}
            if now == before:
                continue
            moved |= {table: before[table] for table in chosen if now[table] != before[table]}
            routes = by_table(config.topics)
            others = {table: topic for table, topic in now.items() if topic != config.topic(table)}
            plans[committed.stream] = replace(plan, routes=routes, topics=others)
        for name in names:
            if not any(matches(name, table) for table in known):
                hint = did_you_mean(name, sorted(known), "those that were are ")
                raise ConfigError(f"--moved: no table {name} was relayed; {hint}")
        identity = Identity(settings.name)
        stack.callback(identity.release)
        try:
            transaction = OpenTransaction(repeat(_open(settings, identity, patience)), group)
            stack.callback(_abort, transaction)
            for stream, plan in plans.items():
                transaction.record(stream.plan_key, plan.to_json())
            group.poll()
            transaction.commit()
        except (Aborted, Fenced, NotAMember, RelayError) as error:
            raise Unavailable(f"the move may not be recorded: {error}; run the command again") from error
    return moved


def _publish(settings: KafkaSettings, gap: Gap) -> None:
    try:
        publisher = Publisher(settings.producer, f"{settings.name}-lost-state")
        publisher.begin()
        publisher.send(settings.gaps, gap.to_json(), gap.id.encode(), 0)
        publisher.commit_without_offsets()
    except (Aborted, Fenced) as error:
        raise Unavailable(f"gap {gap.id} may not have been published: {error}; run the command again") from error


def reset(config: Config, name: str, to: str | None, *, patience: float = _PATIENCE) -> Reset:
    """Let the next run read the source ``name`` from ``to``, or from its configured ``start`` if that is None.

    ``patience``: seconds for a broker that does not answer, once for the reset and once to look for its outcome. Raises
    ``ConfigError`` for a place that is invalid or in another stream; ``RelayError`` while workers are running, or if
    the source has not been read yet; ``Unavailable``. After an error nothing has changed, unless the message says
    otherwise.
    """
    entry = _with_start(config, name, to)
    settings = KafkaSettings.from_config(config)
    _require_no_workers(config, settings)
    with ExitStack() as stack:
        group, view = _only_member(stack, settings)
        decided = _decide(config, entry, view, ())
        identity = Identity(settings.name)
        stack.callback(identity.release)
        try:
            publisher = _open(settings, identity, patience)
            transaction = OpenTransaction(repeat(publisher), group)
            stack.callback(_abort, transaction)
            for key in decided.removed_keys:
                transaction.record(key, None)
                if (watermark := key_beside(key)) is not None:
                    transaction.publisher.send(settings.watermarks, None, watermark, 0)
            if decided.snapshot is not None:
                transaction.record(decided.stream.snapshot_key, decided.snapshot.to_json())
            transaction.record(decided.stream.plan_key, decided.plan.to_json())
            transaction.publisher.send(settings.gaps, decided.gap.to_json(), decided.gap.id.encode(), 0)
            group.poll()
        except (Aborted, Fenced, NotDrained) as error:
            raise Unavailable(f"nothing was reset: {error}") from error
        try:
            transaction.commit()
        except (Aborted, NotAMember) as error:
            raise RelayError(
                f"nothing was reset: the transaction was aborted, which happens when a worker of {config.name} starts "
                f"meanwhile ({error})"
            ) from error
        except (Fenced, RelayError) as error:
            if not _took_effect(settings, identity, decided, patience, error):
                raise Unavailable(f"nothing was reset: {error}; run it again") from error
    return decided


def _open(settings: KafkaSettings, identity: Identity, patience: float) -> Publisher:
    stop_by = time.monotonic() + patience
    return Publisher(settings.producer, identity.transactional_id, stop_by=lambda: stop_by)


def _took_effect(
    settings: KafkaSettings, identity: Identity, decided: Reset, patience: float, error: Exception
) -> bool:
    """Whether a reset was committed although the commit raised ``error``. Raises ``Unavailable`` if that is unknown."""
    try:
        # From here on the commit can no longer happen: a new producer of this name completes it, or aborts it.
        _open(settings, identity, patience).close()
        plan = read_checkpoints(settings.client, settings.checkpoints, patience).of(decided.stream).plan
    except (Aborted, Fenced, NotDrained, Unavailable) as unanswered:
        raise Unavailable(
            f"it is not known whether the reset took effect, because the broker does not answer ({error}; {unanswered})"
            f". Once it answers, run `relay gaps list CONFIG`: it shows gap {decided.gap.id} if the reset took effect. "
            "If it does not show the gap, run the reset again"
        ) from error
    return plan is not None and plan.gap == decided.gap.id


def _with_start(config: Config, name: str, to: str | None) -> SourceConfig:
    """Return the config of the source ``name`` with the start ``to``. Raises ``ConfigError`` for an invalid start."""
    entry = find_source(config, name)
    if to is None:
        return entry
    try:
        start = parse("--to", to).data if to.startswith("{") else to
        found = entry.model_copy(update={"start": entry.parse_start(start)})
    except ValueError as error:
        raise ConfigError(f"--to: {error}") from error
    if found.is_debezium and found.start == "copy":  # I7
        raise ConfigError(f"--to: `copy` {NO_READS}")
    return found


def _require_no_workers(config: Config, settings: KafkaSettings) -> None:
    if workers := _workers(config, settings):
        raise RelayError(
            f"workers of {config.name} are running: stop them first ({', '.join(workers)}). A killed worker counts "
            "until its session times out"
        )


def _workers(config: Config, settings: KafkaSettings) -> tuple[str, ...]:
    admin = topics.connect(config)
    if settings.checkpoints not in topics.list_topics(admin, config):
        raise RelayError(
            f"relay {config.name} has not run yet: set `start` in the config instead of resetting. If it has "
            "run, its checkpoints are lost: accept that with `relay reset CONFIG --lost-state`"
        )
    return tuple(f"{m.client} at {m.host}" for m in members(admin, settings.group, settings.checkpoints))


def _only_member(stack: ExitStack, settings: KafkaSettings) -> tuple[Assignment, CheckpointView]:
    """Become the only member of the group until ``stack`` ends, and read all committed checkpoints."""
    view = stack.enter_context(closing(CheckpointView(settings.client, settings.checkpoints)))
    group = Assignment(settings.client, settings.group, view, transaction_timeout=settings.transaction_timeout)
    stack.callback(group.close)
    group.join()
    partitions = set(range(topics.CHECKPOINT_PARTITIONS))
    deadline = time.monotonic() + max(_JOIN_TIMEOUT, 2 * group.barrier_timeout)
    while group.owned != partitions:
        if time.monotonic() > deadline:
            raise RelayError(f"group {group.group}: another worker owns some of its partitions: stop it first")
        group.poll(0.1)
        group.fence()
    view.require_end(partitions, group.barrier_timeout)
    return group, view


def _decide(config: Config, entry: SourceConfig, view: CheckpointView, workers: tuple[str, ...]) -> Reset:
    name, requests = entry.name, view.requests_of(entry.name)
    requested = str(find_source(config, name).start)
    committed, snapshot = view.newest(name), None
    lost_state = LostState(topics.connect(config), config)
    with closing(open_source(entry)) as source:
        stream = source.connect(committed.stream.label if committed is not None else None)
        if committed is None and (first := source.first()) != stream.label:
            stream = source.connect(first)
        loss = lost_state.lost(view, [source]).get(name)
        if committed is not None:
            assert committed.plan is not None
            before = known_in(committed.plan, committed, config.claims)  # I2: the reset removes their checkpoints
            plan, gap = Planning(source, view, config.claims).again(committed, before, requested)
            snapshot = restarted(committed, requests, gap, plan.floor)
            kept = stream.snapshot_key if snapshot is not None else None
            left = [key for key in committed.beside_plan() if key != kept]
        elif loss is not None:
            plan, gap = Planning(source, view, config.claims).after_loss(stream, requested, loss)
            left = [key for each in view.of_source(name) for key in each.beside_plan()]
            left += [request.key for request in requests]
        else:
            raise RelayError(f"source {name} has not been read yet: set `start` in the config instead of resetting")
    lost = loss.shards if loss is not None else ()  # shards whose watermarks still exist
    plan = replace(plan, cluster=lost_state.cluster)
    return Reset(stream, plan, gap, (*left, *lost), workers, snapshot)


def _abort(transaction: OpenTransaction) -> None:
    """Abort after a failure. If that fails, the broker times the transaction out, or it has already ended."""
    with suppress(Fenced, RelayError):
        transaction.abort()
