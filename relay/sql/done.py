"""How much of a transaction was published, where that was not all of it: so many rows of each table.

By table, since which tables are relayed may change before the rest is read: rows of one that was not are all to come,
those of one that no longer is are not met again. Change it only so that older positions are still understood.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Done = Mapping[str, int]
"""Rows by table; those under ``ANY`` are of whatever tables, the first ones of the transaction."""

ANY = ""


def further(one: Done, other: Done) -> Done:
    """Return what is done if both are: a transaction that is read again is for a while not as far as it was."""
    for before, now in ((one, other), (other, one)):
        if ANY in before:
            return now if ANY not in now and sum(now.values()) >= before[ANY] else before
    return {table: max(one.get(table, 0), other.get(table, 0)) for table in {**one, **other}}


def of_position(position: Mapping[str, Any]) -> dict[str, Done]:
    """Return what a position says, by GTID: the transaction that comes next first."""
    rows = dict(position.get("others", {}))
    if position.get("rows_done"):
        rows = {position["transaction"]: position["rows_done"], **rows}
    by_table = position.get("rows_of", {})
    return {gtid: by_table.get(gtid, {ANY: count}) for gtid, count in rows.items()}


def to_position(done: Mapping[str, Done]) -> dict[str, Any]:
    """Return what a position has to say of it."""
    found: dict[str, Any] = {}
    for gtid, rows in done.items():
        if not found:
            found["transaction"], found["rows_done"] = gtid, sum(rows.values())
        else:
            found.setdefault("others", {})[gtid] = sum(rows.values())
        if ANY not in rows:
            found.setdefault("rows_of", {})[gtid] = dict(rows)
    return found
