"""Loaders for the cache, which read the values of cache keys at their source: one class for each kind of source.

A loader states how fresh each read was (``LoadedValue``). I6 depends on that as much as on the cache itself.
"""

from __future__ import annotations

import re
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from relay.cache.entry import UNPLACED, LoadedValue, Tokens, is_fresher
from relay.cache.keys import key_template, row_keys, text
from relay.dynamodb.values import image_json, key_value
from relay.errors import RelayError
from relay.mysql_dialect.read_only import is_read_only
from relay.process.connections import Connections, closed_on_error
from relay.process.slow_call import call_all
from relay.records import Shard

if TYPE_CHECKING:
    from pymysql.connections import Connection
    from types_boto3_dynamodb.client import DynamoDBClient

    from relay.keyspace.queries import KeyspaceQueries
    from relay.mysql.queries import TokenQueries
    from relay.mysql.watcher import ReplicationWatcher
    from relay.token import EventToken
    from relay.vitess.vindex import Value


@dataclass(eq=False, repr=False)
class DynamoDBLoader:
    """Loads items of one table by consistent reads, as DynamoDB-typed JSON; a missing item is a value of None.

    ``primary_key`` turns a cache key into the item's primary key in DynamoDB's typed form. ``key``: the template of the
    keys in ``cache.keys``. An item is stored only under the key that it, or its primary key if it is missing, renders.
    Without ``key``, it is stored under a key in which the canonical text of each attribute of its primary key is a
    separate part, which does not detect all other spellings.

    The client has to read the table whose stream is relayed, in the same region. So a read that starts after a change
    came out of the stream reflects it, and is fresher without a token.
    """

    client: DynamoDBClient
    table: str
    primary_key: Callable[[str], Mapping[str, Any]]
    _: KW_ONLY
    key: str | None = None
    sleep: Callable[[float], None] = time.sleep

    def load(self, key: str, compare: Tokens | None) -> LoadedValue:
        """Load one key, for ``get_or_load``. Raises botocore's errors."""
        primary_key = self.primary_key(key)
        answer = self.client.get_item(
            TableName=self.table,
            Key=primary_key,
            ConsistentRead=True,  # I6: what makes `fresher` true
        )
        return self._loaded(key, primary_key, answer.get("Item"))

    def load_many(self, wanted: Mapping[str, Tokens | None]) -> dict[str, LoadedValue]:
        """Load many keys, for ``get_many``. Raises the errors of ``relay.dynamodb.batch_load``."""
        from relay.dynamodb import batch_load  # needs botocore, which other loaders do not

        primary_keys = {key: self.primary_key(key) for key in wanted}
        requested = {self.table: primary_keys.values()}
        loaded = batch_load(self.client, requested, consistent=True, sleep=self.sleep)  # I6
        names = sorted(next(iter(primary_keys.values()), ()))
        found = {_identity(names, item): item for item in loaded.items[self.table]}
        return {key: self._loaded(key, each, found.get(_identity(names, each))) for key, each in primary_keys.items()}

    def _loaded(self, key: str, primary_key: Mapping[str, Any], item: Mapping[str, Any] | None) -> LoadedValue:
        # I6: however the item was found, its changes invalidate the keys that its own attributes render.
        if self.key is not None:
            canonical = row_keys([self.key], [item or primary_key]) == [key]
        else:
            canonical = _shows(key, primary_key)
        return LoadedValue(None if item is None else image_json(item).encode(), {}, True, canonical)


# Characters that make a text part of a number, base64 or padding. A minus may be a hyphen, except before zero.
_BEFORE, _BEFORE_ZERO, _AFTER = (re.compile(each) for each in (r"[\w+.\s]", r"[\w+.\s-]", r"[\w+.=\s]"))


def _shows(key: str, primary_key: Mapping[str, Any]) -> bool:
    """Whether a cache key contains the texts of all attributes, each in a different part."""
    for part in sorted((str(text(value)) for value in primary_key.values()), key=len, reverse=True):
        before = _BEFORE_ZERO if part == "0" else _BEFORE
        at = key.find(part)
        while at >= 0 and ((at and before.match(key, at - 1)) or _AFTER.match(key, at + len(part))):
            at = key.find(part, at + 1)
        if at < 0:
            return False
        key = f"{key[:at]}\0{key[at + len(part) :]}"
    return True


