"""Finds tables that MoveTables takes to another keyspace and back. Journals in the databases say so, streams do not."""

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from typing import Any, NamedTuple

from relay.errors import Unavailable
from relay.gtid import GtidSet, parse
from relay.mysql_dialect.catalog import quoted
from relay.records import ReshardJournal
from relay.vitess.client import SHARDS, Rejected, Vtgate
from relay.vitess.position import VitessShard, VStreamPosition, canonical
from relay.vitess.settings import Portion, VStreamSettings

log = logging.getLogger(__name__)

_JOURNALS = "select val from {}.resharding_journal where db_name = database()"
_DATABASES = "select table_schema from information_schema.tables where table_name = 'resharding_journal'"
_KEYSPACES = "show vitess_keyspaces"
_ABSENT = re.compile(r"\berrno (1146|1049)\b")
_DENIED = re.compile(r"\bdenied\b", re.IGNORECASE)
_GRANT = ": let the relay's user read _vt.resharding_journal, and if the tablets have table ACLs, allow it there, too"
_RESHARD = re.compile(r"\bmigration_type:\s*SHARDS\b")
_ID = re.compile(r"\bid:\s*(-?\d+)")
_TABLE = re.compile(r'\btables:\s*"([^"]*)"')
_GTIDS = r'"((?:MySQL56|MariaDB)/[^"]*)"'
_POSITION = re.compile(rf"\blocal_position:\s*{_GTIDS}")
_TARGET = re.compile(rf'\bshard_gtids:\s*\{{\s*keyspace:\s*"([^"]*)"\s*shard:\s*"([^"]*)"\s*gtid:\s*{_GTIDS}')
_PARTICIPANT = re.compile(r'\bparticipants:\s*\{\s*keyspace:\s*"([^"]*)"\s*shard:\s*"([^"]*)"')


class Move(NamedTuple):
    """The journal of a move of tables. A place is a keyspace and a shard."""

    id: str
    tables: frozenset[str]
    position: GtidSet  # of the old shard after its last change of them
    targets: Mapping[tuple[str, str], GtidSet]  # by each place that has them since, its position
    participants: tuple[tuple[str, str], ...]  # the places that had them


class TableMoves:
    """Finds the moves of tables from one shard, for the thread that reads it. ``start``: where its stream begins."""

    def __init__(self, vtgate: Vtgate, shard: VitessShard, settings: VStreamSettings, start: Mapping[str, Any]) -> None:
        self._vtgate = vtgate
        self._shard = shard
        self._start = start
        self.settings = settings
        # Whether transactions without rows have come since the journals were read: one may have written a journal.
        self.is_due = False
        self.found: Move | None = None  # the move that ends the stream at its position
        self._past: tuple[str, ...] = ()  # the ids of the moves before it
        # Once a reshard has ended the shard: tables known not to have been moved before.
        self._unmoved: set[str] | None = None

    def look(self, position: VStreamPosition, tables: Callable[[VStreamPosition], Collection[str]]) -> bool:
        """Whether a move of wanted tables ends the stream at ``position`` or before it. Raises ``Unavailable``.

        Asks only if it `is_due`. ``tables``: returns all tables that may have been moved before a position.
        """
        if self.found is not None or not self.is_due:
            return False
        moves = self._moves_of(tables(position))
        self.is_due = False
        known, start, until = self.settings.portion.moves, parse(self._start["gtid"]), parse(position.executed)
        reached = [move for move in moves if until.contains(move.position)]
        if known:
            past = [move for move in reached if move.id in known]
        else:  # the transaction that writes a journal comes after the position in it
            past = [move for move in reached if start != move.position and start.contains(move.position)]
        new = [move for move in reached if move not in past and any(map(self.settings.is_wanted, move.tables))]
        first = [move for move in new if all(other.position.contains(move.position) for other in new)]
        self.found = next(iter(first or new), None)
        self._past = tuple(move.id for move in past)
        return self.found is not None

    def is_reached(self, position: VStreamPosition) -> bool:
        """Whether the stream ends at ``position``, because tables were moved."""
        found = self.found
        return found is not None and not position.transaction and parse(position.executed).contains(found.position)

    def journal(self, position: VStreamPosition) -> ReshardJournal:
        """Log the move that was found, and return its journal, which ends the shard at ``position``."""
        assert self.found is not None
        number, tables, _, targets, participants = self.found
        name_of, shard = self.settings.name_of, self._shard
        moved = sorted(filter(self.settings.is_wanted, tables))
        starts: dict[str, dict[str, Any]] = {
            name_of(*place): {"gtid": canonical(at.position), **Portion(tuple(moved)).to_json()}
            for place, at in targets.items()
        }
        log.warning(
            "%s: MoveTables has taken %s to another keyspace: the relay reads changes after %s from %s",
            shard.qualified,
            ", ".join(moved),
            position.executed,
            ", ".join(starts),
        )
        # I1: this stream also has tables that are created or added to the config later.
        if (rest := self.settings.portion.less(moved, (*self._past, number))) is not None:
            starts[name_of(shard.keyspace, shard.name)] = {**position.to_json(), **rest.to_json()}
        return ReshardJournal(number, tuple(name_of(*each) for each in participants), starts)

    def moved_to(self, table: str, executed: GtidSet, remade: str) -> str | None:
        """Return the keyspace that a table was moved to from the shard, or None if it was not moved or is back.

        ``executed``: the set that the shard had executed at that point. ``remade``: the table's ``remade`` in
        ``VStreamPosition``. Raises ``Unavailable``.
        """
        here = self._shard.keyspace, self._shard.name
        found, since = self._moves_of((table,)), parse(remade)
        # I7: the journal of a table stays for ever, even after another table gets its name.
        moves = [
            move
            for move in found
            if table in move.tables and executed.contains(move.position) and move.position.contains(since)
        ]
        last = next((move for move in moves if all(move.position.contains(each.position) for each in moves)), None)
        if last is None:
            return None
        if table in self.settings.portion.only and parse(self._start["gtid"]).contains(last.position):
            return None  # the table was back when the stream began
        for place in last.targets:
            try:
                found = _moves(self._vtgate, *place)
            except Unavailable:
                if not _has_ended(self._vtgate, *place):  # I7: the table may have come back
                    raise
                continue
            back = [move.targets[here] for move in found if table in move.tables and here in move.targets]
            if any(executed.contains(at) and at != last.position and at.contains(last.position) for at in back):
                return None
        return next(iter(last.targets))[0]

    def _moves_of(self, tables: Collection[str]) -> list[Move]:
        """Return the moves from the shard, at least the moves of ``tables``. Raises ``Unavailable``.

        A shard that a reshard has ended does not answer any more. Then nothing was moved if each table is still in the
        keyspace, or at least in no other keyspace.
        """
        here = self._shard.keyspace, self._shard.name
        if self._unmoved is not None and self._unmoved.issuperset(tables):
            return []
        try:
            return _moves(self._vtgate, *here)
        except Unavailable as error:
            if not _has_ended(self._vtgate, *here):
                raise
            why = f"{error}. Shard {self._shard.qualified} was resharded since"
        gone = {*tables} - _tables_in(self._vtgate, here[0], why)
        for keyspace in sorted(self._vtgate.listed(_KEYSPACES) - {here[0]}) if gone else ():
            if moved := sorted(gone & _tables_in(self._vtgate, keyspace, why)):
                raise Unavailable(  # I1
                    f"{why}, and {moved[0]} may have been moved to keyspace {keyspace} before that: run "
                    f"`relay reset CONFIG {self._shard.source} --to ...`"
                )
        log.info("%s: no table was moved to another keyspace before the shard was resharded", self._shard.qualified)
        self._unmoved = {*tables, *(self._unmoved or ())}
        return []


