"""What a copy makes of a topic, by its rule (``spark_consumers.fold``) and without Spark."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from relay.change import MARK, Images, Operation, Snapshot
from relay.token import EventToken
from spark_consumers import fold


@dataclass(frozen=True, kw_only=True)
class Seen(fold.ChangeHead):
    """A change on the topic, as the rule of the copy takes it. ``item`` None: a mark. ``read_at``: when it was read."""

    partition: int
    item: Hashable | None
    read_at: float


def on_partition(
    partition: int,
    item: Hashable | None,
    event_id: str,
    operation: Operation,
    new: Any,
    images: Images,
    token: EventToken | None,
    snapshot: Snapshot | None,
    attributes: Mapping[str, str],
    read_at: float,
) -> Seen:
    place: Any = None  # nothing is known to be a replay
    head = ((), place, event_id, operation, new, images, token, snapshot, attributes)
    return Seen(*head, partition=partition, item=item, read_at=read_at)


def seen(partition: int, change: Mapping[str, Any], *, item: Hashable | None, new: Any) -> Seen:
    """Return a decoded change, with ``item`` and ``new`` in the form in which a test compares them."""
    token, snapshot = change["token"], change["snapshot"]
    return on_partition(
        partition,
        item,
        change["event_id"],
        Operation(change["operation"]),
        new,
        Images(change["images"]),
        EventToken.from_json(orjson.dumps(token)) if token else None,
        Snapshot(snapshot["id"], snapshot["as_of"]) if snapshot else None,
        change["attributes"],
        change["committed_at"].timestamp(),
    )


def copied(changes: Iterable[Seen]) -> dict[Any, Any]:
    """Return the rows of a copy that applies the topic. Its tombstones stay while a snapshot runs."""
    rows: dict[Hashable, fold.StoredRow] = {}
    where: dict[Hashable, int] = {}
    truncations: list[EventToken] = []
    for each in changes:
        if each.operation is Operation.TRUNCATE:
            truncations = fold.needed_later([*truncations, each.token])
            for item in [item for item in rows if where[item] == each.partition]:
                rows[item], _ = fold.truncate(rows[item], each, truncations)
        elif each.item is not None:
            where[each.item] = each.partition
            after, _ = fold.store(rows.get(each.item), each)
            if after is not None:
                rows[each.item] = after
        elif each.attributes[MARK] == "end":
            for item in [item for item in rows if where[item] == each.partition]:
                rows[item], _ = fold.sweep(rows[item], each)
    return {item: row.item for item, row in rows.items() if not row.deleted}
