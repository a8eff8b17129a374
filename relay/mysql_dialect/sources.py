"""The common base of sources with MySQL's dialect: their properties, their checks, and the work of a snapshot."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import closing
from functools import partial
from typing import ClassVar, Literal

import orjson

from relay.config import MySQLConfig, VitessConfig
from relay.config.errors import did_you_mean
from relay.config.value_types import StartAtGtids
from relay.errors import ConfigError, Unavailable
from relay.keyrange import KeyRange, shards_covering
from relay.mysql_dialect.catalog import absent
from relay.mysql_dialect.layout_cache import SkippedTables
from relay.mysql_dialect.snapshot_times import MARGIN, lowest
from relay.mysql_dialect.tables import lay_out_keys, missing_tables
from relay.process.service_clock import ServiceClock
from relay.process.slow_call import call_all
from relay.records import Shard, ShardCheckpoint, SnapshotPart, StreamId
from relay.source import CheckedSource, CheckedTable, Finding, Measured, Opening, StartingPoints
from relay.table import TableSchema


class SqlSource(ABC):
    """The one stream of a database or keyspace, whose shards announce the shards that continue them."""

    has_journals = True
    noun: ClassVar[str]  # the users' word for the database
    skipped: SkippedTables

    def __init__(self, config: MySQLConfig | VitessConfig) -> None:
        self.config = config
        self.name = config.name
        self.start = str(config.start)
        self.on_gap: Literal["fail", "skip", "resnapshot"] = config.on_gap
        self.stream = StreamId(config.name, config.database)
        self.clock = ServiceClock()
        # For each table that the config names and that did not exist at `connect`, what to do, as text after its name.
        self._absent: dict[str, str] = {}

    def first(self) -> str:
        return self.stream.label

    following = first

    def config_hash(self) -> str:
        identity = orjson.dumps([self.config.type, self.config.database])
        return hashlib.blake2b(identity, digest_size=8).hexdigest()

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def connect(self, label: str | None = None) -> StreamId: ...

    @abstractmethod
    def tables(self) -> Sequence[TableSchema]:
        """Return the tables that existed at ``connect``, and all tables whose rows have been read since then."""

    @property
    def left_out(self) -> Mapping[str, str]:
        return self.skipped.reasons

    def has_keys(self, tables: Set[str]) -> None:
        self.skipped.has_keys(tables)

    @abstractmethod
    def is_wanted(self, table: str) -> bool:
        """Whether changes of a table are relayed, even if it does not exist."""

    @abstractmethod
    def _head(self, shard: str) -> str:
        """Return the position of everything that a shard has executed now. Raises ``Unavailable``."""

    @abstractmethod
    def _since(self, shard: str, since: float) -> str:
        """Return the position of a shard just before the first transaction since a time. Raises ``Unavailable``."""

    def _require_label(self, label: str | None) -> None:
        if label not in (None, self.config.database):
            raise ConfigError(
                f"source {self.name}: its checkpoints belong to the {self.noun} {label}, not to "
                f"{self.config.database}. To read the other {self.noun}, add a source with another name"
            )

    def starting_points(self, shards: Sequence[Shard]) -> StartingPoints:
        if missing := self.missing():
            # Only here: tables relayed before are relayed to their end, even if dropped meanwhile (I1).
            raise Unavailable(f"source {self.name}: the {self.noun} {self.config.database} has {missing}")
        names, now, start = [shard.name for shard in shards], self.clock(), self.config.start
        if isinstance(start, StartAtGtids):
            if set(start.positions) != set(names):
                raise ConfigError(
                    f"source {self.name}: `start` names the shards {', '.join(sorted(start.positions))}, but key range "
                    f"{self.config.keyrange} has {', '.join(names)}: name each of these"
                )
            return StartingPoints({name: {"gtid": start.positions[name]} for name in names}, now)
        since = self.config.start_time(now)
        # I4: `current` becomes a position before anything is read.
        calls = [partial(self._head, name) if since is None else partial(self._since, name, since) for name in names]
        found = call_all("starting-points", calls)
        # A copy is a snapshot beside the changes from here on, see `KeyspaceSnapshots.is_initial`.
        kind = {"type": "copy"} if start == "copy" else {}
        return StartingPoints({name: {**kind, "gtid": gtid} for name, gtid in zip(names, found, strict=True)}, now)

    def missing(self) -> str:
        """Return the missing tables that the config names, with what to do; "" if there are none."""
        names = missing_tables(self.config.named_tables, self.tables())
        there = [table.table for table in self.tables()]
        return "; ".join(f"no table {name}{self._absent.get(name) or absent(name, there)}" for name in names)

    def dropped(self, keys: Mapping[str, Sequence[Sequence[str]]], hashed: Mapping[str, int]) -> Sequence[TableSchema]:
        there = {table.table for table in self.tables()}
        gone = (name for name in keys if name not in there and self.is_wanted(name))
        return [lay_out_keys(self.name, name, keys[name], hashed.get(name)).schema for name in gone]


class SqlSnapshots:
    """The snapshots of a database, or of a keyspace: each table of each shard is a segment."""

    margin = MARGIN
    reads_at_once = 2  # while one segment's rows are decoded, another's arrive

    def __init__(self, config: MySQLConfig | VitessConfig) -> None:
        self.is_selective = config.tables is not None
        self._source = config.name
        self._keyrange = config.keyrange

    def may_begin(self, as_of: int, published: Mapping[str, ShardCheckpoint]) -> bool:
        """Whether each shard is published so far that its later changes have tokens of ``as_of`` or later."""
        reading = [checkpoint for checkpoint in published.values() if not checkpoint.state.ended]
        return bool(reading) and all(each.position is not None and lowest(each) >= as_of for each in reading)

    def unfinished(self, published: Mapping[str, ShardCheckpoint]) -> list[str]:
        """Return the shards that have not ended. Raises ``Unavailable`` while not all shards are known."""
        found = [shard for shard, checkpoint in published.items() if not checkpoint.state.ended]
        names = [Shard(shard).name.rpartition("/")[2] for shard in found]
        try:
            is_complete = sorted(shards_covering(KeyRange.parse(self._keyrange), names)) == sorted(names)
        except ValueError:
            is_complete = False
        if not is_complete:  # I1: another worker may not have written a shard's checkpoint yet
            known = ", ".join(found) or "none"
            raise Unavailable(f"source {self._source}: not all shards are being read yet, only {known}")
        return found


def measured(tables: Iterable[tuple[int, str, str]], left_out: Sequence[str]) -> Measured:
    """Return what a snapshot has to read, the largest first. ``tables``: rows, shard and name of each."""
    found = sorted(tables, key=lambda each: (-each[0], *each[1:]))
    parts = [SnapshotPart(shard, table) for _, shard, table in found]
    return Measured(len(parts), sum(rows for rows, _, _ in found), parts, left_out)


def floor_of(opening: Opening) -> int:
    """Return the earliest timestamp of a token, in seconds: a snapshot that relies on `lowest` may have begun (I7)."""
    before = [*opening.parents.values(), *([opening.checkpoint] if opening.checkpoint is not None else [])]
    return max(opening.floor, *map(lowest, before), 0)


def left_out_by(parents: Iterable[ShardCheckpoint]) -> tuple[str, ...]:
    """Return the tables left out when a shard's parents ended: it omits them until it has their keys (I9)."""
    positions = [each.position for each in parents if each.position is not None]
    return tuple(sorted({table for position in positions for table in position.get("left_out", ())}))


