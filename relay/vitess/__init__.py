"""Reads the shards of a Vitess keyspace as a source, and computes key ranges and keyspace ids as Vitess does."""

from typing import TYPE_CHECKING

from relay.extras import lazily

if TYPE_CHECKING:
    from relay.keyrange import KeyRange, shards_covering
    from relay.vitess.lookup import LookupVindex
    from relay.vitess.vindex import NoKeyspaceId, UncomputableVindex, VindexError, keyspace_id

__all__ = [
    "KeyRange",
    "LookupVindex",
    "NoKeyspaceId",
    "UncomputableVindex",
    "VindexError",
    "keyspace_id",
    "shards_covering",
]

if not TYPE_CHECKING:  # otherwise, a type checker would accept any name
    __getattr__ = lazily(
        __name__,
        {
            "relay.keyrange": "KeyRange shards_covering",
            "relay.vitess.lookup": "LookupVindex",
            "relay.vitess.vindex": "NoKeyspaceId UncomputableVindex VindexError keyspace_id",
        },
        "vitess",
    )
