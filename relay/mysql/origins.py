"""Where transactions of a reshard's target were first made: read from the row that its replication writes with each.

That row comes anywhere in the transaction, and what it says decides whether the changes are told at all, and by which
names. So each transaction is held until its end; one too big for that is read twice (I11).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from relay.errors import RelayError
from relay.gtid import GtidError, GtidSet, parse
from relay.mysql.binlog.events import BinlogEvent, Commit, Rows, Statement, TransactionBegin
from relay.sql.tables import Row, Table, lay_out
from relay.table import Column
from relay.token import OriginToken

log = logging.getLogger(__name__)

HELD = 8 << 20
"""Bytes of rows that are held of one transaction."""

_SHARD = re.compile(r'\bshard:\s*"([^"]*)"')


class Origin(NamedTuple):
    """``token``: where the transaction stood on the shard where it was made. ``gtid``: what it was called there."""

    token: OriginToken
    gtid: str


class OriginBegin(TransactionBegin):
    """The begin of a transaction that a reshard's replication has applied. ``origin``: None if it was made here."""

    origin: Origin | None = None


class CheckpointRow(NamedTuple):
    """``shard``: the origin's name. ``timestamp``: seconds, 0 if the row has none. ``state``: of the workflow."""

    shard: str
    position: GtidSet
    timestamp: int
    state: str


@dataclass(frozen=True, slots=True)
class CheckpointTable:
    """The table where a reshard's replication says how far it has come.

    Vitess' ``vreplication`` (columns ``source``, a text with ``shard:"..."`` in it, ``pos``, and where there are such
    ``transaction_timestamp`` and ``state``), or one with ``source_shard`` or ``shard`` and ``position`` or ``pos``.
    """

    database: str
    table: str

    @classmethod
    def named(cls, name: str) -> CheckpointTable:
        database, _, table = name.rpartition(".")
        return cls(database, table)

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"

    def is_it(self, database: str, table: str) -> bool:
        return database == self.database and table == self.table

    def layout(self, columns: Sequence[Column], primary: Sequence[str]) -> Table:
        return lay_out(str(self), self.table, columns, primary, key=() if primary else (columns[0].name,))

    def read(self, names: Sequence[str], row: Row) -> CheckpointRow | None:
        """Read a row; None if it names no shard or no position. Raises ``RelayError`` for what it cannot be."""
        values = {name.lower(): _text(value) for name, value in zip(names, row, strict=True)}
        position = next((values[name] for name in ("pos", "position") if name in values), None)
        shard = next((values[name] for name in ("source_shard", "shard") if name in values), None)
        if position is None or (shard is None and "source" not in values):
            raise RelayError(
                f"{self} has the columns {', '.join(names)}: it needs `source_shard` or `shard`, or Vitess' `source`, "
                "and `position` or `pos`, for the origins of replicated transactions to be known"
            )
        if shard is None:
            found = _SHARD.search(values["source"])
            shard = found[1] if found else ""
        try:
            gtids = parse(position)
        except GtidError as error:
            raise RelayError(f"{self}: the position of shard {shard} cannot be read: {error}") from error
        if not shard or not gtids:
            return None
        at = values.get("transaction_timestamp") or values.get("timestamp") or "0"
        return CheckpointRow(shard, gtids, int(at) if at.isdigit() else 0, values.get("state", ""))


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Parent:
    """A shard that ended. ``qualified``: as tokens name it. ``finished``: what was read of it, and published."""

    qualified: str
    finished: GtidSet


class _Stream(Protocol):
    def read(self, timeout: float) -> list[BinlogEvent]: ...

    def close(self) -> None: ...