def find_tables(source: SqlSource) -> list[str]:
    source.skipped.is_quiet = True
    with closing(source):
        source.connect()
        return [table.table for table in source.tables()]


def check_tables(source: SqlSource) -> CheckedSource:
    """Connect as the relay does, and read every table's layout. Raises ``RelayError`` if one cannot be relayed."""
    with closing(source):
        source.connect()
    tables = source.tables()
    count = f"{len(tables)} table{'' if len(tables) == 1 else 's'}"
    if absent := source.missing():
        raise Unavailable(f"it has {absent}")
    findings = [Finding(f"source {source.name}", f"{source.config.database}: {count}")]
    findings += [Finding(f"table {table}", f"not relayed: it {why}") for table, why in source.left_out.items()]
    there = [*(table.table for table in tables), *source.left_out]
    for table in source.config.key if isinstance(source.config.key, dict) else ():
        if table not in there:
            detail = f"`key.{table}`: there is no such table; {did_you_mean(table, there, 'the tables are ')}"
            findings.append(Finding(f"key of {source.name}", detail, ConfigError.exit_code))
    return CheckedSource(findings, [*map(_table, tables)])


def _table(table: TableSchema) -> CheckedTable:
    names = [column.name for column in table.key]
    key = f"key {', '.join(names)}, hashed by {', '.join(names[: table.hash_columns])}"
    return CheckedTable(table, [Finding(f"table {table.table}", f"{key}{table.protection}")], columns=table.row or ())