def tables_moved(vtgate: Vtgate, shards: Iterable[VitessShard]) -> Set[str]:
    """Return the tables that were ever moved from one of ``shards`` to another keyspace. Raises ``Unavailable``."""
    return {table for shard in shards for move in _moves(vtgate, shard.keyspace, shard.name) for table in move.tables}


def _has_ended(vtgate: Vtgate, keyspace: str, shard: str) -> bool:
    """Whether a reshard has ended a shard, or its keyspace is gone. Raises ``Unavailable``."""
    shards = vtgate.listed(SHARDS)
    if any(each.startswith(f"{keyspace}/") for each in shards):
        return f"{keyspace}/{shard}" not in shards
    return keyspace not in vtgate.listed(_KEYSPACES)  # vtgate leaves out shards that it cannot look up


def _tables_in(vtgate: Vtgate, keyspace: str, why: str) -> Set[str]:
    """Return the tables of a keyspace. Raises ``Unavailable``. ``why``: the reason for the question."""
    try:
        return vtgate.listed("show tables", f"{keyspace}@primary")
    except Unavailable as error:
        raise Unavailable(f"{why}, and the tables of keyspace {keyspace} cannot be listed: {error}") from error


def _moves(vtgate: Vtgate, keyspace: str, shard: str) -> list[Move]:
    """Return the moves of tables from a shard to other keyspaces. Raises ``Unavailable``."""
    target = f"{keyspace}:{shard}@primary"
    rows = _answer(vtgate, _JOURNALS.format("_vt"), target)
    if rows is None:  # the sidecar database may have another name, or the shard may have no journals
        names = [str(next(iter(row.values()))) for row in _answer(vtgate, _DATABASES, target) or ()]
        rows = [row for name in names for row in _answer(vtgate, _JOURNALS.format(quoted(name)), target) or ()]
    return [
        Move(
            number[1],
            frozenset(_TABLE.findall(journal)),
            parse(position[1]),
            {(to, name): parse(at) for to, name, at in _TARGET.findall(journal)},
            tuple(_PARTICIPANT.findall(journal)),
        )
        for journal in (str(row["val"]) for row in rows)
        if not _RESHARD.search(journal) and (position := _POSITION.search(journal)) and (number := _ID.search(journal))
    ]


def _answer(vtgate: Vtgate, sql: str, target: str) -> list[dict[str, str | None]] | None:
    """Return the rows of a statement, or None if its table does not exist. Raises ``Unavailable``."""
    try:
        return vtgate.execute(sql, target)
    except Rejected as error:
        if _ABSENT.search(str(error)) is not None:
            return None
        place, grant = target.replace(":", "/").removesuffix("@primary"), _GRANT if _DENIED.search(str(error)) else ""
        raise Unavailable(  # I1
            f"{place}: cannot find out which tables were moved to another keyspace: {error}{grant}"
        ) from error
