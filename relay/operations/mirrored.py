"""Where a source can begin again by the records on a mirror's topics alone.

A mirror copies each partition by itself, so its checkpoints may be ahead of its changes. But what was before the
``resume_timestamp`` of a change was on the topics by then, and a partition has no hole before its end. What it lacks is
therefore not older than the newest such time that it has.
"""

import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing, suppress

from relay.avro.columns import microseconds
from relay.avro.decode import Undecodable, UnknownFraming, UnknownSchema, WriterSchemas, decode
from relay.avro.registry import open_schemas
from relay.config import Config
from relay.config.topic_names import require_own_envelope
from relay.config.value_types import iso_time, start_time
from relay.errors import ConfigError, RelayError
from relay.kafka import topics
from relay.kafka.committed import read_committed
from relay.kafka.group_offsets import GroupOffsets
from relay.kafka.partition_offsets import Partition, offset_bounds
from relay.operations.status import find_source

_TAIL = 100  # last offsets of a partition that are read: some may be markers of transactions
_MARGIN = 60  # seconds by which a worker may be late to learn about the others' shards


def start_of_mirror(config: Config, name: str, whole_until: str | None = None) -> str:
    """Return the ISO time from which the source ``name`` has to be read so that nothing is missing.

    ``whole_until``: the mirror has all that was published before. Raises ``ConfigError``, ``Unavailable``, and
    ``RelayError`` if the topics do not show a time.
    """
    entry = find_source(config, name)
    until = _time(whole_until)
    if not entry.names_tables:  # I1: the mirror may lack the newest plan, and so tables that have appeared
        raise ConfigError(f"source {name}: name its `tables`: a mirror's checkpoints may not list all of them")
    admin = topics.connect(config)
    wanted = list(dict.fromkeys(map(config.topic, entry.table_names)))
    require_own_envelope(config, wanted)
    existing = topics.list_topics(admin, config)
    there = [topic for topic in wanted if topic in existing]
    if not there:
        raise ConfigError(
            f"source {name}: none of its topics exist ({', '.join(wanted)}): correct `name` and `topics`, with the "
            "prefix that the mirror puts before the names"
        )
    bounds = offset_bounds(admin, [(topic, number) for topic in there for number in existing[topic].partitions])
    with closing(open_schemas(config)) as schemas:
        schemas.refresh()
        shown = _read(config, schemas, name, bounds)
        lacking = sorted({*wanted} - {*there} | {topic for topic, number in bounds if not shown.get((topic, number))})
        # I1: any partition may lack what is newer than its last changes.
        start = 0 if lacking else min((max(each.values()) for each in shown.values()), default=0)
        if whole_until is not None and there:
            with closing(GroupOffsets(config, "status", there, name=f"{config.name}.status")) as offsets:
                at = offsets.resolve(whole_until, option="--whole-until")
            before = {place: (first, min(end, at[place[0]][str(place[1])])) for place, (first, end) in bounds.items()}
            for each in _read(config, schemas, name, before).values():
                # I1: a change that was published later may have been preceded by others that the mirror lacks.
                start = max(start, *(resume for published, resume in each.items() if published <= until), 0)
    if start <= _MARGIN:
        hint = "Give --whole-until, a time until which the mirror certainly has everything; or begin"
        if whole_until is not None:
            hint = "No change that was published before --whole-until shows it, either. Begin"
        raise RelayError(
            f"source {name}: its topics do not show the time from which to read it again; topics with a partition that "
            f"has no change: {', '.join(lacking) or 'none'}. {hint} with the oldest changes that the source still has"
        )
    return iso_time(start - _MARGIN)


def _time(text: str | None) -> float:
    if text is None:
        return 0.0
    with suppress(ValueError):
        if text[:1].isdigit() and (found := start_time(text, 0.0)) is not None:
            if found > time.time():
                raise ConfigError(f"--whole-until {text}: is in the future: the mirror cannot be complete up to then")
            return found
    raise ConfigError(f"--whole-until {text}: give an ISO time such as 2026-11-21T06:00:00Z")


def _read(
    config: Config, schemas: WriterSchemas, source: str, bounds: Mapping[Partition, tuple[int, int]]
) -> dict[Partition, dict[float, int]]:
    """Return the newest ``resume_timestamp`` by the time of its publication, in seconds, of the last changes."""
    tails = {place: (max(first, end - _TAIL), end) for place, (first, end) in bounds.items() if first < end}
    found: dict[Partition, dict[float, int]] = defaultdict(dict)
    for message in read_committed(config, tails, lambda: None, exit_at_end=True):
        if (value := message.value()) is not None:
            with suppress(Undecodable, UnknownFraming, UnknownSchema):
                change = decode(schemas, value)
                if change["source"] == source:
                    of_partition = found[message.topic() or "", message.partition() or 0]
                    published, resume = microseconds(change["relayed_at"]) / 1_000_000, change["resume_timestamp"]
                    of_partition[published] = max(resume, of_partition.get(published, 0))
    return found
