"""The tables of a source as one shard's reader knows them: their layouts, and how their rows are decoded."""

from collections.abc import Callable, Mapping
from copy import deepcopy

from relay.mysql_dialect.followed_tables import FollowedTables
from relay.mysql_dialect.layouts import SkippedTables
from relay.mysql_dialect.protection import check_first, check_followed
from relay.mysql_dialect.tables import Table
from relay.vitess.moved_tables import MovedTo
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.rows import Layout, VStreamRowDecoder, decoder

_REMEMBERED = 1000

Collations = Callable[[str], Mapping[str, int]]
"""Returns, by column of a table, the id of a collation of its character set now. Raises ``Unavailable``."""


class Tables:
    """Used by the reader of one shard.

    ``layout``: gives the layout of a table with these columns, or None if it is not wanted. ``current``: the layouts of
    the wanted tables as they are now. ``relayed``: tables that were relayed before, which may have been dropped since,
    with their key columns at least. ``followed``: what is known of the tables between two statements of the shard.
    ``keyspace``: the tables' own, if their names may come with it. ``collations``: is asked where Vitess says none.
    ``moved_to``: is asked where a table is removed. ``skipped``: those that are left out.
    """

    def __init__(
        self,
        layout: Layout,
        current: Mapping[str, Table],
        relayed: Mapping[str, Table] | None = None,
        *,
        followed: FollowedTables,
        keyspace: str = "",
        collations: Collations = lambda _: {},
        moved_to: MovedTo = lambda shard, table, executed, remade: None,
        skipped: SkippedTables | None = None,
    ) -> None:
        self._layout = layout
        self._collations = collations
        self.moved_to = moved_to
        self.skipped = skipped or SkippedTables("", keyspace, None)
        self._prefix = f"{keyspace}."
        self._relayed = dict(relayed or {})
        self.followed = followed
        # The last known layout of each table.
        self._known = dict(current)
        # The same without the ones of now.
        self._streamed: dict[str, Table] = {}
        self._decoders: dict[tuple[bytes, bool], VStreamRowDecoder | None] = {}

    @property
    def names(self) -> list[str]:
        """The known tables, sorted by name."""
        return sorted(self._known)

    def known(self, name: str) -> Table | None:
        """Return the last known layout of a table, or None if it is unknown or not wanted."""
        return self._known.get(name)

    def last(self, name: str) -> Table | None:
        """Return the same, even for a table that was dropped after it was relayed: then only its key is sure."""
        return self._known.get(name) or self._relayed.get(name)

    def has_other_key(self, table: Table) -> bool:
        """Whether changes of a table were relayed with another key: the plan refuses a page with rows of it."""
        before, now = self._relayed.setdefault(table.name, table).schema, table.schema
        keys = [[column.name for column in each.key] for each in (before, now)]
        return keys[0] != keys[1] or before.hash_columns != now.hash_columns

    def altered(self) -> None:
        """A table may have been altered: Vitess describes it as before if only an unknown character set is another."""
        self._decoders.clear()  # I8

    def decoder(self, event: pb.FieldEvent, *, copied: bool) -> VStreamRowDecoder | None:
        """Return how the rows after ``event`` are read; see ``rows.decoder``."""
        event = self._unqualified(event)
        key = (event.SerializeToString(), copied)
        if key not in self._decoders:
            if len(self._decoders) > _REMEMBERED:
                self._decoders.clear()
            self._decoders[key] = decoder(self._with_collations(event), self._layout, copied=copied)
        found = self._decoders[key]
        if found is not None:
            name, table = event.table_name, found.table
            before = self._streamed.get(name)
            if before is not None and before is not table:
                check_followed(before.schema, table.schema)
            elif before is None and (there := self._known.get(name)) is not None:
                check_first(there.schema, self.followed.rules(name), table.schema)
            self._known[name] = self._streamed[name] = table
        return found

    def _with_collations(self, event: pb.FieldEvent) -> pb.FieldEvent:
        """Return ``event`` with the collations that Vitess does not know, and leaves out."""
        if all(field.charset for field in event.fields):
            return event
        collations = self._collations(event.table_name)
        found = deepcopy(event)
        for field in found.fields:
            field.charset = field.charset or collations.get(field.name, 0)  # I8
        return found

    def _unqualified(self, event: pb.FieldEvent) -> pb.FieldEvent:
        """Return ``event`` with the name that the table has in its keyspace.

        vtgate puts the keyspace in front of it, and before v23 also if it is asked not to.
        """
        name = event.table_name
        if not name.startswith(self._prefix) or self.last(name) is not None:
            return event
        found = deepcopy(event)
        found.table_name = name.removeprefix(self._prefix)  # I1: under another name, nobody wants it
        return found
