"""State that the makers of changes share: the open transaction of a shard, and the counts of its stream.

A maker makes the changes of a transaction from where it takes over to the end. It holds the last row back until the
next row or the end, because each change says whether it is the last of its transaction.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from relay.token import EventToken, OriginToken

PublishedRows = Mapping[str, int]
"""The number of published rows of a partly published transaction, by table, for checkpoints.

Other tables may be relayed when the rest is read: a new table's rows all remain, a dropped one's are not read again.
"""


class Origin(NamedTuple):
    """``token``: the transaction's position on the shard where it was made. ``gtid``: its GTID there."""

    token: OriginToken
    gtid: str


@dataclass(slots=True)
class StreamedTransaction:
    """The values that the changes of one transaction share.

    ``committed_at``: microseconds. ``id_shard``, ``id_position``: the shard and the position in event ids, the origin's
    if it has one. ``is_behind``: whether its own time was before its token's. ``skips``: by table, the rows still to
    skip, since they were published before. ``order``: how many of its changes were made. ``statements``: how many
    records of its statements were made.
    """

    gtid: str
    token: EventToken
    committed_at: int
    id_shard: str
    id_position: str
    is_behind: bool
    skips: dict[str, int]
    order: int = 0
    statements: int = 0


@dataclass(slots=True)
class Tally:
    """Counts of the changes made from a shard's stream.

    ``rows_of``: by table, the rows of the open transaction that were taken or skipped, without the one held back.
    ``size``: estimated bytes of the changes that are ready. ``behind``: how many changes were made in transactions that
    are behind; the reader resets it. ``token``: the token of the last change. ``held_size``: the bytes of the row that
    is held back, 0 if none is. ``held_table``: the table of the row that is held back.
    """

    rows_of: dict[str, int] = field(default_factory=dict)
    size: int = 0
    behind: int = 0
    token: EventToken | None = None
    held_size: int = 0
    held_table: str = ""

    def count(self, table: str, rows: int = 1) -> None:
        self.rows_of[table] = self.rows_of.get(table, 0) + rows

    def release_held(self, token: EventToken) -> None:
        if self.held_size:
            self.release(token)

    def release(self, token: EventToken) -> None:
        """Count the row held back as ready: another row follows, or the transaction ends."""
        self.size += self.held_size
        self.held_size = 0
        self.count(self.held_table)
        self.token = token


def furthest(one: PublishedRows, other: PublishedRows) -> PublishedRows:
    """Combine two counts of one transaction: when it is read again, its count is at first lower than before."""
    return {table: max(one.get(table, 0), other.get(table, 0)) for table in {**one, **other}}


def position_fields(done: Mapping[str, PublishedRows]) -> dict[str, Any]:
    """Return a position's fields for rows by GTID, the next first. ``transaction``, ``rows_done`` are for people."""
    if not done:
        return {}
    following, rows = next(iter(done.items()))
    by_table = {gtid: dict(of) for gtid, of in done.items()}
    return {"transaction": following, "rows_done": sum(rows.values()), "rows_of": by_table}
