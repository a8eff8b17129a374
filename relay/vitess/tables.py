"""The tables of a source as its streams tell of them: each layout made once, whichever shard or phase it came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from relay.sql.tables import Table
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.rows import Layout, VStreamRowDecoder, decoder

INTERNAL = ("_vt_", "_vt.")
"""What the names of tables begin with that Vitess makes for itself."""

_REMEMBERED = 1000


class Tables:
    """``layout``: of a table with these columns, None if it is not wanted. ``now``: those that are wanted, as they are.

    ``find``: asks for them anew. Used by the reader of one shard.
    """

    def __init__(
        self, layout: Layout, now: Mapping[str, Table], find: Callable[[], Mapping[str, Table]] | None = None
    ) -> None:
        self._layout = layout
        self._find = find
        self._known = dict(now)
        self._decoders: dict[tuple[bytes, bool], VStreamRowDecoder | None] = {}

    @property
    def names(self) -> list[str]:
        """The tables that are known, in the order of their names."""
        return sorted(self._known)

    def found(self) -> list[str]:
        """Ask which tables there are, and return their names. Raises ``Unavailable``."""
        if self._find is None:
            return self.names
        found = self._find()
        self._known |= {name: table for name, table in found.items() if name not in self._known}
        return sorted(found)

    def known(self, name: str) -> Table | None:
        """Return the last layout that is known of a table, None if it is not one that is wanted."""
        return self._known.get(name)

    def decoder(self, event: pb.FieldEvent, *, copied: bool) -> VStreamRowDecoder | None:
        """Return how the rows after ``event`` are read: see ``rows.decoder``."""
        key = (event.SerializeToString(), copied)
        if key not in self._decoders:
            if len(self._decoders) > _REMEMBERED:
                self._decoders.clear()
            self._decoders[key] = decoder(event, self._layout, copied=copied)
        found = self._decoders[key]
        if found is not None:
            self._known[event.table_name] = found.table
        return found
