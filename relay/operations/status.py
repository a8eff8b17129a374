"""``relay status``: what Kafka alone knows of a relay. Its JSON is a contract, in ``relay/observe/README.md``."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from http.client import HTTPException
from typing import Any

from confluent_kafka.admin import AdminClient

from relay.config import Config, SourceConfig
from relay.config.errors import did_you_mean
from relay.engine.kinds import kind_of
from relay.errors import ConfigError, RelayError, Unavailable
from relay.kafka import topics
from relay.kafka.checkpoints import committed_records, partition_of
from relay.kafka.group import Member, members
from relay.kafka.group_offsets import group as group_of
from relay.kafka.unread import consumers_of, unread
from relay.observe.access import Access
from relay.observe.peers import Peers
from relay.observe.status import FORMAT
from relay.observe.verdict import judge
from relay.operations.dead_letters import DeadLetters
from relay.operations.gaps import ListedGap, list_gaps
from relay.records import CommittedRecords, CommittedStream, ShardState, SnapshotRequest
from relay.records.lag import lag_since, shard_watermark, source_watermark
from relay.snapshots.control import is_stopped, repaired_by
from relay.stream.progress import resume_timestamp


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """One shard. Times are seconds since the epoch."""

    shard: str
    state: str
    owner: Mapping[str, str] | None  # None while no worker owns it
    position: Mapping[str, Any] | None
    token: Mapping[str, Any] | None
    parents: Sequence[str]
    start: Mapping[str, Any] | None
    progress: float | None
    lag_seconds: float | None  # see ``relay.records.lag``; None once it has ended
    lag_records: int | None  # None, as no source reports it
    gap: str | None
    updated_at: float


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """One source. What its current stream says is None before the first run."""

    source: str
    type: str
    table: str
    stream: str | None  # its label
    start: str | None
    planned_at: float | None
    watermark: float | None  # what ``lag_seconds`` counts from, see ``relay.records.lag``
    lag_seconds: float | None
    snapshot: Mapping[str, Any] | None
    shards: Sequence[ShardStatus]
    gaps: Sequence[ListedGap]
    snapshot_requests: Sequence[Mapping[str, Any]] = ()
    missing: Sequence[str] = ()  # the ids of gaps that were skipped and that no snapshot repairs
    resume_timestamp: int | None = None  # see ``relay.stream.progress``
    has_snapshots: bool = True  # whether its tables can be read again
    altered: Sequence[Mapping[str, Any]] = ()  # see ``CommittedRecords.altered_tables``


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """A consumer. ``offsets_behind``: the total of all topics; None if it has not begun, or if ``error`` says why.

    ``is_late``: see `Unread`.
    """

    consumer: str
    group: str
    offsets_behind: int | None
    error: str | None = None
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class RelayStatus:
    name: str
    at: float  # seconds since the epoch
    group: str
    members: Sequence[Member]
    sources: Sequence[SourceStatus]
    dead_letters: int  # how many are pending
    consumers: Sequence[ConsumerStatus] = ()
    file: str = "relay.yaml"  # the config
    seen: Mapping[str, Any] | None = None  # the status of all processes, from a worker whose status page answers
    is_blind: bool = False  # whether workers run that have such pages, but none answers

    @property
    def verdict(self) -> dict[str, Any]:
        """The state of the relay and its problems; see ``judge``."""
        asked: dict[str, Any] = {"config": self.file, "is_blind": self.is_blind}
        asked |= {"members": len(self.members), "pending_letters": self.dead_letters}
        asked["unread"] = [
            {"consumer": each.consumer, "offsets": each.offsets_behind, "is_late": each.is_late}
            for each in self.consumers
            if each.offsets_behind is not None
        ]
        if self.seen is not None:
            return judge({**self.seen, **asked})
        sources = [
            {
                "source": source.source,
                "has_snapshots": source.has_snapshots,
                "missing": source.missing,
                "altered": source.altered,
                "pending_gaps": [gap.gap for gap in source.gaps if gap.state == "pending"],
                "snapshot": source.snapshot if source.snapshot and source.snapshot["rows_read"] is not None else None,
            }
            for source in self.sources
        ]
        shards = [{"shard": each.shard, "lag_seconds": each.lag_seconds} for s in self.sources for each in s.shards]
        nobody: dict[str, Any] = dict.fromkeys(("workers", "consumers", "consumer_stalls", "unreachable"), ())
        return judge(nobody | {"sources": sources, "shards": shards} | asked)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "at": self.at,
            "group": self.group,
            "members": [{**_owner(member), "partitions": len(member.partitions)} for member in self.members],
            "sources": [{**asdict(source), "gaps": [gap.to_json() for gap in source.gaps]} for source in self.sources],
            "dead_letters": self.dead_letters,
            "consumers": [asdict(consumer) for consumer in self.consumers],
            **self.verdict,
        }


def status(config: Config) -> RelayStatus:
    """Return the status of the relay of ``config``. Raises ``Unavailable``."""
    admin = topics.connect(config)
    group, checkpoints = f"{config.name}.relay", config.internal("checkpoints")
    existing = topics.list_topics(admin, config)
    workers = members(admin, group, checkpoints) if checkpoints in existing else []
    now = time.time()
    view = committed_records(config, admin)
    gaps = list_gaps(config, admin, view)
    sources = [_source(entry, view, workers, gaps, now) for entry in config.sources]
    # Counted only if the relay has created their topic.
    has_letters = config.internal("dead_letters") in existing
    pending = sum(letter.is_pending for letter in DeadLetters(config).all()) if has_letters else 0
    consumers = [_consumer(admin, config, kind) for kind in consumers_of(config)]
    seen = _page(config) if workers else None
    is_blind = bool(workers) and config.http is not None and seen is None
    return RelayStatus(config.name, now, group, workers, sources, pending, consumers, config.file, seen, is_blind)


def _page(config: Config) -> Mapping[str, Any] | None:
    """Return the content of a worker's status page, if one answers."""
    if config.http is not None:
        with suppress(ConfigError):  # TLS files may exist only on the workers' machines
            peers = Peers((), config.http, Access(config.http))
            for address in (config.http.address, *config.http.peers):
                with suppress(OSError, HTTPException, ValueError):
                    # I10: the worker waits for its own peers. It hangs up after ten seconds.
                    found = peers.get(address, "/page.json", {"name"}, seconds=10.0)
                    if found["name"] == config.name and found.get("format") == FORMAT:
                        return found
    return None


