"""The changes of the compiled core as objects, where somebody looks at one."""

from __future__ import annotations

from collections.abc import Callable

from relay.change import Change, Images, Operation, Transaction
from relay.sql.row_functions import imager, keyer
from relay.sql.tables import Row, Table
from relay.token import EventToken


def change_maker(table: Table, source: str, shard: str) -> Callable[..., Change]:
    """Return what makes a change of what the core knows of it. ``shard``: globally qualified."""
    image, key = imager(table), keyer(table)

    def change(
        *,
        event_id: str,
        operation: str,
        before: Row | None,
        after: Row | None,
        timestamp: int,
        position: str,
        gtid: str,
        order: int,
        last: bool,
        committed_at: int,
        keyspace_id: bytes | None,
        resume_timestamp: int,
        relayed_at: int,
    ) -> Change:
        keyed = before if after is None else after
        assert keyed is not None
        return Change(
            event_id,
            Operation(operation),
            source,
            table.name,
            key(keyed),
            None if before is None else image(before),
            None if after is None else image(after),
            Images.NEW_AND_OLD,
            EventToken(timestamp, shard, position),
            committed_at,
            relayed_at,
            resume_timestamp,
            None,
            Transaction(gtid, order, last),
            keyspace_id,
        )

    return change
