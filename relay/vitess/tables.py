"""The tables of a source as one shard's reader knows them: their layouts, and how their rows are decoded."""

from collections.abc import Callable, Mapping
from copy import deepcopy

from relay.mysql_dialect.followed_tables import FollowedTables
from relay.mysql_dialect.layout_cache import SkippedTables
from relay.mysql_dialect.protection import check_first, check_followed
from relay.mysql_dialect.tables import Table
from relay.vitess.moved_tables import TableMoves
from relay.vitess.position import VStreamPosition
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.rows import Layout, VStreamRowDecoder, decoder

_REMEMBERED = 1000


class Tables:
    """Used by the reader of one shard.

    ``current``: the current layouts of the wanted tables. ``relayed``: layouts of tables that were relayed before, with
    their key columns at least; the tables may have been dropped. ``followed``: what is known about the tables between
    two statements of the shard. ``keyspace``: may be in front of the tables' names. ``collations``: see
    `relay.vitess.tablets.collations`.
    """

    def __init__(
        self,
        layout: Layout,
        current: Mapping[str, Table],
        relayed: Mapping[str, Table] | None = None,
        *,
        followed: FollowedTables,
        keyspace: str = "",
        collations: Callable[[str], Mapping[str, int]] = lambda _: {},
        moves: TableMoves,
        skipped: SkippedTables | None = None,
    ) -> None:
        self._layout = layout
        self.moves = moves
        self._collations = collations
        self.skipped = skipped or SkippedTables("", keyspace, None)
        self._prefix = f"{keyspace}."
        self._relayed = self._own(relayed or {})
        self.followed = followed
        self.known = self._own(current)  # the last known layout of each wanted table
        self._streamed: dict[str, Table] = {}  # the last layout of each table that the stream has described
        self._decoders: dict[tuple[bytes, bool], VStreamRowDecoder | None] = {}

    def _own(self, tables: Mapping[str, Table]) -> dict[str, Table]:
        return {name: table for name, table in tables.items() if self.moves.settings.portion.has(name)}

    def may_be_moved(self, position: VStreamPosition) -> set[str]:
        """Return the tables that may live in another keyspace, as far as ``position`` does not say so already."""
        removed = (name for name, remade_at in position.remade.items() if not remade_at)
        return {*self.known, *self._relayed} - {*position.left_out, *removed}

    def last(self, name: str) -> Table | None:
        """Return the last layout of a table, even if it was dropped after it was relayed: then only the key is sure."""
        return self.known.get(name) or self._relayed.get(name)

    def is_relayed(self, table: str) -> bool:
        """Whether it is shown, and was not left out from the beginning."""
        is_left_out = table in self.skipped.reasons and self.last(table) is None
        return self.moves.settings.shows(table) and (not is_left_out or self.skipped.was_relayed(table))

    def has_other_key(self, table: Table) -> bool:
        """Whether changes of a table were relayed with another key: the plan refuses a page with its rows."""
        before, now = self._relayed.setdefault(table.name, table).schema, table.schema
        keys = [[column.name for column in each.key] for each in (before, now)]
        return keys[0] != keys[1] or before.hash_columns != now.hash_columns

    def altered(self) -> None:
        """Forget all decoders: Vitess does not report an ALTER of a character set that it does not know."""
        self._decoders.clear()  # I8

    def decoder(self, event: pb.FieldEvent, *, copied: bool) -> VStreamRowDecoder | None:
        """Return the decoder of the rows after ``event``; see ``rows.decoder``."""
        event = self._unqualified(event)
        key = (event.SerializeToString(), copied)
        if key not in self._decoders:
            if len(self._decoders) > _REMEMBERED:
                self._decoders.clear()
            is_own = self.moves.settings.portion.has(event.table_name)
            self._decoders[key] = decoder(self._with_collations(event), self._layout, copied=copied) if is_own else None
        found = self._decoders[key]
        if found is not None:
            name, table = event.table_name, found.table
            before = self._streamed.get(name)
            if before is not None and before is not table:
                check_followed(before.schema, table.schema)
            elif before is None and (there := self.known.get(name)) is not None:
                check_first(there.schema, self.followed.rules(name), table.schema)
            self.known[name] = self._streamed[name] = table
        return found

    def _with_collations(self, event: pb.FieldEvent) -> pb.FieldEvent:
        """Return ``event`` with the collations that Vitess does not know and leaves out."""
        if all(field.charset for field in event.fields):
            return event
        collations = self._collations(event.table_name)
        found = deepcopy(event)
        for field in found.fields:
            field.charset = field.charset or collations.get(field.name, 0)  # I8
        return found

    def _unqualified(self, event: pb.FieldEvent) -> pb.FieldEvent:
        """Return ``event`` without the keyspace, which vtgate before v23 puts in front of the table's name anyway."""
        name = event.table_name
        if not name.startswith(self._prefix) or self.last(name) is not None:
            return event
        found = deepcopy(event)
        found.table_name = name.removeprefix(self._prefix)  # I1: under another name, the table is not wanted
        return found