def _consumer(admin: AdminClient, config: Config, kind: str) -> ConsumerStatus:
    group = group_of(config, kind)
    try:
        behind, is_late = unread(config, admin, kind) or (None, False)
        return ConsumerStatus(kind, group, behind, is_late=is_late)
    except Unavailable as error:  # the rest of the status is known
        return ConsumerStatus(kind, group, None, str(error))


def stream_token(config: Config, name: str) -> dict[str, Any]:
    """Return the position of the source ``name``, for ``relay.dynamodb.Stream`` and ``start``.

    Asks DynamoDB for the ARN. Raises ``ConfigError``, ``Unavailable``, and ``RelayError`` for a source not yet read.
    """
    entry = find_source(config, name)
    token_of = kind_of(entry).stream_token if entry.traits.has_stream_tokens else None
    if token_of is None:
        raise ConfigError(
            f"source {name} is of type {entry.type}; only DynamoDB sources have stream tokens. `relay status --json` "
            "shows the GTIDs of each shard"
        )
    if (read := committed_records(config).newest(name)) is None or (plan := read.plan) is None:
        raise RelayError(f"source {name} has not been read yet, so it has no position")
    return token_of(entry, read.stream.label, read.checkpoints, plan)


def relayed_tables(config: Config) -> list[tuple[str, str]]:
    """Return the source and the name of each table that was relayed before. Raises ``Unavailable``."""
    view = committed_records(config)
    plans = [(each.name, planned.plan) for each in config.sources for planned in view.planned(each.name)]
    return [(source, table) for source, plan in plans if plan is not None for table in plan.keys]


