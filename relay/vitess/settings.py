"""How the shards of a keyspace are read: what the config sets, and limits that it does not."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from relay.source import STREAMED_PAGE

INTERNAL = ("_vt_", "_vt.")
"""How the names of Vitess' internal tables begin."""

_HIDDEN = re.compile(r"_.*_old|_[0-9a-f]{8}(?:_[0-9a-f]{4}){3}_[0-9a-f]{12}_[0-9]{14}_(?:gho|ghc|del|new|vrepl)")


def is_hidden(table: str) -> bool:
    """Whether Vitess, by its name, takes a table for one of an online schema change, and sends no rows of it.

    Source: IsOnlineDDLTableName in its go/vt/schema.
    """
    return _HIDDEN.fullmatch(table) is not None


@dataclass(frozen=True, slots=True)
class VStreamSettings:
    """How the shards of a keyspace are read."""

    keyspace: str
    tables: Sequence[str] | None = None
    """The tables to relay; None means all, including tables that are created later."""
    tablet_type: str = "REPLICA"
    """PRIMARY, REPLICA or RDONLY."""
    cells: str = ""
    """The cells whose tablets may be read, with commas between them; "" for any."""
    silence: float = 30.0
    """Seconds without an expected event after which a stream is reopened."""
    ask_every: float = 5.0
    """Seconds between two requests for the head of an idle shard."""
    heartbeat: int = 1
    """Seconds between two heartbeats of vtgate."""
    margin: int = 65
    """Seconds by which an idle shard's progress lags: clocks differ, and a transaction takes its time."""
    page_bytes: int = STREAMED_PAGE
    """A page ends at this many bytes of changes."""
    wait: float = 0.5
    """Seconds that one read waits for a first change."""
    largest_unnamed: int = 64 << 20
    """Bytes of one transaction, as sent, that wait for its GTID: before v23 vtgate sends it only at the end."""
    copied_rows_per_second: int | None = None
    """The most rows of a table that are copied in a second; None means as many as come."""

    def is_wanted(self, table: str) -> bool:
        """Whether changes of ``table`` are relayed, even if it does not exist."""
        return table in self.tables if self.tables is not None else not table.startswith(INTERNAL)

    def shows(self, table: str) -> bool:
        """Whether it is wanted, and Vitess sends its changes."""
        return self.is_wanted(table) and not is_hidden(table)
