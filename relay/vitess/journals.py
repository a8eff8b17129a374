"""Reshards: the journal that ends a shard, and the other shards that a stream needs before vtgate sends it."""

from relay.records import ReshardJournal
from relay.vitess.failures import participants
from relay.vitess.http2 import CallEnded
from relay.vitess.position import canonical
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.shard import VitessShard

_SHARDS = 1  # the migration type of a reshard
_ATTEMPTS = 20  # streams that may end before their journal, with nothing left to add to them


class JournalParticipants:
    """The other participants of a shard's journal, which have to be in its stream.

    vtgate ends a stream that lacks one, with the journal or before it, depending on timing.
    """

    def __init__(self, shard: VitessShard) -> None:
        self.shard = shard
        self.others: set[str] = set()
        # Those of them that are not in the topology.
        self.unknown: set[str] = set()
        self._attempts = 0

    def add_missing(self, ended: CallEnded) -> bool:
        """Add the shards that vtgate misses. False if the journal has failed to come too often."""
        missing = participants(ended, self.shard.keyspace) - {self.shard.name} - self.unknown
        self._attempts += missing <= self.others
        self.others |= missing
        return self._attempts <= _ATTEMPTS


def ends_shard(journal: pb.Journal, shard: VitessShard) -> bool:
    """Whether the journal is of a reshard that ends ``shard``."""
    participant = pb.KeyspaceShard(keyspace=shard.keyspace, shard=shard.name)
    return journal.migration_type == _SHARDS and participant in journal.participants


def journal_of(journal: pb.Journal, keyspace: str) -> ReshardJournal:
    """Return the journal as lineages hold it. Raises ``GtidError`` if a position in it cannot be read."""

    def name(space: str, shard: str) -> str:
        # Vitess' own reshards stay in a keyspace.
        return shard if space == keyspace else f"{space}/{shard}"

    return ReshardJournal(
        str(journal.id),
        tuple(name(one.keyspace, one.shard) for one in journal.participants),
        {name(target.keyspace, target.shard): {"gtid": canonical(target.gtid)} for target in journal.shard_gtids},
    )
