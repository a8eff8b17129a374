"""Missing state on Kafka although related state exists, which is never mistaken for a first start."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import wait
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from confluent_kafka import IsolationLevel
from confluent_kafka.admin import AdminClient

from relay.avro.schema import change_schema
from relay.config import Config
from relay.errors import Unavailable, fault_of
from relay.kafka import topics
from relay.kafka.checkpoints import TELL_AFTER, CheckpointView, read_checkpoints
from relay.kafka.committed import read_all_committed
from relay.kafka.partition_offsets import offset_bounds
from relay.kafka.settings import KafkaSettings, barrier_timeout
from relay.process.slow_call import SlowCall
from relay.records import CommittedRecords, Gap, Plan, StreamId
from relay.source import Source
from relay.stream.topic_partitions import moved_keys
from relay.stream.watermark_records import OVERALL
from relay.table import TableSchema

if TYPE_CHECKING:
    from relay.avro.registry import PublishedSchemas

log = logging.getLogger(__name__)

T = TypeVar("T")

CHECKPOINTS_LOST = "checkpoints lost"
SCHEMAS_LOST = "schemas lost"


@dataclass(frozen=True, slots=True)
class Loss:
    """State that a source has lost. ``signs``: how the loss shows, in words.

    ``offsets``: how many offsets were used in each topic of its changes, which distinguishes two losses. ``shards``:
    the keys of lost checkpoints whose watermarks still exist.
    """

    signs: Sequence[str]
    offsets: Mapping[str, int]
    shards: Sequence[bytes] = ()

    def gap(self, source: str, label: str, reason: str, end: Mapping[str, Any] | None, found_at: float) -> Gap:
        return Gap(source, label, None, reason, {"offsets": dict(self.offsets)}, end, found_at)


class LostState:
    """Compares the parts of a relay's state with each other. Raises ``Unavailable`` if Kafka does not answer."""

    def __init__(self, admin: AdminClient, config: Config) -> None:
        self._admin = admin
        self._config = config
        self._patience = barrier_timeout(KafkaSettings.from_config(config).transaction_timeout)

    @cached_property
    def cluster(self) -> str:
        """The id of the Kafka cluster; empty if it is not known."""
        return topics.cluster_id(self._admin, self._config)

    def require_checkpoints(self, view: CheckpointView, sources: Sequence[Source]) -> None:
        """Read ``view``, and refuse sources with lost checkpoints. Raises ``Unavailable`` and ``StopRequested``."""
        reading = SlowCall("watermarks", self._watermarked)
        view.require_end(range(topics.CHECKPOINT_PARTITIONS), self._patience)
        self._require_own(view, sources)
        suspects = self._lost(view, sources, self._awaited(reading, view))
        if not suspects:
            return
        # Other workers may have written them, or pruned a shard, since the first of the two was read.
        view.require_end(range(topics.CHECKPOINT_PARTITIONS), self._patience)
        lost = {}
        for name, loss in self.lost(view, sources).items():
            before = suspects[name].signs if name in suspects else ()
            if signs := [sign for sign in loss.signs if sign in before]:
                what = "not all checkpoints" if view.planned(name) else "no plan"
                lost[name] = f"{what} for source {name}, but {_joined(signs)}"
        if not lost:
            return
        first = next(iter(lost))
        # If no plan is left, the topic itself is lost. Nothing may be written to it before somebody restores it.
        is_limited = any(each.plan is not None for each in view.streams.values())
        with fault_of(first) if is_limited else nullcontext():  # I12
            raise Unavailable(  # I1, I3
                f"checkpoints are lost: topic {view.topic} has {'; and '.join(lost.values())}. Nothing of "
                f"{', '.join(lost)} was read: changes would be skipped or published twice. Restore the topic; or "
                "accept the loss with `relay reset CONFIG --lost-state`, which begins where `start` says, or with "
                f"`relay reset CONFIG {first} --to ...`: both publish a gap, so that consumers know; or set another "
                "`name`, whose topics are empty"
            )

    def _require_own(self, view: CommittedRecords, sources: Iterable[Source]) -> None:
        """Refuse checkpoints that a mirror has brought from another cluster. Raises ``Unavailable``."""
        for source in sources:
            newest = view.newest(source.name)
            made_for = newest.plan.cluster if newest is not None and newest.plan is not None else ""
            if made_for and self.cluster and made_for != self.cluster:  # I1
                with fault_of(source.name):
                    raise Unavailable(
                        f"the checkpoints of source {source.name} belong to another Kafka cluster, {made_for}: this "
                        f"one is {self.cluster}. A mirror may have checkpoints without the changes that they cover, so "
                        f"nothing was read. `relay status CONFIG --mirrored {source.name}` prints a time from which "
                        f"nothing is missing. Begin there: with `relay reset CONFIG {source.name} --to TIME`, or with "
                        "another `name`"
                    )

    def lost(self, view: CommittedRecords, sources: Iterable[Source]) -> dict[str, Loss]:
        """Return, by name, the sources that were relayed before and have lost their plan or checkpoints of shards.

        Records on a topic prove nothing if another source, which has a plan, publishes to the same topic.
        """
        return self._lost(view, sources, self._watermarked())

    def require_partitions(self, plan: Plan, requested: Mapping[str, int]) -> None:
        """Refuse to publish to topics whose partitions have changed. ``requested``: see `moved_keys`.

        Raises ``Unavailable``.
        """
        if moved := moved_keys(self._admin, self._config, plan, requested):
            raise Unavailable("\n".join(moved.values()))  # I2

    def _awaited(self, reading: SlowCall[T], view: CheckpointView) -> T:
        if not wait([reading], TELL_AFTER).done:
            said = "topic %s: waiting up to %.0f s for the transaction of another worker to end"
            log.info(said, self._config.internal("watermarks"), self._patience)
        while not wait([reading], 0.1).done:
            view.check_stop()
        return reading.result()

    def _watermarked(self) -> Mapping[str, list[list[str]]]:
        """Return, by source, the stream of each watermark, and its shard if it has one."""
        # Waits for open transactions: one may remove the watermark of a shard whose checkpoint is already gone.
        topic = self._config.internal("watermarks")
        records = read_all_committed(
            self._admin, self._config, topic, isolation=IsolationLevel.READ_UNCOMMITTED, patience=self._patience
        )
        last = {record.key() or OVERALL: record.value() is not None for record in records}
        found: dict[str, list[list[str]]] = {}
        for _, source, *of in (orjson.loads(key) for key, is_there in last.items() if is_there and key != OVERALL):
            found.setdefault(source, []).append(of)
        return found

    def _lost(
        self, view: CommittedRecords, sources: Iterable[Source], watermarked: Mapping[str, list[list[str]]]
    ) -> dict[str, Loss]:
        watermarks = self._config.internal("watermarks")
        planned = {self._config.topic(table) for _, table in _planned(view)}
        found = {}
        for source in sources:
            marked, offsets = watermarked.get(source.name, []), dict[str, int]()
            known = {each.stream.label: each.checkpoints for each in view.of_source(source.name)}
            lost = sorted(of for of in marked if len(of) > 1 and of[1] not in known.get(of[0], {}))
            if view.planned(source.name):
                signs = [f"topic {watermarks} has the watermark of its shard {shard}" for _, shard in lost]
            else:
                offsets = self._offsets(self._config.topic(table.table) for table in source.tables())
                signs = [f"topic {topic} has had records" for topic in offsets if topic not in planned]
                signs += [f"topic {watermarks} has its watermarks"] if marked else []
                if any(stream.checkpoints for stream in view.of_source(source.name)):
                    signs.append("there are checkpoints of its shards")
            if signs:
                shards = [StreamId(source.name, label).shard_key(shard) for label, shard in lost]
                found[source.name] = Loss(signs, offsets, shards)
        return found

    def require_schemas(self, schemas: PublishedSchemas, tables: Sequence[TableSchema]) -> None:
        """Refuse tables whose schemas are lost, before schemas are registered. Raises ``Unavailable``."""
        if lost := self.without_schema(schemas, tables):
            signs = [f"topic {topic} has had records" for loss in lost.values() for topic in loss.offsets]
            raise Unavailable(  # I1
                f"schemas are lost: {schemas.place} has no schema of source {', '.join(lost)}, but {_joined(signs)}, "
                "which cannot be decoded without them. Nothing was read. Restore the schemas; or accept the loss with "
                "`relay reset CONFIG --lost-state`, which publishes the tables' present schemas, and a gap, so that "
                "consumers know; or set another `name`, whose topics are empty"
            )

    def without_schema(self, schemas: PublishedSchemas, tables: Sequence[TableSchema]) -> dict[str, Loss]:
        """Return, by source, signs of records on the topics of those ``tables`` that have no known schema."""
        unknown = self._lacking(schemas, tables)
        used = self._offsets(self._config.topic(each.table) for each in unknown)
        if not used:
            return {}
        unknown = self._lacking(schemas, unknown)  # another worker may have registered them since
        settings = KafkaSettings.from_config(self._config)
        planned = _planned(read_checkpoints(settings.client, settings.checkpoints))
        used_by = {self._config.topic(table) for _, table in planned}
        lacking = {(each.source, each.table) for each in unknown}
        # Their records prove nothing about another table of the topic, which may have moved there.
        known = {self._config.topic(table) for source, table in planned if (source, table) not in lacking}
        known &= self._config.shared_topics  # I12
        found: dict[str, Loss] = {}
        for each in unknown:
            topic = self._config.topic(each.table)
            if topic in used.keys() - known and ((each.source, each.table) in planned or topic not in used_by):
                before = found.get(each.source, Loss((), {})).offsets
                found[each.source] = Loss((), {**before, topic: used[topic]})
        return found

    def _lacking(self, schemas: PublishedSchemas, tables: Sequence[TableSchema]) -> list[TableSchema]:
        wanted = [(self._config.topic(each.table), change_schema(each)) for each in tables]
        return [each for each, is_lacking in zip(tables, schemas.lacks(wanted), strict=True) if is_lacking]

    def _offsets(self, names: Iterable[str]) -> dict[str, int]:
        """Return the number of offsets used in each topic that has had records, even if they have been removed."""
        there = topics.list_topics(self._admin, self._config)
        wanted = sorted({name for name in names if name in there})
        partitions = [(name, number) for name in wanted for number in there[name].partitions]
        bounds = offset_bounds(self._admin, partitions)
        ends = {name: sum(end for (topic, _), (_, end) in bounds.items() if topic == name) for name in wanted}
        return {name: end for name, end in ends.items() if end}


def _planned(view: CommittedRecords) -> set[tuple[str, str]]:
    return {(stream.source, table) for stream, each in view.streams.items() if each.plan for table in each.plan.keys}


def _joined(signs: Sequence[str]) -> str:
    return " and ".join(signs[:3]) + (f" and {len(signs) - 3} more" if len(signs) > 3 else "")
