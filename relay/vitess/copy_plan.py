"""Which tables the streams of a shard read, and in what order tables are copied."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from relay.errors import RelayError
from relay.vitess.client import EVERY
from relay.vitess.head import rule
from relay.vitess.position import VStreamPosition
from relay.vitess.settings import VStreamSettings
from relay.vitess.shard import VitessShard
from relay.vitess.tables import Tables

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StreamedTables:
    """The tables of one stream."""

    position: VStreamPosition
    """Where the stream starts."""
    rules: Mapping[str, str]
    """By table, the select that filters it."""
    copied: str | None
    """The table that the stream copies first."""


class CopyPlan:
    """Copies one table in each stream, which also has the changes of the tables copied before.

    vtgate sends no changes of a table whose copy has not started, and forgets which tables it has copied whenever it
    moves to another tablet (uvstreamer.go, buildTablePlan): if one stream copied several tables, changes of those that
    it had copied could be lost.
    """

    def __init__(self, shard: VitessShard, settings: VStreamSettings, tables: Tables) -> None:
        self.shard = shard
        # Tables that were copied, at least in part, and no longer exist.
        self.dropped: set[str] = set()
        self._settings = settings
        self._tables = tables
        # In the order in which they are copied.
        self._names = list(tables.names if settings.tables is None else settings.tables)
        if not self._names:
            raise RelayError(
                f"shard {shard.qualified}: the keyspace has no table to relay: create one with a primary key, "
                "or name the columns of a `key`"
            )

    @property
    def first(self) -> str:
        return self._names[0]

    def delay(self, position: VStreamPosition, floor: int, now: float) -> float:
        """Return for how many seconds a copy must wait before it starts: a READ replaces only what is older (I7).

        ``floor``: seconds since the epoch of the last token. ``now``: seconds since the epoch.
        """
        if position.copied is None or position.copied or position.executed or not floor:
            return 0.0
        return floor + 1 + self._settings.margin - now

    def next(self, position: VStreamPosition) -> StreamedTables:
        """Return what to stream from ``position`` on: with a copy under way, up to the end of one table."""
        if position.copied is None:
            return StreamedTables(position, self._rules(self._names, every=self._settings.tables is None), None)
        # A copy that has started is finished first, since its key is of no use to another table.
        left = [table for table in self._names if table not in position.copied]
        table = min(left, key=lambda name: name not in position.copying, default=None)
        if table is None:
            return self.next(replace(position, copied=None, pks=()))
        copied = [name for name in position.copied if self._settings.is_wanted(name)]
        position = replace(position, pks=tuple(pk for pk in position.pks if pk.table_name == table))
        return StreamedTables(position, self._rules([*copied, table]), table)

    def complete(self, table: str, position: VStreamPosition) -> VStreamPosition:
        """Return ``position`` after the copy of ``table``."""
        copied = (*(position.copied or ()), table)
        is_last = all(name in copied for name in self._names)
        log.info("%s: copied table %s", self.shard.qualified, table)
        return replace(position, copied=None if is_last else copied, pks=())

    def add_created(self) -> None:
        """Add the tables that were created during the copy, which no stream has yet. Raises ``Unavailable``."""
        if self._settings.tables is None:
            self._names += [table for table in self._tables.find() if table not in self._names]

    def drop_missing(self, existing: Collection[str], position: VStreamPosition) -> tuple[VStreamPosition, bool]:
        """Remove tables that no longer exist from the copy. ``existing``: the tables that do.

        Returns the position to continue at, and whether a copy from there can succeed where the last one failed.
        """
        names = dict.fromkeys((*self._names, *(position.copied or ()), *position.copying))
        missing = [
            name
            for name in names
            if self._settings.is_wanted(name) and name not in existing and name not in self.dropped
        ]
        for table in missing:
            if table in position.copying:
                position = replace(position, copied=(*(position.copied or ()), table), pks=())
            if table in (position.copied or ()):
                self.dropped.add(table)  # its DROP is still to come, and removes its rows
            elif self._settings.tables is None and len(self._names) > 1:
                self._names.remove(table)
            else:
                return position, False  # the config names it
            log.warning("%s: table %s no longer exists, so its copy ends", self.shard.qualified, table)
        return position, bool(missing)

    def _rules(self, tables: Collection[str], *, every: bool = False) -> Mapping[str, str]:
        # With every table, those created later are included, and the events of unwanted ones are skipped.
        return {EVERY: ""} if every else dict(rule(table, self.dropped) for table in tables)
