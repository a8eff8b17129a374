"""Changes as the rule of the copy takes them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from relay.change import Images, Operation, Snapshot
from relay.token import EventToken
from spark_consumers.fold import ChangeHead

NO_ATTRIBUTES: Mapping[str, str] = MappingProxyType({})


def head(
    event_id: str,
    operation: Operation,
    new: Any = None,
    images: Images = Images.NEW,
    token: EventToken | None = None,
    snapshot: Snapshot | None = None,
    attributes: Mapping[str, str] = NO_ATTRIBUTES,
    *,
    key: tuple[str, ...] = (),
    place: Any = None,
) -> ChangeHead:
    """Return a change. Without a ``place`` nothing is known to be a replay of it."""
    return ChangeHead(key, place, event_id, operation, new, images, token, snapshot, attributes)
