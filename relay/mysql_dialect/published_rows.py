"""How many rows of a partly published transaction were published, by table.

By table, because other tables may be relayed by the time the rest is read: all rows of a new table remain, and those of
a dropped one are not read again. Checkpoints hold this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PublishedRows = Mapping[str, int]
"""Published rows by table. Under ``ANY_TABLE``: the first rows of the transaction, of any tables."""

ANY_TABLE = ""


def furthest(one: PublishedRows, other: PublishedRows) -> PublishedRows:
    """Combine two counts of one transaction: one that is read again is behind the earlier read at first."""
    for before, now in ((one, other), (other, one)):
        if ANY_TABLE in before:
            return now if ANY_TABLE not in now and sum(now.values()) >= before[ANY_TABLE] else before
    return {table: max(one.get(table, 0), other.get(table, 0)) for table in {**one, **other}}


def rows_in_position(position: Mapping[str, Any]) -> dict[str, PublishedRows]:
    """Return the published rows in a checkpoint's position by GTID, the transaction that is read next first."""
    rows = dict(position.get("others", {}))
    if position.get("rows_done"):
        rows = {position["transaction"]: position["rows_done"], **rows}
    by_table = position.get("rows_of", {})
    return {gtid: by_table.get(gtid, {ANY_TABLE: count}) for gtid, count in rows.items()}


def position_fields(done: Mapping[str, PublishedRows]) -> dict[str, Any]:
    """Return the fields of a checkpoint's position for the published rows."""
    found: dict[str, Any] = {}
    for gtid, rows in done.items():
        if not found:
            found["transaction"], found["rows_done"] = gtid, sum(rows.values())
        else:
            found.setdefault("others", {})[gtid] = sum(rows.values())
        if ANY_TABLE not in rows:
            found.setdefault("rows_of", {})[gtid] = dict(rows)
    return found
