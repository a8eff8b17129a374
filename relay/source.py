"""What a source of changes has to do: the contract between databases and the worker.

``relay.dynamodb``, ``relay.vitess`` and ``relay.mysql`` implement it; Kafka, Avro and the worker know nothing else of
a database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from relay.change import Change, Snapshot
from relay.lineage import Checkpoint, Gap, Journal, Shard, StreamId
from relay.table import TableSchema
from relay.token import EventToken

STREAMED_PAGE = 256 << 10
"""Bytes of changes, about, that one page holds of a shard whose changes come by themselves."""


@dataclass(frozen=True, slots=True)
class Page:
    """What one read of a shard gave.

    ``position``: everything up to here is in ``changes`` or in earlier pages; None where nothing was ever read.
    ``token``: of the last change read so far, also of one that ``start`` discarded.
    ``records``: how many the source gave, those that ``start`` discards included. ``size``: bytes of the changes.
    ``progress``: unclamped seconds up to which the shard is read. ``begun``: clock before the read.
    ``full``: more is probably waiting. ``finished``: the shard is closed and this was its end.
    ``gap``: what the source no longer has; the changes of the page come after it.
    ``gone``: the source does not know the shard (any more). ``failed``: why nothing could be read; it will pass.
    Both say nothing about the position: the page has no changes.
    ``behind``: how many changes carry a time before that of one they follow: their tokens were given a later one.
    ``fresh``: reading was begun anew where it stood, so empty stretches walked over before are walked over again.
    ``tables``: the schemas of the tables that it has changes of, where they may differ from page to page.
    ``reached``: seconds; whatever was committed before is in this page or an earlier one. Known of sources that can be
    asked where their head is.
    ``journal``: why the shard ends here, and what goes on after it. Only with ``finished``.
    """

    shard: Shard
    changes: Sequence[Change]
    position: Mapping[str, Any] | None
    token: EventToken | None
    progress: float | None
    begun: float
    records: int = 0
    size: int = 0
    full: bool = False
    finished: bool = False
    gap: Gap | None = None
    gone: bool = False
    failed: str | None = None
    fresh: bool = False
    behind: int = 0
    tables: Sequence[TableSchema] = ()
    reached: float | None = None
    journal: Journal | None = None


@dataclass(frozen=True, slots=True)
class StartingPoints:
    """Where reading begins. ``shards``: the start of each, as checkpoints and plans hold it (``lineage.Plan``).

    ``lost``: shards that should have been read on and that the source has forgotten, with their positions.
    """

    shards: Mapping[str, Mapping[str, Any]]
    lost: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class ShardReader(Protocol):
    """Reads one shard, in order. Used by one thread at a time.

    ``streams``: changes come by themselves, so ``read`` waits for them, up to half a second, and is called again at
    once. Otherwise it asks for them.
    """

    shard: Shard
    streams: bool

    def close(self) -> None:
        """Let go of connections. Called once, by the thread that read last or by another one after it."""

    def read(self) -> Page:
        """Return the next page, after at most one call that waits on the network.

        Raises ``RelayError`` when the source says something final. What passes by itself is ``Page.failed``:
        when to try again is the caller's to decide.
        """


class Source(Protocol):
    """One entry of ``sources:``."""

    name: str
    start: str
    on_gap: Literal["fail", "skip", "resnapshot"]
    snapshot: Literal["none", "initial"]
    has_journals: bool
    """Whether the streams of parents announce their children, instead of a listing: see ``relay.engine.journals``."""
    snapshot_margin: float
    """Seconds by which the clocks and the rounding of times may put a change before a READ that is older."""

    def close(self) -> None: ...

    def reload(self, entry: Any) -> None:
        """Take in this source's ``entry`` of a config that was read again. ``RelayError``: nothing was changed."""

    def connect(self, label: str | None = None) -> StreamId:
        """Look the newest stream up, or the one called ``label``, and verify it. Raises ``Unavailable``."""

    def newest(self) -> str:
        """Return the label of the newest stream there is. Raises ``Unavailable``."""

    def tables(self) -> Sequence[TableSchema]: ...

    def config_hash(self) -> str:
        """A hash of what identifies the data behind the source."""

    def take_heads(self, shards: Sequence[Shard]) -> None:
        """Called with the first listing, just before the time that the plan is made for is taken."""

    def begin(self, shards: Sequence[Shard], now: float) -> StartingPoints:
        """Say where, by the config, the reading of a stream with ``shards`` begins at ``now``.

        Raises ``ConfigError`` if the start is of another stream, ``Unavailable``.
        """

    def shards(self) -> list[Shard]:
        """Return one complete listing. Of a source that has journals: the shards to begin with."""

    def open(
        self,
        shard: Shard,
        start: Mapping[str, Any],
        checkpoint: Checkpoint | None,
        floor: int,
        read_until: float,
        parents: Mapping[str, Checkpoint],
    ) -> ShardReader:
        """Open ``shard`` after the position of ``checkpoint``, or at ``start`` if it has none.

        No token is made below ``floor``. ``read_until``: seconds up to which nothing of the shard is missing on
        the topic; what the source has dropped since then is a gap. ``parents``: how its parents ended, by shard.
        """

    def measure(self) -> tuple[int, int]:
        """Return how many segments a snapshot is read in, and about how many rows there are."""

    def open_segment(
        self, shard: Shard, snapshot: Snapshot, segment: int, segments: int, position: Mapping[str, Any] | None
    ) -> ShardReader:
        """Open one segment of a snapshot after ``position``. ``snapshot.as_of``: that of its begin.

        Positions of segments hold ``rows``, how many were read.
        """
