"""The loader of the cache for keys of any shard of a keyspace of MySQL or MariaDB servers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from relay.cache.entry import LoadedValue, Tokens, is_fresher
from relay.cache.loaders import PrimaryLoader, Read, ReplicaLoader, require_one_key
from relay.process.slow_call import call_all

if TYPE_CHECKING:
    from pymysql.connections import Connection

    from relay.keyspace.queries import KeyspaceQueries
    from relay.token import EventToken
    from relay.vitess.vindex import Value


class KeyspaceLoader(ReplicaLoader):
    """Loads values from the shards of a keyspace, each read with the token of the server that was read.

    ``sharding_key`` returns the sharding key of a cache key, which says the shard that all rows of its value are in.
    ``read`` must end a transaction that it begins. It gets keys of one shard; several shards are read at once. Threads
    may share it: each reads on connections of its own.

    A read is made on a server that is known to be fresh enough for all its keys, if there is one. ``primaries``: by
    shard, what loads the keys where the read was not.
    """

    def __init__(
        self,
        queries: KeyspaceQueries,
        sharding_key: Callable[[str], Value],
        read: Read,
        *,
        primaries: Mapping[str, PrimaryLoader] | None = None,
        key: str | None = None,
    ) -> None:
        super().__init__(read, key)
        require_one_key(key, *(primaries or {}).values())
        if unknown := set(primaries or {}) - set(queries.shards):
            raise ValueError(f"{queries.keyspace} has no shard {', '.join(sorted(unknown))}")
        self.queries = queries
        self.sharding_key = sharding_key
        self._primaries = dict(primaries or {})

    def load_many(self, wanted: Mapping[str, Tokens | None]) -> dict[str, LoadedValue]:
        """Load many keys, for ``get_many``. Raises what ``KeyspaceQueries.execute`` does, and what ``read`` raises."""
        by_shard: defaultdict[str, dict[str, Tokens | None]] = defaultdict(dict)
        for key, held in wanted.items():
            by_shard[self.queries.shard_of(self.sharding_key(key))][key] = held
        calls = [partial(self._load_shard, shard, keys) for shard, keys in by_shard.items()]
        answers = call_all("load-shards", calls) if len(calls) > 1 else [call() for call in calls]
        found = {key: loaded for answer in answers for key, loaded in answer.items()}
        return {key: found[key] for key in wanted}

    def _load_shard(self, shard: str, wanted: Mapping[str, Tokens | None]) -> dict[str, LoadedValue]:
        keys = list(wanted)

        def work(connection: Connection[Any], token: EventToken | None) -> tuple[Mapping[str, bytes], Any]:
            with closing(connection.cursor()) as cursor:
                return self._values(cursor, keys), token  # I6: it was taken before

        def is_fresh(token: EventToken) -> bool:
            return all(is_fresher({token.shard: token}, held) for held in wanted.values())

        found, token = self.queries.run(shard, work, is_fresh)
        return self._loaded(found, token, wanted, self._primaries.get(shard))
