"""Loaders of the cache: they read the values of cache keys at their source, with one class for each kind of source.

A loader states how fresh each read was (``LoadedValue``). I6 depends on it as much as on the cache itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from relay.cache.entry import LoadedValue, Tokens, is_above_floors
from relay.dynamodb.values import image_json, key_value
from relay.errors import RelayError
from relay.process.connections import Connections

if TYPE_CHECKING:
    from pymysql.connections import Connection
    from types_boto3_dynamodb.client import DynamoDBClient

    from relay.mysql.queries import TokenQueries
    from relay.mysql.watcher import ReplicationWatcher
    from relay.token import EventToken


class DynamoDBLoader:
    """Loads items of one table by consistent reads, as DynamoDB-typed JSON; a missing item is a value of None.

    ``primary_key`` turns a cache key into the item's primary key in DynamoDB's typed form. The client has to read the
    table whose stream is relayed, in the same region: a consistent read that starts after a change came out of the
    stream reflects it. So the reads have no token, and are always fresher.
    """

    def __init__(
        self,
        client: DynamoDBClient,
        table: str,
        primary_key: Callable[[str], Mapping[str, Any]],
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.client = client
        self.table = table
        self.primary_key = primary_key
        self._sleep = sleep

    def load(self, key: str, compare: Tokens | None) -> LoadedValue:
        """Load one key, for ``get_or_load``. Raises botocore's errors."""
        answer = self.client.get_item(
            TableName=self.table,
            Key=self.primary_key(key),
            ConsistentRead=True,  # I6: what makes `fresher` true
        )
        return _loaded(answer.get("Item"))

    def load_many(self, wanted: Mapping[str, Tokens | None]) -> dict[str, LoadedValue]:
        """Load many keys, for ``get_many``. Raises as ``relay.dynamodb.batch_load``."""
        from relay.dynamodb import batch_load  # needs botocore, which other loaders do not

        primary_keys = {key: self.primary_key(key) for key in wanted}
        requested = {self.table: primary_keys.values()}
        loaded = batch_load(self.client, requested, consistent=True, sleep=self._sleep)  # I6
        names = sorted(next(iter(primary_keys.values()), ()))
        found = {_identity(names, item): item for item in loaded.items[self.table]}
        return {key: _loaded(found.get(_identity(names, primary_keys[key]))) for key in wanted}


class QueriesLoader:
    """Loads values from one server of MySQL or MariaDB, a primary or a replica, each read with the server's token.

    ``connect`` returns a new PyMySQL connection to the server that ``watcher`` watches, with ``autocommit=True``.
    ``read(cursor, keys)`` returns the values of the cache keys that have one, by any queries over any tables; it must
    end a transaction that it begins. All keys must be in the watched shard. Shared by threads, each of which reads on a
    connection of its own. If the watch has ended, a read has no token, and is not cached.

    ``primary`` loads the keys for which the server is known to lag, or not known to be fresh enough; without it their
    values are returned and not cached. ``primary_reads`` counts those keys.
    """

    def __init__(
        self,
        connect: Callable[[], Connection[Any]],
        watcher: ReplicationWatcher,
        read: Callable[[Any, Sequence[str]], Mapping[str, bytes]],
        *,
        primary: PrimaryLoader | None = None,
    ) -> None:
        self.watcher = watcher
        self.primary_reads = 0
        self._connect = connect
        self._read = read
        self._primary = primary
        self._connections = Connections(self._open)
        self._lock = threading.Lock()  # guards the counter

    def close(self) -> None:
        """Close the connections; no thread may be loading. The watcher stays."""
        self._connections.close()

    def load(self, key: str, compare: Tokens | None) -> LoadedValue:
        """Load one key, for ``get_or_load``. Raises PyMySQL's errors, ``RelayError``, and what ``read`` raises."""
        return self.load_many({key: compare})[key]

    def load_many(self, wanted: Mapping[str, Tokens | None]) -> dict[str, LoadedValue]:
        """Load many keys, for ``get_many``. Raises as ``load``."""
        keys = list(wanted)
        found, token = self._connections.run(lambda queries: self._read_with_token(queries, keys))
        tokens = {} if token is None else {token.shard: token}
        loaded = {key: LoadedValue(found.get(key), tokens, includes(token, wanted[key])) for key in keys}
        lagging = {key: wanted[key] for key in keys if not loaded[key].fresher}
        if self._primary is None or not lagging:
            return loaded
        with self._lock:
            self.primary_reads += len(lagging)
        return loaded | self._primary.load_many(lagging)

    def _read_with_token(
        self, queries: TokenQueries, keys: Sequence[str]
    ) -> tuple[Mapping[str, bytes], EventToken | None]:
        token = queries.token()  # I6: before the read
        with closing(queries.connection.cursor()) as cursor:
            return self._read(cursor, keys), token

    def _open(self) -> TokenQueries:
        from relay.mysql.queries import TokenQueries  # needs PyMySQL, which other loaders do not

        return TokenQueries(self._connect(), self.watcher)


