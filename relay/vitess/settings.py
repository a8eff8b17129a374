"""How the shards of a keyspace are read: what the config says, and what it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relay.source import STREAMED_PAGE
from relay.vitess.events import LARGEST_UNNAMED

MARGIN = 65
"""Seconds that the clocks of databases and relay may differ by, and a transaction may take: progress lags by it."""


@dataclass(frozen=True, slots=True)
class VStreamSettings:
    """How the shards of a keyspace are read.

    ``tables``: those that are wanted, None for all, also those that appear later. ``tablet_type``: PRIMARY, REPLICA or
    RDONLY. ``cells``: where from. ``silence``: seconds after which a stream that should have something is given up.
    ``ask_every``: seconds between two looks at the head of an idle shard. ``heartbeat``: seconds, vtgate's.
    ``margin``: see `MARGIN`. ``page_bytes``: of changes that end a page. ``wait``: seconds that one read waits at most
    for a first change.
    """

    keyspace: str
    tables: Sequence[str] | None = None
    tablet_type: str = "REPLICA"
    cells: str = ""
    silence: float = 30.0
    ask_every: float = 5.0
    heartbeat: int = 1
    margin: int = MARGIN
    page_bytes: int = STREAMED_PAGE
    wait: float = 0.5
    largest_unnamed: int = LARGEST_UNNAMED
