"""Snapshots of a database: each table of each shard is a segment, read in chunks of its primary key.

A chunk is one SELECT on a server that shows everything that the shard's stream has published, and every later change
has a token of ``as_of`` or later (`lowest`). So a READ never replaces a change that it does not see.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relay.avro.compiled_fields import compiled_fields
from relay.change import Change
from relay.config import MySQLConfig
from relay.errors import Unavailable
from relay.gtid import GtidSet
from relay.mysql.chunks import COLUMNS, INDEXES, SESSION, ChunkQuery, KeyMissing, TableDescription, limit_for
from relay.mysql.connection import ServerConnection
from relay.mysql.positions import BinlogPosition
from relay.mysql.relayed_tables import Layouts
from relay.mysql.roles import Role, role_of
from relay.mysql.servers import idle_domains
from relay.mysql.table_checks import is_there, require_all_columns
from relay.mysql_dialect.compiled_changes import compiled_rows, copied_rows
from relay.mysql_dialect.snapshot_times import as_of_rows, lowest, reads
from relay.mysql_dialect.sources import SqlSnapshots, measured
from relay.mysql_dialect.tables import Table
from relay.records import Plan, Shard, ShardCheckpoint
from relay.source import LastPage, Measured, Page, PageCounts, Segment, Unreadable

if TYPE_CHECKING:
    from relay.native._core import CompiledRows

log = logging.getLogger(__name__)

PAGE = 1 << 20  # approximate bytes of the rows in a page
_EACH = 64  # bytes that a row takes in addition
_FIRST = 500  # rows of the first chunk
_MOST = 20_000  # rows of a chunk
_PAGES_A_SECOND = 5  # rows of a chunk when the pace is limited, so that rows do not come in bursts
_CATCH_UP = 2.0  # seconds to wait for a replica to show what is published
_LOOK_EVERY = 0.05  # seconds between two checks for that

ROWS = "SELECT TABLE_NAME, TABLE_ROWS, DATA_LENGTH FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s"


@dataclass(eq=False, repr=False)
class DatabaseSnapshots(SqlSnapshots):
    """Reads the tables of a database. ``require``: raises ``Denied`` for a server that must not be read."""

    config: MySQLConfig
    layouts: Layouts
    addresses: Callable[[str], Sequence[str]]
    connect: Callable[[str], ServerConnection]
    first_server: Callable[[str], ServerConnection]
    require: Callable[[ServerConnection, Role], None]
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        super().__init__(self.config)

    def is_initial(self, plan: Plan) -> bool:
        return self.config.snapshot == "initial"

    def measure(self, published: Mapping[str, ShardCheckpoint], tables: Collection[str] | None = None) -> Measured:
        """Return the ``tables`` of unfinished shards, the largest first. Raises ``Unavailable``, ``RelayError``."""
        found: list[tuple[int, str, str]] = []
        of_shards: list[set[str]] = []
        for shard in self.unfinished(published):
            with closing(self.first_server(Shard(shard).name)) as server:
                sizes = {
                    name: (rows or 0, size or 0) for name, rows, size in server.execute(ROWS, (self.config.database,))
                }
                there = [table.table for table in self.layouts.describe(server)]
                of_shards.append(set(there))
                for table in there:
                    if tables is not None and table not in tables:
                        continue
                    rows, size = sizes.get(table, (0, 0))
                    query = ChunkQuery(self.config.database, table, describe(server, self.config.database, table))
                    query.require_cheap(rows, size, PAGE)
                    found.append((rows, shard, table))
        keyed = set[str].intersection(*of_shards) if of_shards else set[str]()
        return measured(found, self.layouts.skipped.measured(keyed, tables))

    def open(self, segment: Segment) -> ChunkReader:
        return ChunkReader(self, segment)

    def server_of(self, shard: str, needed: GtidSet, failed: Sequence[str]) -> ServerConnection:
        """Connect to a server that shows ``needed``: a replica first, ``failed`` ones last. Raises ``Unavailable``."""
        addresses = self.addresses(shard)
        others, problems = [each for each in addresses if each not in failed], dict[str, str]()
        last = [each for each in failed if each in addresses]
        # A primary is read only if no replica can be.
        for group, any_role in ((others if len(addresses) > 1 else [], False), (others, True), (last, True)):
            for address in [each for each in group if each not in problems]:
                try:
                    with ExitStack() as stack:
                        server = stack.enter_context(closing(self.connect(address)))
                        role = role_of(server)
                        if not any_role and not role.is_replica:
                            continue
                        self.require(server, role)  # I7: the end of a snapshot deletes rows that it has not read
                        if shows(server, needed):
                            stack.pop_all()
                            return server
                        problems[address] = f"{address} does not show {needed.position} yet"
                except Unavailable as error:
                    problems[address] = str(error)
        unlisted = "`shards` does not list its servers: list them until the snapshot is finished"
        why = "; ".join(problems.values()) or unlisted
        raise Unavailable(f"source {self.config.name}: the snapshot cannot read shard {shard}: {why}")


def shows(server: ServerConnection, needed: GtidSet) -> bool:
    """Whether queries on a server see all of ``needed``; a replica gets it a moment later. Raises ``Unavailable``."""
    deadline = time.monotonic() + _CATCH_UP
    while True:
        visible = server.visible()
        if not visible.contains(needed):
            visible |= idle_domains(server, server.executed(), needed)  # I10: they do not come into its binlog later
        if visible.contains(needed) and not needed.diverges(visible):  # I7
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_EVERY)


def describe(server: ServerConnection, database: str, table: str) -> TableDescription:
    """Return a table, without columns if there is none. Raises ``Unavailable``, also if the user may not read it."""
    place = (database, table)
    found = TableDescription.of(server.execute(COLUMNS, place), server.execute(INDEXES, place))
    if not found.columns and is_there(server, database, table):  # I7
        raise Unavailable(f"{server.account.address}: the table {database}.{table} has just been created")
    return found


@dataclass(frozen=True, slots=True)
class RowsPosition:
    """Where reading a table resumes. ``after``: the last row's key, empty at first. ``order``: the query's then."""

    after: tuple[bytes, ...] = ()
    rows: int = 0  # the number of rows read
    order: str | None = None

    def to_json(self) -> dict[str, Any]:
        order = {} if self.order is None else {"order": self.order}
        return {"type": "rows", "after": [value.hex() for value in self.after], "rows": self.rows, **order}

    @classmethod
    def from_json(cls, position: Mapping[str, Any]) -> RowsPosition:
        after = tuple(bytes.fromhex(value) for value in position["after"])
        return cls(after, position["rows"], position.get("order"))


class ChunkReader:
    """Reads one table of one shard. Used by one thread at a time."""

    streams = False

    def __init__(self, snapshots: DatabaseSnapshots, segment: Segment) -> None:
        self.shard = segment.shard
        self.segment = segment
        self.table = segment.part.table
        self.clock = snapshots.clock
        self._snapshots = snapshots
        self._config = snapshots.config
        self._position = RowsPosition.from_json(segment.position) if segment.position else RowsPosition()
        self._server: ServerConnection | None = None
        # Whether it has returned a page, and the addresses of servers that have returned none, the latest last.
        self._has_read = False
        self._failed: list[str] = []
        self._lowest = 0  # seconds that limit which changes the rows on the server may replace
        # The table as it was when last read.
        self._described: tuple[TableDescription, ChunkQuery, Table, CompiledRows | None] | None = None
        self._limit = _FIRST

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def read(self) -> Page | Unreadable:
        """Return the next page, about one megabyte. Raises ``RelayError`` for errors that a retry cannot repair."""
        begun = self.clock()
        try:
            page = self._read(self._server or self._open(), begun)
        except Unavailable as error:
            self._leave()  # I10
            return Unreadable(self.shard, begun, str(error))
        self._has_read = True
        return page

    def _leave(self) -> None:
        """Close a server that cannot be read. Others are tried before it, in case it refuses everything."""
        if self._server is not None and not self._has_read:
            address = self._server.account.address
            self._failed = [*(each for each in self._failed if each != address), address]
        self.close()

    def _open(self) -> ServerConnection:
        """Connect to a server that shows the published state of the shard."""
        shard = self.segment.part.shard
        checkpoint = self.segment.published().get(shard)
        if checkpoint is None or checkpoint.position is None:
            raise Unavailable(
                f"source {self._config.name}: the snapshot has to wait until the relay has begun to read shard {shard}"
            )
        needed = BinlogPosition.from_json(checkpoint.position).needed
        server = self._server = self._snapshots.server_of(Shard(shard).name, needed, self._failed)
        self._lowest, self._has_read = lowest(checkpoint), False
        for statement in SESSION:
            server.execute(statement)
        log.info("source %s: reading table %s from %s", self._config.name, self.table, server.account.address)
        return server

    def _read(self, server: ServerConnection, begun: float) -> Page:
        """Read a chunk, and repeat that until the table was the same before and after it."""
        described = self._described
        while True:
            if described is None:
                found = describe(server, self._config.database, self.table)
                if not found.columns:
                    log.warning("source %s: table %s was dropped during its snapshot", self._config.name, self.table)
                    return self._page([], 0, 0, begun, None, finished=True)
                definition = found.definition(f"{self._config.database}.{self.table}")
                table = self._snapshots.layouts(
                    self._config.database, self.table, definition.columns, definition.primary
                )
                if table is None:  # I7: the table exists, and ending here would delete its unread rows from copies
                    raise Unavailable(f"source {self._config.name}: table {self.table} cannot be read any more")
                require_all_columns(server, self._config.database, self.table)  # I1
                shows_values = not table.schema.protected
                try:
                    query = ChunkQuery(self._config.database, self.table, found, shows_values=shows_values)
                except KeyMissing as error:
                    raise Unavailable(str(error)) from None  # it was dropped meanwhile, and the stream may go on
                if self._position.order not in (None, query.order):  # now other rows follow the last key
                    what = "was altered during its snapshot, which reads the table from its beginning again"
                    log.warning("source %s: the primary key of table %s %s", self._config.name, self.table, what)
                    self._position = RowsPosition()  # I1
                fields, read = compiled_fields(table.schema), query.row_in
                compiled = compiled_rows(table, self._config.name, "", query.cells, fields, read, copied=True)
                described = found, query, table, compiled
            _, query, table, compiled = described
            limit, pace = self._limit, self._config.snapshot_rows_per_second
            if pace is not None:
                limit = min(limit, max(1, pace // _PAGES_A_SECOND))
            server.execute("START TRANSACTION READ ONLY")
            try:
                statement, has_more = query.statement(self._position.after, limit, server.raw_rows)
                packets, size = self._select(server, statement)
                # The transaction keeps the definition as it was for the SELECT.
                now = describe(server, self._config.database, self.table)
            except Unavailable:
                self._described = None  # a column may be gone
                raise
            server.execute("COMMIT")
            if now == described[0]:
                break
            described = None
        self._described = described
        count = len(packets)
        self._limit = limit_for(count, size, _MOST, PAGE)
        snapshot = as_of_rows(self.segment.snapshot, self._lowest, begun)
        changes: Sequence[Change] | None = copied_rows(compiled, "text", packets, snapshot, begun)
        if changes is None:
            rows = (query.row(server.row_of(packet)) for packet in packets)
            changes = reads(self._config.name, table, rows, snapshot, begun)
        if packets:
            key = query.key_of(server.row_of(packets[-1]))
            self._position = RowsPosition(tuple(key), self._position.rows + count, query.order)
        return self._page(changes, count, size, begun, table, finished=not has_more and count < limit and size < PAGE)

    def _select(self, server: ServerConnection, statement: str) -> tuple[list[bytes], int]:
        """Return the packets of a chunk's rows, and their bytes: as many rows as a page holds (I11)."""
        packets: list[bytes] = []
        size = 0
        with closing(server.row_packets(statement)) as found:
            for packet in found:
                packets.append(packet)
                size += len(packet) + _EACH
                if size >= PAGE:  # I11
                    break
        return packets, size

    def _page(
        self, changes: Sequence[Change], rows: int, size: int, begun: float, table: Table | None, *, finished: bool
    ) -> Page:
        pace = self._config.snapshot_rows_per_second
        return Page(
            self.shard,
            changes,
            self._position.to_json(),
            None,
            None,
            begun,
            counts=PageCounts(len(changes), size),
            pause=0.0 if pace is None else max(rows, 1) / pace,
            end=LastPage() if finished else None,
            tables=() if table is None else (table.schema,),
        )
