"""Finds where the transactions of a reshard's target were first made, by the row that its replication adds to each.

The row may be anywhere in the transaction, so each is held until its end; one too big for that is read twice (I11).
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from msgspec.structs import replace

from relay.errors import RelayError
from relay.gtid import GtidError, GtidSet, parse
from relay.mysql.binlog.events import BinlogEvent, Commit, EventStream, Rows, Statement, TransactionBegin
from relay.mysql.gtids import origin_server, origin_servers
from relay.mysql.relayed_tables import Layouts
from relay.mysql_dialect.streamed_transaction import Origin
from relay.mysql_dialect.tables import Row, Table, lay_out
from relay.table import Column
from relay.token import OriginToken

log = logging.getLogger(__name__)

HELD = 8 << 20  # the most bytes of rows of one transaction that are held
_SHARD = re.compile(r'\bshard:\s*"([^"]*)"')


class CheckpointRow(NamedTuple):
    """A row of it. ``shard``: the origin's name. ``timestamp``: seconds, or 0. ``state``: the workflow's."""

    shard: str
    position: GtidSet
    timestamp: int
    state: str


@dataclass(frozen=True, slots=True)
class CheckpointTable:
    """The table to which a reshard's replication writes its position: Vitess' ``vreplication``, or a simpler one.

    Columns: ``source``, a text with ``shard:"..."``, or ``source_shard`` or ``shard``; ``pos`` or ``position``;
    optionally ``transaction_timestamp`` and ``state``.
    """

    database: str
    table: str

    @classmethod
    def named(cls, name: str) -> Self:
        database, _, table = name.rpartition(".")
        return cls(database, table)

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"

    def matches(self, database: str, table: str) -> bool:
        return database == self.database and table == self.table

    def layout(self, columns: Sequence[Column], primary: Sequence[str]) -> Table:
        return lay_out(str(self), self.table, columns, primary, key=() if primary else (columns[0].name,))

    def read(self, names: Sequence[str], row: Row) -> CheckpointRow | None:
        """Read a row; None without a shard or a position. Raises ``RelayError`` for a table with another layout."""
        values = {name.lower(): _text(value) for name, value in zip(names, row, strict=True)}
        position = next((values[name] for name in ("pos", "position") if name in values), None)
        shard = next((values[name] for name in ("source_shard", "shard") if name in values), None)
        if position is None or (shard is None and "source" not in values):
            raise RelayError(
                f"{self} has the columns {', '.join(names)}: to find the origins of replicated transactions the relay "
                "needs `source_shard`, `shard` or Vitess' `source`, and `position` or `pos`"
            )
        if shard is None:
            found = _SHARD.search(values["source"])
            shard = found[1] if found else ""
        try:
            gtids = parse(position)
        except GtidError as error:
            raise RelayError(f"{self}: the position of shard {shard} is not a GTID set: {error}") from error
        if not shard or not gtids:
            return None
        at = values.get("transaction_timestamp") or values.get("timestamp") or "0"
        return CheckpointRow(shard, gtids, int(at) if at.isdigit() else 0, values.get("state", ""))


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Parent:
    """A shard that ended. ``qualified``: its name in tokens. ``finished``: its published transactions."""

    qualified: str
    finished: GtidSet


@dataclass(slots=True)
class _HeldTransaction:
    """The transaction being read. ``begun``: None between two. ``held``: its events, unless its rows are too many.

    ``size``: bytes of its rows. ``has_emptied``: whether a statement in it empties relayed tables. ``row``: its row of
    the checkpoint table, and the position in that row before. ``deleted``: by shard, the position in a deleted row,
    which may be inserted again. ``is_published``: None while unknown.
    """

    begun: TransactionBegin | None = None
    held: list[BinlogEvent] = field(default_factory=list)
    size: int = 0
    has_emptied: bool = False
    row: tuple[CheckpointRow, GtidSet | None] | None = None
    deleted: dict[str, GtidSet] = field(default_factory=dict)
    is_published: bool | None = None


class ReplicatedEvents:
    """The events of a target, without those of its parents' streams. ``own``: the id or UUID of the server read."""

    def __init__(
        self,
        parents: Mapping[str, Parent],
        checkpoints: CheckpointTable,
        start: GtidSet,
        open_at: Callable[[GtidSet], EventStream],
        layouts: Layouts,
        *,
        own: str = "",
    ) -> None:
        self._parents = parents
        self._checkpoints = checkpoints
        self._open_at = open_at
        self._layouts = layouts
        self._events = open_at(start)
        self._executed = start.position  # the executed position after the last returned transaction
        self._open = _HeldTransaction()
        # The end of a transaction too big to hold: its GTID, whether it is published, and its origin.
        self._decided: tuple[str, bool, Origin | None] | None = None
        servers = {server for parent in parents.values() for server in origin_servers(parent.finished)}
        # Two clusters may use the same server ids.
        self._parent_servers = {server for server in servers if own not in (server, server.partition("-")[2])}

    def close(self) -> None:
        self._events.close()

    def read(self, timeout: float) -> list[BinlogEvent]:
        """Return the events that have arrived, like ``BinlogEvents.read``."""
        out: list[BinlogEvent] = []
        for event in self._events.read(timeout):
            if isinstance(event, TransactionBegin):
                self._begin(event, out)
            elif isinstance(event, Rows):
                self._rows(event, out)
            elif isinstance(event, Commit):
                if self._commit(event, out):
                    break  # this transaction and those after it are read again
            elif self._open.begun is not None and self._open.is_published is None:
                if isinstance(event, Statement) and self._layouts.emptied(event.classified):
                    self._open.has_emptied = True
                self._open.held.append(event)
            elif self._open.begun is not None and self._open.is_published is False:
                out += self._unpublished([event])
            else:
                out.append(event)
        return out

    def _begin(self, event: TransactionBegin, out: list[BinlogEvent]) -> None:
        self._open = _HeldTransaction(event)
        if self._decided is not None and self._decided[0] == event.gtid:
            _, self._open.is_published, origin = self._decided
            self._decided = None
            out.append(_begin(event, origin))

    def _rows(self, event: Rows, out: list[BinlogEvent]) -> None:
        if event.table.schema.source == str(self._checkpoints):
            for before, after in event.changes:
                row = self._checkpoints.read(event.table.names, after) if after is not None else None
                was = self._checkpoints.read(event.table.names, before) if before is not None else None
                if row is None:
                    if was is not None:
                        self._open.deleted[was.shard] = was.position
                elif row.shard in self._parents:
                    self._open.row = row, was.position if was is not None else self._open.deleted.get(row.shard)
        elif self._open.is_published is None:
            self._open.size += event.size
            if self._open.size <= HELD:
                self._open.held.append(event)
            else:
                self._open.held.clear()
        elif self._open.is_published:
            out.append(event)

    def _commit(self, event: Commit, out: list[BinlogEvent]) -> bool:
        """End a transaction; return whether it has to be read again, with its rows as they arrive."""
        begun = self._open.begun
        if begun is None:
            return False
        if self._open.is_published is None:
            is_published, origin = self._decide(begun)
            if self._open.size > HELD:
                self._decided = begun.gtid, is_published, origin
                self._events.close()
                self._open = _HeldTransaction()
                self._events = self._open_at(parse(self._executed))
                return True
            out.append(_begin(begun, origin))
            # Statements are returned in any case, so that the columns after them are known.
            out += self._open.held if is_published else self._unpublished(self._open.held)
        out.append(event)
        self._executed, self._open = begun.position, _HeldTransaction()
        return False

    def _decide(self, begun: TransactionBegin) -> tuple[bool, Origin | None]:
        if self._open.row is None:
            if (
                (self._open.has_emptied or self._unpublished(self._open.held))
                and not self._open.size
                and self._is_finished(begun.gtid)
            ):
                if self._open.has_emptied:
                    why = "it was published by the shard that made it"
                    log.warning("not publishing transaction %s, which empties tables: %s", begun.gtid, why)
                return False, None  # I3
            if (self._open.size or self._open.has_emptied) and origin_server(begun.gtid) in self._parent_servers:
                raise RelayError(
                    f"the transaction {begun.gtid} was replicated from another shard without a row in "
                    f"{self._checkpoints}, so the relay cannot know whether it was already published. Set "
                    "`reshard_checkpoint_table` to the table where the replication writes its position, or reshard "
                    "with a replication that writes one"
                )
            return True, None
        row, before = self._open.row
        parent = self._parents[row.shard]
        if parent.finished.contains(row.position):
            return False, None  # I3: its own shard has published it
        timestamp = row.timestamp or begun.timestamp
        # A new row does not say which of several servers made the transaction; then its GTID here names it.
        several = before is None and len(origin_servers(row.position)) > 1
        name = begun.gtid if several else last_added(row.position, before)
        return True, Origin(OriginToken(timestamp, parent.qualified, row.position.position), name)

    def _unpublished(self, events: Iterable[BinlogEvent]) -> list[BinlogEvent]:
        """Return the statements that define tables, marked as already published."""
        return [
            replace(event, is_published=False)
            for event in events
            if isinstance(event, Statement) and self._layouts.defined(event.classified)
        ]

    def _is_finished(self, gtid: str) -> bool:
        """Whether a transaction that kept its GTID here was read from the shard that made it."""
        server = origin_server(gtid)
        return server in self._parent_servers and any(
            server in origin_servers(parent.finished) and parent.finished.contains(parse(gtid))
            for parent in self._parents.values()
        )


def _begin(begun: TransactionBegin, origin: Origin | None) -> TransactionBegin:
    if origin is None:
        return begun
    return replace(begun, timestamp=origin.token.timestamp, committed_at=None, made_here=False, origin=origin)


def last_added(position: GtidSet, before: GtidSet | None) -> str:
    """Return the last GTID in ``position`` but not ``before``, of one row event: those between changed nothing here."""
    added = position if before is None else position - before
    return (added or position).last