Read = Callable[[Any, Sequence[str]], Iterable[tuple[Mapping[str, Any], bytes]]]
"""``read(cursor, keys)``: runs any queries over any tables, and returns pairs of a row and its value."""


class RowsLoader(ABC):
    """The base of loaders for MySQL and MariaDB: a value comes from the row that renders its key.

    ``key``: the template of the keys in ``cache.keys``; the loader uses it to render the key of each row that ``read``
    returns. A key that no row renders has no value, even if the database finds a row by it: ``7`` by ``007``, ``ada``
    by ``Ada``.
    """

    def __init__(self, read: Read, key: str) -> None:
        self.key = key
        self._columns = key_template(key)[1]
        self._read = read

    def load(self, key: str, compare: Tokens | None) -> LoadedValue:
        """Load one key, for ``get_or_load``. Raises as ``load_many`` does."""
        return self.load_many({key: compare})[key]

    @abstractmethod
    def load_many(self, wanted: Mapping[str, Tokens | None]) -> dict[str, LoadedValue]:
        """Load many keys, for ``get_many``."""

    def _values(self, cursor: Any, keys: Sequence[str]) -> Mapping[str, bytes]:
        pairs = [*self._read(cursor, keys)]
        for row, _ in pairs:
            # I6: otherwise a row without this column would look like a missing row.
            if lacking := sorted(self._columns - row.keys()):
                raise ValueError(f"`read` has returned a row without `{lacking[0]}`, which {self.key} needs")
        return {key: value for row, value in pairs for key in row_keys([self.key], [row])}  # I6


class ReplicaLoader(RowsLoader):
    """The base of loaders from servers that may lag: keys that need a fresher server are read from a primary.

    ``primary_reads`` counts those keys. Without a primary their values are returned and not cached.
    """

    def __init__(self, read: Read, key: str, *primaries: PrimaryLoader) -> None:
        """Raises ValueError if a primary renders other keys: all must read values in the same form."""
        super().__init__(read, key)
        for each in primaries:
            if each.key != key:
                raise ValueError(f"the loader has key={key!r}, and its primary has key={each.key!r}: use the same key")
        self.primary_reads = 0
        self._lock = threading.Lock()  # guards the counter

    def _loaded(
        self,
        found: Mapping[str, bytes],
        token: EventToken | None,
        wanted: Mapping[str, Tokens | None],
        primary: PrimaryLoader | None,
    ) -> dict[str, LoadedValue]:
        tokens = {} if token is None else {token.shard: token}
        # I6: whatever the server reported before. Invalidations of another shard are not reflected here.
        loaded = {
            key: LoadedValue(found.get(key), tokens, bool(tokens) and is_fresher(tokens, held))
            for key, held in wanted.items()
        }
        lagging = {key: held for key, held in wanted.items() if not loaded[key].fresher}
        if primary is None or not lagging:
            return loaded
        with self._lock:
            self.primary_reads += len(lagging)
        return loaded | primary.load_many(lagging)


class QueriesLoader(ReplicaLoader):
    """Loads values from one server of MySQL or MariaDB, a primary or a replica, each read with the server's token.

    ``connect`` returns a new PyMySQL connection to the server that ``watcher`` watches, with ``autocommit=True``.
    ``read`` must end a transaction that it begins. All keys must be in the watched shard. Threads may share it: each
    reads on its own connection. If the watch has ended, a read has no token, and is not cached.

    ``primary`` loads the keys for which the server lags, or is not known to be fresh enough.
    """

    def __init__(
        self,
        connect: Callable[[], Connection[Any]],
        watcher: ReplicationWatcher,
        read: Read,
        *,
        key: str,
        primary: PrimaryLoader | None = None,
    ) -> None:
        super().__init__(read, key, *filter(None, [primary]))
        self.watcher = watcher
        self._connect = connect
        self._primary = primary
        self._connections = Connections(self._open)

    def close(self) -> None:
        """Close the connections; no thread may be loading. The watcher stays."""
        self._connections.close()

    def load_many(self, wanted: Mapping[str, Tokens | None]) -> dict[str, LoadedValue]:
        """Load many keys, for ``get_many``. Raises PyMySQL's errors, ``RelayError``, and exceptions of ``read``."""
        keys = list(wanted)
        found, token = self._connections.run(lambda queries: self._read_with_token(queries, keys))
        return self._loaded(found, token, wanted, self._primary)

    def _read_with_token(
        self, queries: TokenQueries, keys: Sequence[str]
    ) -> tuple[Mapping[str, bytes], EventToken | None]:
        token = queries.token()  # I6: before the read
        with closing(queries.connection.cursor()) as cursor:
            return self._values(cursor, keys), token

    def _open(self) -> TokenQueries:
        from relay.mysql.queries import TokenQueries  # needs PyMySQL, which other loaders do not

        return TokenQueries(self._connect(), self.watcher)


