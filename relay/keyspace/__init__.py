"""Queries over the shards of a keyspace, with tokens that show how fresh they are: see ``relay/keyspace/README.md``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.extras import lazily

if TYPE_CHECKING:
    from relay.keyspace.queries import KeyspaceQueries
    from relay.keyspace.server import ServerState

__all__ = ["KeyspaceQueries", "ServerState"]

if not TYPE_CHECKING:  # without this check, a type checker would accept any name
    _HOMES = {"relay.keyspace.queries": "KeyspaceQueries", "relay.keyspace.server": "ServerState"}
    __getattr__ = lazily(__name__, _HOMES, "mysql")
