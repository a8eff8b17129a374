"""The plan of a stream."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from relay.records.codec import StoredRecord
from relay.records.shard import Shard, Start, TableKey

PASSED = "passed"  # the type of a start for a shard that was read to its end before the relay began


@dataclass(frozen=True, slots=True)
class Plan(StoredRecord):
    """The plan of a stream: where reading began, decided once before anything was read.

    ``requested``: the ``start`` of the config at that time. ``planned_at``: T0, seconds since the epoch. ``shards``:
    the start of each shard listed at T0; a shard that is not among them starts at its horizon. ``keys``: the key
    columns of each table, hash columns first. ``gap``: the id of the gap that comes with the plan, after a former
    stream of the source, a reset, or a token whose shards have expired. ``floor``: seconds, the last timestamp
    published before: no token under this plan gets an earlier one. ``hashed``: by table, if the source has journals,
    how many of its key columns choose the partition. ``past``: the newest shard of each name before a reset.
    ``in_force``: the hash of the config with which workers may read this source (`PartitionOwner`); empty until one
    does. ``partitions``: by topic, how many partitions the changes of its table went to. ``cluster``: the id of the
    Kafka cluster for which it was made; empty if that is not known. ``routes``: `topics` of the config by
    which the changes of its tables went to their topics; ``topics``: by table, its topic where that is another one.
    """

    requested: str
    planned_at: float
    shards: Mapping[str, Start]
    keys: Mapping[str, TableKey]
    config_hash: str = ""
    gap: str | None = None
    floor: int = 0
    hashed: Mapping[str, int] = field(default_factory=dict)
    past: tuple[str, ...] = ()
    in_force: str = ""
    partitions: Mapping[str, int] = field(default_factory=dict)
    cluster: str = ""
    routes: Mapping[str, str] = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)

    def start_of(self, shard: Shard) -> Start:
        return shard.start or self.shards.get(shard.id, {"type": "trim_horizon"})

    @property
    def passed(self) -> frozenset[str]:
        return frozenset(shard for shard, start in self.shards.items() if start.get("type") == PASSED)


@dataclass(frozen=True, slots=True)
class PartitionOwner(StoredRecord):
    """The worker that owns a partition. ``process``: machine and id. ``sources``: hashes of their configs, by name.

    ``ready``: by topic, the requested number of partitions that it waits for. Until then it publishes nothing there.
    """

    process: str
    sources: Mapping[str, str]
    ready: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RequestedPartitions(StoredRecord):
    """Over how many ``partitions`` the changes on a topic are to be spread.

    The request is fulfilled once the plan has this number. It stays: its topic no longer follows the config.
    """

    partitions: int
