"""Which tables a statement empties, and what is said of rows that it takes away and no change can tell of (I1)."""

from __future__ import annotations

import logging

from relay.errors import RelayError
from relay.sql.statements import Classified, Kind, Name
from relay.vitess.tables import INTERNAL

log = logging.getLogger(__name__)

_SHOWN = 200


def emptied(said: Classified) -> tuple[Name, ...]:
    """Return the tables that hold no row any more after a statement, or hold none but its own."""
    if said.temporary:
        return ()
    if said.kind in (Kind.TRUNCATE, Kind.DROP) or said.replaces:
        return said.tables
    # Online DDL drops a table by giving it to Vitess' garbage collector. Where another table takes its name, it was
    # altered: that has the same rows.
    taken = {name for _, (_, name) in said.renamed}
    return tuple(old for old, (_, new) in said.renamed if new.startswith(INTERNAL) and old[1] not in taken)


def refusal(shard: str, table: str, statement: str, at: str) -> RelayError:
    """Return the error for a partition or tablespace that goes with its rows: nothing says which they are.

    ``shard``: globally qualified. ``at``: the statement's position.
    """
    return RelayError(
        f"shard {shard}: at {at} a statement adds, removes or replaces rows of {table}, and which is not told: "
        f"{statement[:_SHOWN]!r}. Reset the source, to copy its tables again, or to a position after this one if those "
        "rows are to stay: only a DELETE can be relayed"
    )


def warn_of_gone(shard: str, table: str, statement: str, at: str) -> None:
    """Say that a table is emptied that was gone before the relay began: without a layout nothing can be told of it."""
    log.warning(
        "%s: ROWS OF %s MAY STAY WHERE THEY WERE RELAYED TO: %r, at %s, is not relayed, since the table was gone "
        "before the relay began. If it was ever relayed, delete its rows there",
        shard,
        table,
        statement[:_SHOWN],
        at,
    )


def warn_of_rename(shard: str, old: str, new: str) -> None:
    """Say that a table goes on under another name."""
    log.warning("%s: %s is called %s from here on: what was published of it stays under its old name", shard, old, new)


def warn_of_left_out(shard: str, table: str, why: RelayError) -> None:
    """Say that changes of a table are not told whose DROP is: nobody knows its columns any more."""
    log.warning("%s: changes of %s before its DROP are left out: %s", shard, table, why)


def refill(shard: str, transaction: str, table: str) -> RelayError:
    """Return the error for a transaction that empties a table and has rows: where it is cut they cannot be counted."""
    return RelayError(
        f"shard {shard}: {transaction} replaces the table {table} and fills it at once: reset the source to a position "
        "after it, or leave the table out"
    )