class KeyspaceLoader(ReplicaLoader):
    """Loads values from the shards of a keyspace, each read with the token of the server that was read.

    ``sharding_key`` returns the sharding key of a cache key, which determines the shard that holds all rows of its
    value. ``read`` must end a transaction that it begins. It gets keys of one shard; several shards are read at once.
    Threads may share it: each reads on its own connections. A read is made on a server that is known to be fresh enough
    for all its keys, if there is one. ``primaries``: by shard, what loads the keys where the read was not.

    A lookup vindex must be unique, and is asked once for all keys. Its answers may change at any time: a key is not
    stored if no shard has a row for it, or if another shard has invalidated it. ``remembered``: the number of keys
    whose shard is remembered. A remembered shard is used as long as no other shard has invalidated the key, and it has
    a row for it.
    """

    def __init__(
        self,
        queries: KeyspaceQueries,
        sharding_key: Callable[[str], Value],
        read: Read,
        *,
        key: str,
        primaries: Mapping[str, PrimaryLoader] | None = None,
        remembered: int = 10_000,
    ) -> None:
        """Raises ValueError for ``primaries`` that do not fit, and for a lookup vindex that is not unique."""
        self._primaries = dict(primaries or {})
        super().__init__(read, key, *self._primaries.values())
        vindex = queries.vindex
        self._looks_up = vindex is not None and not isinstance(vindex, str)
        if vindex is not None and not isinstance(vindex, str) and not vindex.is_unique:
            raise ValueError(f"{vindex} is not unique: another shard may get rows of a value at any time")
        if unknown := self._primaries.keys() - set(queries.shards):
            raise ValueError(f"{queries.keyspace} has no shard {', '.join(sorted(unknown))}")
        self.queries = queries
        self.sharding_key = sharding_key
        # By cache key, the shard that a lookup found last. Threads share it: a race costs a query to vtgate.
        self._shards: dict[str, str] = {}
        self._most = remembered

    def load_many(self, wanted: Mapping[str, Tokens | None]) -> dict[str, LoadedValue]:
        """Load many keys, for ``get_many``. Raises what ``KeyspaceQueries.execute`` does, and what ``read`` raises."""
        remembered = {key: shard for key, held in wanted.items() if (shard := self._remembered(key, held))}
        found = self._load(remembered, wanted)
        asked = {key: self.sharding_key(key) for key in wanted if key not in found or found[key].value is None}
        shards = self.queries.shards_of(asked.values()) if asked else {}
        located = {key: shards[value][0] for key, value in asked.items() if shards[value]}
        if self._looks_up:
            if len(self._shards) + len(located) > self._most:
                self._shards.clear()  # I11
            self._shards |= located
        none = dict.fromkeys(asked, LoadedValue(None, {}, fresher=False))  # I6: it may have a row by now, in any shard
        found |= none | self._load(located, wanted)
        return {key: found[key] for key in wanted}

    def _remembered(self, key: str, held: Tokens | None) -> str | None:
        """Return the shard that a lookup found last, if it alone has invalidated the key (I6)."""
        shard = self._shards.get(key)
        return shard if held and held.keys() == {f"{self.queries.keyspace}/{shard}"} else None

    def _load(self, shards: Mapping[str, str], wanted: Mapping[str, Tokens | None]) -> dict[str, LoadedValue]:
        """Load the keys of ``shards``, each from its shard."""
        by_shard: defaultdict[str, dict[str, Tokens | None]] = defaultdict(dict)
        for key, shard in shards.items():
            by_shard[shard][key] = wanted[key]
        calls = [partial(self._load_shard, shard, keys) for shard, keys in by_shard.items()]
        answers = call_all("load-shards", calls) if len(calls) > 1 else [call() for call in calls]
        return {key: loaded for answer in answers for key, loaded in answer.items()}

    def _load_shard(self, shard: str, wanted: Mapping[str, Tokens | None]) -> dict[str, LoadedValue]:
        keys = list(wanted)

        def work(connection: Connection[Any], token: EventToken | None) -> tuple[Mapping[str, bytes], Any]:
            with closing(connection.cursor()) as cursor:
                return self._values(cursor, keys), token  # I6: the token was taken before

        def is_fresh(token: EventToken) -> bool:
            return all(is_fresher({token.shard: token}, held) for held in wanted.values())

        found, token = self.queries.run(shard, work, is_fresh)
        loaded = self._loaded(found, token, wanted, self._primaries.get(shard))
        if self._looks_up:  # I6: what another shard has invalidated may be there now, and the lookup from before
            here = {f"{self.queries.keyspace}/{shard}", UNPLACED}
            elsewhere = {key for key, held in wanted.items() if {Shard(each).name for each in held or {}} - here}
            nowhere = {key for key in wanted if loaded[key].value is None}  # I6: as above
            loaded |= {key: replace(loaded[key], fresher=False) for key in elsewhere | nowhere}
        return loaded