def includes(token: EventToken | None, held: Tokens | None) -> bool:
    """Whether a read with the token reflects every invalidation held."""
    from relay.mysql.queries import reflects

    if token is None or not all(bound is not None and reflects(token, bound) for bound in (held or {}).values()):
        return False
    return is_above_floors({token.shard: token}, held)


class PrimaryLoader:
    """Loads values from the primary of a shard of MySQL or MariaDB, so that every change is in them.

    ``connect`` returns a new connection of any DB-API 2.0 driver, such as PyMySQL. ``read(cursor, keys)`` returns the
    values of the cache keys that have one, by any queries over any tables, inside a transaction that it must not end.
    Shared by threads, each of which reads on a connection of its own. The primary must be that of the relayed shard: a
    read of it that starts after a change came out of the stream reflects the change. So the reads have no token, and
    are always fresher.

    A replica that acknowledges a transaction (semi-synchronous replication, AFTER_SYNC) has it in its binlog, and so in
    the stream, before other sessions of the primary see it. So the reads are serializable: they lock the rows that they
    find, and wait for the transactions that have changed them.
    """

    def __init__(self, connect: Callable[[], Any], read: Callable[[Any, Sequence[str]], Mapping[str, bytes]]) -> None:
        self._connect = connect
        self._read = read
        self._connections = Connections(self._open)

    def close(self) -> None:
        """Close the connections; no thread may be loading."""
        self._connections.close()

    def load(self, key: str, compare: Tokens | None) -> LoadedValue:
        """Load one key, for ``get_or_load``. Raises the driver's errors, ``RelayError``, and what ``read`` raises."""
        return self.load_many({key: compare})[key]

    def load_many(self, wanted: Mapping[str, Tokens | None]) -> dict[str, LoadedValue]:
        """Load many keys, for ``get_many``. Raises as ``load``."""
        keys = list(wanted)
        found = self._connections.run(lambda connection: self._read_committed(connection, keys))
        return {key: LoadedValue(found.get(key), {}, fresher=True) for key in keys}

    def _read_committed(self, connection: Any, keys: Sequence[str]) -> Mapping[str, bytes]:
        with closing(connection.cursor()) as cursor:
            cursor.execute("BEGIN")
            self._require_primary(cursor)
            found = self._read(cursor, keys)
            cursor.execute("COMMIT")
        return found

    def _require_primary(self, cursor: Any) -> None:
        cursor.execute("SELECT @@global.read_only")
        if cursor.fetchone()[0]:
            raise RelayError(
                "the server that was connected to as the primary is read-only: connect to the one that takes writes"
            )

    def _open(self) -> Any:
        connection = self._connect()
        try:
            with closing(connection.cursor()) as cursor:
                self._set_up(cursor)
        except BaseException:
            with suppress(Exception):
                connection.close()
            raise
        return connection

    def _set_up(self, cursor: Any) -> None:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE")  # I6: this makes `fresher` true


class VitessLoader(PrimaryLoader):
    """Loads values from the PRIMARY tablets of a keyspace, through vtgate's MySQL protocol, as ``PrimaryLoader`` does.

    ``connect`` returns a new connection to vtgate. The keyspace must be the relayed one.
    """

    def __init__(
        self, connect: Callable[[], Any], keyspace: str, read: Callable[[Any, Sequence[str]], Mapping[str, bytes]]
    ) -> None:
        super().__init__(connect, read)
        self.keyspace = keyspace

    def _require_primary(self, cursor: Any) -> None:
        """Do nothing, since vtgate finds the primary."""

    def _set_up(self, cursor: Any) -> None:
        cursor.execute(f"USE `{self.keyspace}@primary`")  # I6
        super()._set_up(cursor)


def _loaded(item: Mapping[str, Any] | None) -> LoadedValue:
    return LoadedValue(None if item is None else image_json(item).encode(), {}, fresher=True)


def _identity(names: Iterable[str], item: Mapping[str, Any]) -> tuple[str | bytes, ...]:
    """Return a value that is equal for equal key attributes: the numbers 1.0 and 1 are."""
    return tuple(key_value(item[name]) for name in names)
