"""What the sources of MySQL's dialect have in common: what they and a check say of them, and what a snapshot reads."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import orjson

from relay.config import MySQLConfig, VitessConfig
from relay.errors import Unavailable
from relay.keyrange import KeyRange, shards_covering
from relay.mysql_dialect.catalog import ABSENT
from relay.mysql_dialect.snapshot_times import MARGIN, lowest
from relay.mysql_dialect.tables import lay_out_keys, missing_tables
from relay.process.service_clock import ServiceClock
from relay.records import Shard, ShardCheckpoint, SnapshotPart, StreamId
from relay.source import CheckedSource, CheckedTable, Finding, Measured, Opening
from relay.table import TableSchema


class SqlSource(ABC):
    """The one stream of a database, or of a keyspace, whose shards announce the shards that continue them."""

    has_journals = True

    def __init__(self, config: MySQLConfig | VitessConfig) -> None:
        self.config = config
        self.name = config.name
        self.start = str(config.start)
        self.on_gap: Literal["fail", "skip", "resnapshot"] = config.on_gap
        self.stream = StreamId(config.name, config.database)
        self.clock = ServiceClock()
        # By table that the config names and that did not exist at `connect`, what to do, to be put after its name.
        self._absent: dict[str, str] = {}

    def first(self) -> str:
        return self.stream.label

    following = first

    def config_hash(self) -> str:
        identity = orjson.dumps([self.config.type, self.config.database])
        return hashlib.blake2b(identity, digest_size=8).hexdigest()

    @abstractmethod
    def connect(self, label: str | None = None) -> StreamId:
        """See ``Source``."""

    @abstractmethod
    def tables(self) -> Sequence[TableSchema]:
        """Return the tables that existed at ``connect``, and all whose rows were read since."""

    @property
    @abstractmethod
    def left_out(self) -> Mapping[str, str]:
        """See ``Source``."""

    @abstractmethod
    def is_wanted(self, table: str) -> bool:
        """Whether changes of a table are relayed, even if it does not exist."""

    def missing(self) -> str:
        """Return the tables that the config names and that do not exist, with what to do; "" if there are none."""
        names = missing_tables(self.config.named_tables, self.tables())
        return "; ".join(f"no table {name}{self._absent.get(name, ABSENT)}" for name in names)

    def dropped(self, keys: Mapping[str, Sequence[Sequence[str]]], hashed: Mapping[str, int]) -> Sequence[TableSchema]:
        there = {table.table for table in self.tables()}
        gone = (name for name in keys if name not in there and self.is_wanted(name))
        return [lay_out_keys(self.name, name, keys[name], hashed.get(name)).schema for name in gone]


class SqlSnapshots:
    """The snapshots of a database, or of a keyspace: each table of each shard is a segment."""

    margin = MARGIN
    reads_at_once = 2  # while the rows of one are decoded, another's rows arrive

    def __init__(self, config: MySQLConfig | VitessConfig) -> None:
        self.is_selective = config.tables is not None
        self._source = config.name
        self._keyrange = config.keyrange

    def may_begin(self, as_of: int, published: Mapping[str, ShardCheckpoint]) -> bool:
        """Whether each shard is published so far that its later changes have tokens of ``as_of`` or later."""
        reading = [checkpoint for checkpoint in published.values() if not checkpoint.state.ended]
        return bool(reading) and all(each.position is not None and lowest(each) >= as_of for each in reading)

    def unfinished(self, published: Mapping[str, ShardCheckpoint]) -> list[str]:
        """Return the shards that have not ended. Raises ``Unavailable`` while they are not all known."""
        found = [shard for shard, checkpoint in published.items() if not checkpoint.state.ended]
        names = [Shard(shard).name.rpartition("/")[2] for shard in found]
        try:
            is_complete = sorted(shards_covering(KeyRange.parse(self._keyrange), names)) == sorted(names)
        except ValueError:
            is_complete = False
        if not is_complete:  # I1: another worker may have yet to write the checkpoint of one
            known = ", ".join(found) or "none"
            raise Unavailable(f"source {self._source}: not all shards are being read yet, only {known}")
        return found


def measured(tables: Iterable[tuple[int, str, str]], left_out: Sequence[str]) -> Measured:
    """Return what a snapshot has to read, the largest first. ``tables``: rows, shard and name of each."""
    found = sorted(tables, key=lambda each: (-each[0], *each[1:]))
    parts = [SnapshotPart(shard, table) for _, shard, table in found]
    return Measured(len(parts), sum(rows for rows, _, _ in found), parts, left_out)


def floor_of(opening: Opening) -> int:
    """Return the earliest timestamp of a token, in seconds: a snapshot may have begun that relies on `lowest` (I7)."""
    before = [*opening.parents.values(), *([opening.checkpoint] if opening.checkpoint is not None else [])]
    return max(opening.floor, *map(lowest, before), 0)


def left_out_by(parents: Iterable[ShardCheckpoint]) -> tuple[str, ...]:
    """Return the tables that were left out where a shard's parents ended: until it has their keys, it is, too (I9)."""
    positions = [each.position for each in parents if each.position is not None]
    return tuple(sorted({table for position in positions for table in position.get("left_out", ())}))


def find_tables(source: SqlSource) -> list[str]:
    source.connect()
    return [table.table for table in source.tables()]


def check_tables(entry: VitessConfig | MySQLConfig, source: SqlSource) -> CheckedSource:
    """Connect as the relay does, and read the layout of every table. Raises ``RelayError`` if one cannot be relayed."""
    source.connect()
    tables = source.tables()
    count = f"{len(tables)} table{'' if len(tables) == 1 else 's'}"
    if absent := source.missing():
        raise Unavailable(f"it has {absent}")
    findings = [Finding(f"source {entry.name}", f"{entry.database}: {count}")]
    findings += [Finding(f"table {table}", f"not relayed: it {why}") for table, why in source.left_out.items()]
    return CheckedSource(findings, [*map(_table, tables)])


def _table(table: TableSchema) -> CheckedTable:
    names = [column.name for column in table.key]
    key = f"key {', '.join(names)}, hashed by {', '.join(names[: table.hash_columns])}"
    return CheckedTable(table, [Finding(f"table {table.table}", f"{key}{table.protection}")], columns=table.row or ())
