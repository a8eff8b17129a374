"""What a copy makes of what is published: it follows the rule of ``spark_consumers.fold``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from relay.change import Images, Operation, Snapshot
from relay.token import EventToken
from spark_consumers import fold
from tests.snapshots.model.world import Stored, put, token

_NO_ATTRIBUTES: Mapping[str, str] = MappingProxyType({})
Copy = tuple[tuple[tuple[str, int], Stored], ...]


def published(
    operation: Operation,
    new: int | None = None,
    token: EventToken | None = None,
    snapshot: Snapshot | None = None,
    event_id: str = "",
) -> fold.ChangeHead:
    place: Any = None  # nothing is a replay
    return fold.ChangeHead((), place, event_id, operation, new, Images.NEW, token, snapshot, _NO_ATTRIBUTES)


def _row(stored: Stored | None) -> fold.StoredRow | None:
    if stored is None:
        return None
    item, at, deleted, incomplete, read_as_of = stored
    return fold.StoredRow(item, token(at), str(at), deleted, incomplete, read_as_of)


def _kept(row: fold.StoredRow | None) -> Stored | None:
    if row is None:
        return None
    at = row.token.timestamp if row.token is not None else 0
    return Stored(row.item, at, row.deleted, row.incomplete, row.read_as_of)


def with_row(copy: Copy, table: str, key: int, change: fold.ChangeHead) -> Copy:
    after, _ = fold.store(_row(dict(copy).get((table, key))), change)
    return put(copy, (table, key), _kept(after))


def with_read(copy: Copy, table: str, rows: Any, as_of: int) -> Copy:
    for key, item in rows:
        copy = with_row(copy, table, key, published(Operation.READ, item, snapshot=Snapshot("newest", as_of)))
    return copy


def emptied(copy: Copy, table: str, at: int) -> Copy:
    change = published(Operation.TRUNCATE, token=token(at), event_id=str(at))
    for place, stored in copy:
        if place[0] == table and (row := _row(stored)) is not None:
            copy = put(copy, place, _kept(fold.truncate(row, change)[0]))
    return copy


def ended(copy: Copy, table: str, as_of: int) -> Copy:
    end = published(Operation.READ, snapshot=Snapshot("newest", as_of))
    for place, stored in copy:
        if place[0] == table and (row := _row(stored)) is not None:
            copy = put(copy, place, _kept(fold.sweep(row, end)[0]))
    return copy


def live(copy: Copy, table: str) -> dict[int, int]:
    """Return the rows that a copy shows."""
    found = {key: row.item for (name, key), row in copy if name == table and not row.deleted}
    return {key: item for key, item in found.items() if item is not None}
