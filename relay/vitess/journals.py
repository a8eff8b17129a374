"""Reshards: the journal that ends a shard."""

from dataclasses import replace

from relay.records import ReshardJournal
from relay.vitess.position import VitessShard, canonical
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.settings import Portion

_SHARDS = 1  # the migration type of a reshard


def ends_shard(journal: pb.Journal, shard: VitessShard) -> bool:
    """Whether the journal belongs to a reshard that ends ``shard``."""
    participant = pb.KeyspaceShard(keyspace=shard.keyspace, shard=shard.name)
    return journal.migration_type == _SHARDS and participant in journal.participants


def journal_of(journal: pb.Journal, keyspace: str, portion: Portion) -> ReshardJournal:
    """Return the journal as lineages hold it. ``portion``: the tables of the ended shard's stream.

    ``keyspace``: the source's keyspace. Raises ``GtidError`` if a position in the journal cannot be read.
    """
    tables = replace(portion, moves=()).to_json()
    return ReshardJournal(
        str(journal.id),
        tuple(name_in(keyspace, one.keyspace, one.shard) for one in journal.participants),
        {
            name_in(keyspace, target.keyspace, target.shard): {"gtid": canonical(target.gtid), **tables}
            for target in journal.shard_gtids
        },
    )


def name_in(keyspace: str, space: str, shard: str) -> str:
    """Return the name that a shard of the keyspace ``space`` has in a source of ``keyspace``."""
    return shard if space == keyspace else f"{space}/{shard}"
