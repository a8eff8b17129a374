"""Keeps the rows of a snapshot safe beside their shard's stream, even if clocks are wrong and replicas lag.

Each committed checkpoint of a shard promises an earliest timestamp for all changes after it (`lowest`), and its reader
gives no token an earlier one. Rows are read where everything up to a checkpoint is visible, and their ``as_of`` is not
later than the promised timestamp. So a READ never replaces a change that it does not see.
"""

from collections.abc import Iterable

from relay.change import Change, Images, Operation, Snapshot
from relay.mysql_dialect.row_functions import RowMapper, require_carried
from relay.mysql_dialect.tables import Row, Table
from relay.records import ShardCheckpoint, is_inside_transaction

LATENESS = 30.0  # seconds that a transaction's token may be before its commit: it has the time when the statement began
MARGIN = 65.0  # seconds by which ``as_of`` is before a read, so that the next snapshot begins with a later one


def latest_timestamp(now: float) -> int:
    """Return the latest timestamp that a transaction may have, in seconds: sessions set theirs, and clocks go wrong."""
    return int(now + LATENESS)


def lowest(checkpoint: ShardCheckpoint) -> int:
    """Return the earliest timestamp that a change after ``checkpoint`` can have, in seconds; 0 if nothing is known."""
    last = checkpoint.token.timestamp if checkpoint.token is not None else 0
    if checkpoint.reached is None or is_inside_transaction(checkpoint.position):
        return last
    return max(last, int(checkpoint.reached - LATENESS))


def as_of_rows(begin: Snapshot, promised: int, read_at: float) -> Snapshot:
    """Return the snapshot in the rows' changes. ``begin``: the snapshot in its mark of the beginning.

    ``promised``: the result of `lowest` for a checkpoint that the rows reflect. ``read_at``: not after the read.
    """
    # I7: not before the snapshot's beginning, and not later than changes after these rows.
    return Snapshot(begin.id, max(begin.as_of, min(promised, int(read_at - MARGIN))))


def reads(source: str, table: Table, rows: Iterable[Row], snapshot: Snapshot, now: float) -> list[Change]:
    """Return the READs of copied rows. ``now``: seconds, when their page was requested.

    Raises ``RelayError`` for a row that cannot be carried, or has no key that can.
    """
    mapper, requested_at = RowMapper(table, "", source), int(now * 1_000_000)
    found = [
        read_of(mapper, source, row, snapshot, requested_at)
        for row in rows
        if table.wanted is None or table.wanted(row)
    ]
    for change in found:
        require_carried(table, change)  # I12: ends only the snapshot
    return found


def read_of(mapper: RowMapper, source: str, row: Row, snapshot: Snapshot, requested_at: int) -> Change:
    """Return the READ of a copied row. ``requested_at``: microseconds."""
    table = mapper.table
    return Change(
        mapper.read_id(f"snapshot/{snapshot.id}", mapper.identity(row)),
        Operation.READ,
        source,
        table.name,
        mapper.key(row),
        None,
        mapper.image(row),
        Images.NEW,
        None,
        requested_at,
        snapshot=snapshot,
        keyspace_id=table.keyspace_id(row) if table.keyspace_id else None,
    )