def find_source(config: Config, name: str) -> SourceConfig:
    """Return the config of the source ``name``. Raises ``ConfigError``."""
    for entry in config.sources:
        if entry.name == name:
            return entry
    hint = did_you_mean(name, [entry.name for entry in config.sources], "the sources are ")
    raise ConfigError(f"no source is called {name!r}; {hint}")


def _source(
    entry: SourceConfig, view: CommittedRecords, workers: Sequence[Member], gaps: Sequence[ListedGap], now: float
) -> SourceStatus:
    read = view.newest(entry.name)
    mine = [gap for gap in gaps if gap.source == entry.name]
    requests = view.requests_of(entry.name)
    asked = [
        {"id": each.id, "tables": list(each.tables) or None, "requested_at": each.requested_at, "stopped": each.stopped}
        for each in requests
    ]
    if read is None or (plan := read.plan) is None:
        nothing = (None, None, None, None, None, None)
        tables, again = ", ".join(entry.table_names), not entry.is_debezium
        return SourceStatus(entry.name, entry.type, tables, *nothing, [], mine, asked, has_snapshots=again)
    owners = {number: _owner(worker) for worker in workers for number in worker.partitions}
    repaired = repaired_by(read.control)
    shards = [
        ShardStatus(
            shard=shard,
            state=each.state.value,
            owner=owners.get(partition_of(read.stream.shard_key(shard))),
            position=each.position,
            token=asdict(each.token) if each.token is not None else None,
            parents=each.parents,
            start=each.start,
            progress=each.progress,
            lag_seconds=lag_since(shard_watermark(shard, plan, read.checkpoints), now),
            lag_records=None,
            gap=each.gap,
            updated_at=each.updated_at,
        )
        for shard, each in sorted(read.checkpoints.items())
    ]
    watermark = source_watermark(plan, read.checkpoints)
    return SourceStatus(
        source=entry.name,
        type=entry.type,
        table=", ".join(entry.table_names or plan.keys),
        stream=read.stream.label,
        start=plan.requested,
        planned_at=plan.planned_at,
        watermark=watermark,
        resume_timestamp=resume_timestamp(read.checkpoints, read.listing.shards if read.listing else ()),
        lag_seconds=lag_since(watermark, now) or 0.0,
        snapshot=_snapshot(read, requests),
        shards=shards,
        gaps=mine,
        snapshot_requests=asked,
        missing=[gap for gap in (plan.gap, *(shard.gap for shard in shards)) if gap and gap not in repaired],
        has_snapshots=not entry.is_debezium,
        altered=view.altered_tables(entry.name),
    )


def _owner(worker: Member) -> dict[str, str]:
    return {"member": worker.id, "client": worker.client, "host": worker.host}


def _snapshot(read: CommittedStream, requests: Sequence[SnapshotRequest]) -> dict[str, Any] | None:
    if (control := read.control) is None:
        return None
    segments = [read.segments[name] for name in control.segment_names if name in read.segments]
    over = control.state is ShardState.FINISHED
    return {
        "id": control.id,
        "state": control.state.value,
        "as_of": control.begun.as_of or None,
        "segments": control.begun.segments,
        "segments_finished": control.begun.segments if over else sum(segment.state.ended for segment in segments),
        # The checkpoints of its segments are removed soon after its end.
        "rows_read": None if over else sum(segment.rows for segment in segments),
        "rows_estimated": control.begun.rows,
        "repairs": control.gaps,
        "tables": control.tables,
        "requests": control.requests,
        "stopped": is_stopped(control, requests),
    }
