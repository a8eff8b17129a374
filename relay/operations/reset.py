"""``relay reset``: the reading of a source begins anew, somewhere else, and everybody downstream is told.

It works as a worker does: it joins the group alone, passes the fence, and commits everything in one transaction with
the offsets of the partitions it writes. A worker that joins meanwhile makes that transaction fail (I3).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass

from relay.config import Config, SourceConfig
from relay.engine.gap_decisions import records_of as losses_of
from relay.engine.open_source import open_source
from relay.engine.planning import Planning, newest_planned
from relay.engine.snapshots import records_of as snapshots_of
from relay.errors import ConfigError, RelayError, Unavailable
from relay.kafka import topics
from relay.kafka.assignment import Assignment, NotAMember
from relay.kafka.checkpoints import CheckpointView, read_checkpoints
from relay.kafka.group import members
from relay.kafka.identity import Identity
from relay.kafka.publisher import Abandoned, Aborted, Fenced, Publisher
from relay.kafka.settings import KafkaSettings
from relay.kafka.transaction import OpenTransaction
from relay.lineage import Gap, Plan, StreamId
from relay.operations.status import source_of

_TO_JOIN = 60.0
"""Seconds for the group to make this its only member."""


@dataclass(frozen=True, slots=True)
class Reset:
    """What a reset does. ``forgotten``: keys of the records it removes. ``workers``: who runs now."""

    stream: StreamId
    plan: Plan
    gap: Gap
    forgotten: tuple[bytes, ...]
    workers: tuple[str, ...]


def look(config: Config, name: str, to: str) -> Reset:
    """Return what a reset would do now, and do nothing. Raises as ``reset``, except for running workers."""
    entry = _moved(config, name, to)
    settings = KafkaSettings.from_config(config)
    workers = _workers(config, settings)
    with closing(read_checkpoints(settings.client, settings.checkpoints)) as view:
        return _decide(config, entry, view, workers)


def reset(config: Config, name: str, to: str) -> Reset:
    """Let the reading of the source ``name`` begin at ``to`` with the next run.

    Raises ``ConfigError`` for a place that is none, or of another stream; ``RelayError`` while workers run, or if
    nothing was read yet; ``Unavailable``. What raises has changed nothing, unless it says so.
    """
    entry = _moved(config, name, to)
    settings = KafkaSettings.from_config(config)
    if workers := _workers(config, settings):
        raise RelayError(
            f"{len(workers)} workers of {config.name} run: stop them first ({', '.join(workers)}). "
            "One that was killed counts until its session has timed out."
        )
    with ExitStack() as stack:
        view = stack.enter_context(closing(CheckpointView(settings.client, settings.checkpoints)))
        group = Assignment(settings.client, settings.group, view, transaction_timeout=settings.transaction_timeout)
        stack.callback(group.close)
        _join(group, view)
        decided = _decide(config, entry, view, ())
        identity = Identity(settings.name)
        stack.callback(identity.release)
        try:
            publisher = Publisher(settings.producer, identity.transactional_id)
            transaction = OpenTransaction([publisher], group, settings.checkpoints)
            stack.callback(_abort, transaction)
            for key in decided.forgotten:
                transaction.record(key, None)
            transaction.record(decided.stream.plan_key, decided.plan.to_json())
            publisher.send(settings.gaps, decided.gap.to_json(), decided.gap.id.encode(), 0)
            group.poll()
            transaction.commit()
        except Abandoned as error:
            raise Unavailable(f"the broker does not answer: nothing was reset ({error})") from error
        except (Aborted, NotAMember) as error:
            raise RelayError(f"a worker of {config.name} has started meanwhile: nothing was reset ({error})") from error
        except Fenced as error:
            raise RelayError(
                f"another process has taken {identity.transactional_id} over ({error}): whether the reset took place, "
                "`relay status` shows"
            ) from error
    return decided


def _moved(config: Config, name: str, to: str) -> SourceConfig:
    """Return the config of the source ``name`` with another start. ``ConfigError`` for a place that is none."""
    entry = source_of(config, name)
    try:
        return entry.model_copy(update={"start": entry.parse_start(to)})
    except ValueError as error:
        raise ConfigError(f"--to: {error}") from error


def _workers(config: Config, settings: KafkaSettings) -> tuple[str, ...]:
    admin = topics.connect(config)
    if settings.checkpoints not in topics.list_topics(admin, config):
        raise RelayError(f"{config.name} has not run yet, so there is nothing to reset: `start` says where it begins")
    return tuple(f"{m.client} at {m.host}" for m in members(admin, settings.group, settings.checkpoints))


def _join(group: Assignment, view: CheckpointView, clock: Callable[[], float] = time.monotonic) -> None:
    """Become the only member, and see all that is committed."""
    everything = set(range(topics.CHECKPOINT_PARTITIONS))
    deadline = clock() + max(_TO_JOIN, 2 * group.barrier_timeout)
    while group.owned != everything:
        if clock() > deadline:
            raise RelayError(f"group {group.group}: another worker holds some of its partitions: stop it first")
        group.poll(0.1)
        group.fence()
    if not view.read_to_end(everything, group.barrier_timeout):
        raise Unavailable(f"{view.topic} cannot be read to its end")


def _decide(config: Config, entry: SourceConfig, view: CheckpointView, workers: tuple[str, ...]) -> Reset:
    stream = newest_planned(view, entry.name)
    if stream is None:
        raise RelayError(
            f"source {entry.name} was not read yet: there is nothing to reset, `start` says where it begins"
        )
    requested = str(source_of(config, entry.name).start)
    with closing(open_source(entry)) as source:
        source.connect(stream.label)
        plan, gap = Planning(source, view).again(stream, requested)
    forgotten = [
        records.checkpoint_key(name)
        for records in (stream, snapshots_of(stream), losses_of(stream))
        for name in view.checkpoints.get(records, {})
    ]
    return Reset(stream, plan, gap, tuple(forgotten), workers)


def _abort(transaction: OpenTransaction) -> None:
    """Leave nothing open behind a failure; what cannot be aborted times out."""
    try:
        transaction.abort()
    except Fenced:
        return