class PrimaryLoader(RowsLoader):
    """Loads values from the primary of a shard of MySQL or MariaDB, where every change is visible.

    ``connect`` returns a new connection of any DB-API 2.0 driver, such as PyMySQL. ``read`` is in a transaction that it
    must not end. Threads may share it: each reads on its own connection. It must be the primary of the relayed shard.
    So a read that starts after a change came out of the stream reflects it, and is fresher without a token.

    A replica that acknowledges a transaction (semi-synchronous replication, AFTER_SYNC) has it in its binlog before
    other sessions of the primary see it. So the reads are serializable: they lock the rows that they find, and wait for
    transactions that have changed them.
    """

    def __init__(self, connect: Callable[[], Any], read: Read, *, key: str) -> None:
        super().__init__(read, key)
        self._connect = connect
        self._connections = Connections(self._open)

    def close(self) -> None:
        """Close the connections; no thread may be loading."""
        self._connections.close()

    def load_many(self, wanted: Mapping[str, Tokens | None]) -> dict[str, LoadedValue]:
        """Load many keys, for ``get_many``. Raises the driver's errors, ``RelayError``, and exceptions of ``read``."""
        keys = list(wanted)
        found = self._connections.run(lambda connection: self._read_committed(connection, keys))
        return {key: LoadedValue(found.get(key), {}, fresher=True) for key in keys}

    def _read_committed(self, connection: Any, keys: Sequence[str]) -> Mapping[str, bytes]:
        with closing(connection.cursor()) as cursor:
            cursor.execute("BEGIN")
            self._require_primary(cursor)
            found = self._values(cursor, keys)
            cursor.execute("COMMIT")
        return found

    def _require_primary(self, cursor: Any) -> None:
        cursor.execute("SELECT @@global.read_only")
        if is_read_only(cursor.fetchone()[0]):
            raise RelayError("the server used as the primary is read-only: connect to the one that accepts writes")

    def _open(self) -> Any:
        with closed_on_error(self._connect()) as connection, closing(connection.cursor()) as cursor:
            self._set_up(cursor)
        return connection

    def _set_up(self, cursor: Any) -> None:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE")  # I6: this makes `fresher` true


class VitessLoader(PrimaryLoader):
    """Loads values from the PRIMARY tablets of a keyspace, through vtgate's MySQL protocol, as ``PrimaryLoader`` does.

    ``connect`` returns a new connection to vtgate. The keyspace must be the relayed one.
    """

    def __init__(self, connect: Callable[[], Any], keyspace: str, read: Read, *, key: str) -> None:
        super().__init__(connect, read, key=key)
        self.keyspace = keyspace

    def _require_primary(self, cursor: Any) -> None:
        """Do nothing, because vtgate finds the primary."""

    def _set_up(self, cursor: Any) -> None:
        cursor.execute(f"USE `{self.keyspace}@primary`")  # I6
        super()._set_up(cursor)


def _identity(names: Iterable[str], item: Mapping[str, Any]) -> tuple[str | bytes, ...]:
    """Return a value that is equal for equal key attributes: the numbers 1.0 and 1 are."""
    return tuple(key_value(item[name]) for name in names)
