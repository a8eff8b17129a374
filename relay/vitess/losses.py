"""What is said of rows that a statement takes away and that no change can tell of (I1). Only the words are here."""

from __future__ import annotations

import logging

from relay.errors import RelayError

log = logging.getLogger(__name__)

_SHOWN = 200


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
