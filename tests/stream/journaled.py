"""A keyspace whose shards follow from journals, and what of it is ready to be read."""

from __future__ import annotations

from itertools import pairwise

from relay.records import CommittedStream, Lineage, Plan, ReshardJournal, Shard, ShardCheckpoint, ShardState, StreamId
from relay.stream.journals import check_participants, shards_of

EDGES = ["40", "80", "c0"]


CURRENT = {"gtid": "MariaDB/0-1-5"}


def plan(*shards: str) -> Plan:
    return Plan("current", 0.0, dict.fromkeys(shards, CURRENT), {})


def reshard(number: str, participants: str, targets: str) -> ReshardJournal:
    starts = {name: {"gtid": f"MariaDB/0-1-{number}{at}"} for at, name in enumerate(targets.split())}
    return ReshardJournal(number, tuple(participants.split()), starts)


def titled(shard: Shard) -> str:
    """Return the id of a shard with all tables, or the name of one with its tables, such as `-80 without a`."""
    start = shard.start or {}
    tables = [word for kind in ("only", "without") if kind in start for word in (kind, *start[kind])]
    return " ".join([shard.name, *tables]) if tables else shard.id


class World:
    """The checkpoints of a keyspace, and the journals that happen to it."""

    def __init__(self, *shards: str) -> None:
        self.plan = plan(*shards)
        self.checkpoints = {shard: ShardCheckpoint(ShardState.READING) for shard in shards}

    def end(self, shard: str, journal: ReshardJournal) -> None:
        found = next(each for each in shards_of(self.plan, self.checkpoints) if shard in (each.id, titled(each)))
        check_participants(journal, found, self.plan, self.checkpoints)
        self.checkpoints[found.id] = ShardCheckpoint(ShardState.FINISHED, parents=found.parents, journal=journal)

    def ready(self) -> list[str]:
        return sorted(map(titled, self.readable()))

    def readable(self) -> list[Shard]:
        committed = CommittedStream(StreamId("s", "k"))
        committed.plan, committed.checkpoints = self.plan, self.checkpoints
        lineage = Lineage(committed)
        lineage.update(shards_of(self.plan, self.checkpoints))
        return list(lineage.ready())


def cut(edges: frozenset[str]) -> list[str]:
    between = ["", *sorted(edges), ""]
    return [f"{a}-{b}" for a, b in pairwise(between)]
