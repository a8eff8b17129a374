"""What a journal says: which shards end in a reshard, and which begin, and where."""

from __future__ import annotations

from relay.errors import RelayError
from relay.lineage import Journal
from relay.vitess.position import canonical
from relay.vitess.proto import vtgate_pb2 as pb

_SHARDS = 1  # the migration type of a reshard


def ends(journal: pb.Journal, keyspace: str, shard: str) -> bool:
    """Whether it is a reshard that ends ``shard``."""
    mine = pb.KeyspaceShard(keyspace=keyspace, shard=shard)
    return journal.migration_type == _SHARDS and mine in journal.participants


def told(journal: pb.Journal, keyspace: str) -> Journal:
    """Return it as lineages have it. Raises ``GtidError`` for a position that is none."""

    def name(space: str, shard: str) -> str:
        # Another keyspace is no reshard of Vitess' own; still nothing is lost by it.
        return shard if space == keyspace else f"{space}/{shard}"

    return Journal(
        str(journal.id),
        tuple(name(one.keyspace, one.shard) for one in journal.participants),
        {name(target.keyspace, target.shard): {"gtid": canonical(target.gtid)} for target in journal.shard_gtids},
    )


def early(shard: str, why: str) -> RelayError:
    """Return the error for a reshard of a shard, globally qualified, that is not copied yet."""
    return RelayError(
        f"shard {shard}: it was resharded{why} before all of it was copied: the rest would be lost. Reset the source, "
        "to copy the shards that there are now"
    )