class ReplicatedEvents:
    """The events of a target: what its parents' streams have told is left out, the rest says where it was made.

    ``parents``: by the names that the checkpoint table calls them. ``open_at``: reads the binlog after a set, with the
    checkpoint table in it. ``empties``: whether a statement empties relayed tables. ``own``: the id of the server that
    is read, or its UUID.
    """

    def __init__(
        self,
        parents: Mapping[str, Parent],
        checkpoints: CheckpointTable,
        start: GtidSet,
        open_at: Callable[[GtidSet], _Stream],
        *,
        empties: Callable[[Statement], bool],
        own: str = "",
        held: int | None = None,
    ) -> None:
        self._parents = parents
        self._checkpoints = checkpoints
        self._open_at = open_at
        self._empties = empties
        self._limit = HELD if held is None else held
        self._events = open_at(start)
        # Up to the last transaction that was given.
        self._before = start.position
        self._begun: TransactionBegin | None = None
        self._held: list[BinlogEvent] = []
        self._size = 0
        self._has_emptied = False
        # What the checkpoint table says in this transaction, and said before it.
        self._row: tuple[CheckpointRow, GtidSet | None] | None = None
        # What it said where its row is deleted, to be written anew.
        self._deleted: dict[str, GtidSet] = {}
        # A transaction that was read to its end because it was too big to hold, and what was found there.
        self._known: tuple[str, bool, Origin | None] | None = None
        self._passes: bool | None = None
        made = {server for parent in parents.values() for server in _servers(parent.finished)}
        # Clusters may number their servers alike.
        self._servers = {server for server in made if own not in (server, server.partition("-")[2])}

    def close(self) -> None:
        self._events.close()

    def read(self, timeout: float) -> list[BinlogEvent]:
        told: list[BinlogEvent] = []
        for event in self._events.read(timeout):
            if isinstance(event, TransactionBegin):
                self._begin(event, told)
            elif isinstance(event, Rows):
                self._rows(event, told)
            elif isinstance(event, Commit):
                if self._commit(event, told):
                    break  # it is read again; so is what comes after it
            elif self._begun is not None and self._passes is None:
                self._has_emptied = self._has_emptied or (isinstance(event, Statement) and self._empties(event))
                self._held.append(event)
            else:
                told.append(event)
        return told

    def _begin(self, event: TransactionBegin, told: list[BinlogEvent]) -> None:
        self._begun, self._held, self._size, self._row, self._passes = event, [], 0, None, None
        self._has_emptied = False
        self._deleted.clear()
        if self._known is not None and self._known[0] == event.gtid:
            _, self._passes, origin = self._known
            self._known = None
            told.append(_begin(event, origin))

    def _rows(self, event: Rows, told: list[BinlogEvent]) -> None:
        if event.table.schema.source == str(self._checkpoints):
            for before, after in event.changes:
                row = self._checkpoints.read(event.table.names, after) if after is not None else None
                was = self._checkpoints.read(event.table.names, before) if before is not None else None
                if row is None:
                    if was is not None:
                        self._deleted[was.shard] = was.position
                elif row.shard in self._parents:
                    self._row = row, was.position if was is not None else self._deleted.get(row.shard)
        elif self._passes is None:
            self._size += event.size
            if self._size <= self._limit:
                self._held.append(event)
            else:
                self._held.clear()
        elif self._passes:
            told.append(event)

    def _commit(self, event: Commit, told: list[BinlogEvent]) -> bool:
        """End a transaction; return whether it is read again, its rows this time as they come."""
        begun = self._begun
        if begun is None:
            return False
        if self._passes is None:
            passes, origin = self._judge(begun)
            if self._size > self._limit:
                self._known = begun.gtid, passes, origin
                self._events.close()
                self._begun = None
                self._events = self._open_at(parse(self._before))
                return True
            told.append(_begin(begun, origin))
            if passes:
                told.extend(self._held)
        told.append(event)
        self._before, self._begun, self._held = begun.position, None, []
        return False

    def _judge(self, begun: TransactionBegin) -> tuple[bool, Origin | None]:
        """Return whether the transaction's changes are told, and where they were made."""
        if self._row is None:
            if self._has_emptied and not self._size and self._is_finished(begun.gtid):
                log.warning(
                    "%s, which empties tables, is left out: the shard where it was made has told it", begun.gtid
                )
                return False, None  # I3
            if (self._size or self._has_emptied) and _server(begun.gtid) in self._servers:
                raise RelayError(
                    f"the transaction {begun.gtid} was replicated from another shard without a row in "
                    f"{self._checkpoints} that says how far that has come, so what was published before cannot be told "
                    "from what was not. Name the table as `reshard_checkpoint_table`, or reshard by a replication that "
                    "writes one"
                )
            return True, None
        row, before = self._row
        parent = self._parents[row.shard]
        if parent.finished.contains(row.position):
            return False, None  # I3: its own stream has told it
        timestamp = row.timestamp or begun.timestamp
        # Which of several servers made it a row does not say that was not there before; here it has one name, too.
        name = begun.gtid if before is None and len(_servers(row.position)) > 1 else latest(row.position, before)
        return True, Origin(OriginToken(timestamp, parent.qualified, row.position.position), name)

    def _is_finished(self, gtid: str) -> bool:
        """Whether a transaction that came here under its own name was read where it was made."""
        server = _server(gtid)
        return server in self._servers and any(
            server in _servers(parent.finished) and parent.finished.contains(parse(gtid))
            for parent in self._parents.values()
        )


def _begin(begun: TransactionBegin, origin: Origin | None) -> TransactionBegin:
    if origin is None:
        return begun
    return OriginBegin(
        gtid=begun.gtid,
        position=begun.position,
        timestamp=origin.token.timestamp,
        committed_at=None,
        is_ddl=begun.is_ddl,
        origin=origin,
    )


def latest(position: GtidSet, before: GtidSet | None) -> str:
    """Return the GTID of the transaction that led from ``before`` to ``position``: the name of its changes.

    Both are of one row event, so that it comes out the same whenever it is read. Those between that the target did not
    get, since they changed nothing of it, came before.
    """
    added = position if before is None else position - before
    return (added or position).last


def _server(gtid: str) -> str:
    """Return the server that made a transaction: its UUID, or MariaDB's domain and server."""
    return gtid.rpartition("-")[0] if ":" not in gtid else gtid.partition(":")[0]


def _servers(gtids: GtidSet) -> set[str]:
    return {_server(gtid) for gtid in str(gtids).split(",") if gtid}
