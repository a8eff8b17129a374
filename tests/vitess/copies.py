"""What tests of copied tables have in common: rows, and how far a shard is published."""

from __future__ import annotations

from typing import Any

from relay.records import ShardCheckpoint, ShardState
from relay.source import Page
from relay.token import EventToken
from tests.vitess.scripted import Rows

SHARD = "shop/commerce/0"


def at(gtid: str, *, timestamp: int = 0, reached: float | None = None, **more: Any) -> dict[str, ShardCheckpoint]:
    """Return the checkpoints of a shard that is published up to ``gtid``."""
    token = EventToken(timestamp, SHARD, gtid) if timestamp else None
    return {"0": ShardCheckpoint(ShardState.READING, {"gtid": gtid, **more}, token, reached=reached)}


def ids(pages: list[Page]) -> list[int]:
    return [change.key["id"] for page in pages for change in page.changes if change.key is not None]


def rows_of(numbers: range, size: int = 1) -> Rows:
    return {"customer": [(b"%d" % number, b"x" * size) for number in numbers]}
