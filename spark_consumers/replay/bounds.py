"""The range that a replay reads, and whether it is the whole history."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from time import time as now

import orjson
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from relay.config import Config
from relay.config.value_types import iso_time, start_time
from relay.errors import ConfigError, Unavailable
from relay.kafka.committed import read_all_committed, times_at
from relay.kafka.group_offsets import LATEST, GroupOffsets, Offsets, check_start, up_to
from relay.kafka.topics import FoundTopic, connect
from spark_consumers.applied_notes import holes

_WATERMARK = "watermark:"
_OVERALL = b'["v1"]'
_SHOWN = 10

Mark = tuple[str, int, int, str, str, str]
"""A mark of a snapshot: topic, partition, offset, table, the snapshot's id, and begin or end."""


def check(start: str, to: str) -> None:
    """Raise ``ConfigError`` for ``--from`` or ``--to`` that is wrong whatever is on Kafka."""
    check_start(start)
    if watermark_time(to) is None:
        check_start(to, option="--to")


def resolve_end(config: Config, group: GroupOffsets, to: str) -> Offsets:
    """Return the offsets of ``--to``: as for ``--from``, but partitions that JSON omits are read to their end.

    ``watermark:TIME``: the ends, once everything committed before a time is on the topics. Not all of that is needed,
    see ``end_of``.
    """
    time = watermark_time(to)
    if time is not None:
        _require_watermark(config, to, time)
        to = "latest"
    return up_to(*group.locate(group.resolve(to, option="--to", others=LATEST)))


def end_of(changes: DataFrame, committed_before: float, first: Offsets, end: Offsets) -> Offsets:
    """Return the end of the changes committed before a time in seconds. ``changes``: all from ``first`` to ``end``."""
    found = {topic: dict(partitions) for topic, partitions in first.items()}
    is_before = F.col("committed_at") < F.timestamp_micros(F.lit(int(committed_before * 1_000_000)))
    rows = changes.where(is_before).groupBy("topic", "partition").agg(F.max("offset"))
    for topic, partition, offset in rows.collect():
        found[topic][str(partition)] = offset + 1
    return up_to(found, end)


def _require_watermark(config: Config, to: str, wanted: float) -> None:
    found = None
    for message in read_all_committed(connect(config), config, config.internal("watermarks")):
        if message.key() == _OVERALL and (value := message.value()):
            found = float(orjson.loads(value)["watermark"])
    if found is None or found < wanted:
        said = "there is no watermark yet" if found is None else f"the watermark is at {iso_time(found)}"
        raise Unavailable(f"--to {to}: {said}: try again once `relay run` has got that far")


def watermark_time(to: str) -> float | None:
    """Return the seconds since the epoch of ``watermark:TIME``, or None for others. Raises ``ConfigError``."""
    if not to.startswith(_WATERMARK):
        return None
    try:
        wanted = start_time(to.removeprefix(_WATERMARK), now())
    except ValueError as error:
        raise ConfigError(f"--to {to}: {error}") from error
    if wanted is None:
        raise ConfigError(f"--to {to}: write a time after `{_WATERMARK}`")
    return wanted


def beginnings(config: Config, start: Offsets) -> dict[tuple[str, str], int]:
    """Return the first offset of each partition with changes that is not read from its very beginning."""
    gaps = config.internal("gaps")
    return {(hole.topic, hole.partition): hole.end for hole in holes({}, start) if hole.topic != gaps}


def uncovered(
    missing: Iterable[tuple[str, str]], marks: Iterable[Mark], tables: Iterable[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return the partitions of ``missing`` that lack a snapshot of a table from its begin to its end.

    ``tables``: each with its topic, which comes first.
    """
    begun: set[tuple[str, int, str, str]] = set()
    covered: set[tuple[str, str, str]] = set()
    for topic, partition, _, table, snapshot, kind in sorted(marks, key=lambda mark: mark[:3]):
        if kind == "begin":
            begun.add((topic, partition, table, snapshot))
        elif (topic, partition, table, snapshot) in begun:
            covered.add((topic, str(partition), table))
    of = defaultdict[str, list[str]](list)
    for topic, table in tables:
        of[topic].append(table)
    return [where for where in missing if not all((*where, table) in covered for table in of[where[0]])]  # I7


def partial_error(config: Config, kind: str, found: Mapping[tuple[str, str], int]) -> ConfigError:
    times = {where: iso_time(time) for where, time in times_at(config, found).items()}
    lines = [
        f"  {topic}[{partition}] begins at offset {offset}, {times.get((topic, partition), 'with no record yet')}"
        for (topic, partition), offset in sorted(found.items(), key=lambda item: (item[0][0], int(item[0][1])))
    ]
    if len(lines) > _SHOWN:
        lines = [*lines[:_SHOWN], f"  and {len(lines) - _SHOWN} more partitions"]
    problem = f"the replay would create a partial {kind}: it does not start at the beginning of these partitions"
    cure = "" if kind == "log" else ", or publish a snapshot of their tables, which makes up for it"
    return ConfigError("\n".join([problem, *lines, f"use --partial to accept that{cure}"]))


def refuse_compacted(topics: Iterable[FoundTopic]) -> None:
    for each in topics:
        if each.compacted and not each.topic.compacted:
            raise ConfigError(
                f"the replay would create a partial log: topic {each.topic.name} is compacted, so Kafka may have "
                "removed changes that later ones of the same items have replaced: use --partial to accept that"
            )
