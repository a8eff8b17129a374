"""The shards of a Vitess keyspace as a source, and key ranges and keyspace ids computed as Vitess does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.extras import lazily

if TYPE_CHECKING:
    from relay.keyrange import KeyRange, shards_covering
    from relay.vitess.vindex import NoKeyspaceId, UncomputableVindex, VindexError, keyspace_id

__all__ = ["KeyRange", "NoKeyspaceId", "UncomputableVindex", "VindexError", "keyspace_id", "shards_covering"]

if not TYPE_CHECKING:  # or a type checker would take any name
    __getattr__ = lazily(
        __name__,
        {
            "relay.keyrange": "KeyRange shards_covering",
            "relay.vitess.vindex": "NoKeyspaceId UncomputableVindex VindexError keyspace_id",
        },
        "vitess",
    )
