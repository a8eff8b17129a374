"""How many rows of a partly published transaction were published, by table.

By table, because other tables may be relayed by the time the rest is read: all rows of a new table remain, and those of
a dropped one are not read again. Checkpoints hold this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PublishedRows = Mapping[str, int]


def furthest(one: PublishedRows, other: PublishedRows) -> PublishedRows:
    """Combine two counts of one transaction: one that is read again is behind the earlier read at first."""
    return {table: max(one.get(table, 0), other.get(table, 0)) for table in {**one, **other}}


def position_fields(done: Mapping[str, PublishedRows]) -> dict[str, Any]:
    """Return the fields of a checkpoint's position for the published rows by GTID, those of the next one first.

    ``transaction`` and ``rows_done`` are for those who look at it.
    """
    if not done:
        return {}
    following, rows = next(iter(done.items()))
    by_table = {gtid: dict(of) for gtid, of in done.items()}
    return {"transaction": following, "rows_done": sum(rows.values()), "rows_of": by_table}
