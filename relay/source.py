"""The contract between a database and the engine.

``relay.dynamodb``, ``relay.vitess`` and ``relay.mysql`` implement `Source`; the engine, Kafka and Avro know nothing
else about a database. `Source` lists shards and opens them, `ShardReader` reads one shard page by page, and
`SnapshotSource` reads the rows that a table already has. Each package exports a `SourceKind`, ``kind.KIND``.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from relay.change import Change, SchemaChange, Snapshot
from relay.records import Gap, Plan, Position, ReshardJournal, Shard, ShardCheckpoint, SnapshotPart, Start, StreamId
from relay.table import Column, TableSchema
from relay.token import EventToken

STREAMED_PAGE = 256 << 10
"""Bytes of changes, about, in one page of a shard whose changes arrive by themselves."""


@dataclass(frozen=True, slots=True)
class Page:
    """The changes of one read, in order, and how far the shard has been read once they are published."""

    shard: Shard
    changes: Sequence[Change]
    position: Position | None
    """Covers everything in ``changes`` and in earlier pages, or None if nothing was ever read."""
    token: EventToken | None
    """The timestamp of the last change read so far, even if ``start`` discarded it."""
    progress: float | None
    """Seconds up to which the shard has been read, by the source's clock and not clamped, or None if not known."""
    begun: float
    """The clock, in seconds, before the read."""
    records: int = 0
    """How many records the source sent, including any that ``start`` discards."""
    size: int = 0
    """Bytes of the changes."""
    full: bool = False
    """More is probably waiting: the next page is read at once."""
    rest: float = 0.0
    """Seconds from the beginning of this read to the next one, whatever `full` says, because the pace is limited."""
    finished: bool = False
    """The shard is closed and this page is its end."""
    gap: Gap | None = None
    """What the source no longer has. The changes of this page come after it."""
    at_head: bool = False
    """The shard is open and has been quiet for long, so nothing waits as far as a source without heads can tell."""
    behind: int = 0
    """How many changes are older than one they follow; their tokens carry the later time."""
    tables: Sequence[TableSchema] = ()
    """Schemas of the tables in ``changes``, from sources where they differ from page to page."""
    reached: float | None = None
    """Seconds: this page or an earlier one has all that was committed before. Only if the source knows its head."""
    journal: ReshardJournal | None = None
    """Why the shard ends and which shards continue it. It is set only with ``finished``."""
    schema_changes: Sequence[SchemaChange] = ()
    """The statements of the transactions that end in this page."""
    warning: str | None = None
    """What is wrong although the shard can be read, such as a server that does not answer, and since when (I10)."""

    @property
    def has_content(self) -> bool:
        """Whether something of it is published, besides a checkpoint."""
        return bool(self.changes or self.schema_changes)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A read that failed for a reason that passes by itself. The position has not moved."""

    shard: Shard
    begun: float
    reason: str


@dataclass(frozen=True, slots=True)
class UnknownShard:
    """A read that found that the source does not know the shard, or no longer knows it."""

    shard: Shard
    begun: float


ReadResult = Page | Unreadable | UnknownShard


@dataclass(frozen=True, slots=True)
class StartingPoints:
    """Where the config says that reading begins, decided once for each stream."""

    shards: Mapping[str, Start]
    """The start of each shard."""
    decided_at: float
    """Seconds since the epoch: the time of the plan. Heads of shards were taken just before it."""
    lost: Mapping[str, Position] = field(default_factory=dict)
    """Shards that should continue at a position and that the source has forgotten."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Where and how a shard is opened."""

    shard: Shard
    start: Start
    """Where reading begins if there is no checkpoint with a position."""
    checkpoint: ShardCheckpoint | None = None
    """The last committed one."""
    floor: int = 0
    """Seconds: no token gets an earlier timestamp."""
    read_until: float = 0.0
    """Seconds up to which the topic is complete; what the source has dropped since then is a gap."""
    parents: Mapping[str, ShardCheckpoint] = field(default_factory=dict)
    """How the parents ended, by shard."""
    keys: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    """By table that was ever relayed, its key columns as in its plan, hash columns first: it may no longer exist."""
    hashed: Mapping[str, int] = field(default_factory=dict)
    """By table, how many of its key columns choose the partition. Only if the source has journals."""
    is_awaited: bool = False
    """Somebody waits until the shard is read to its head."""
    is_closed: Callable[[], bool] = lambda: False
    """Whether the newest listing shows that the shard is closed. Any thread may ask."""

    @property
    def position(self) -> Position | None:
        """The position of the checkpoint, or None if nothing of the shard is published."""
        return self.checkpoint.position if self.checkpoint is not None else None

    @property
    def resume(self) -> Position | Start:
        """Where reading continues, or begins."""
        return self.start if self.position is None else self.position


class ShardReader(Protocol):
    """Reads one shard, in order. Used by one thread at a time."""

    shard: Shard
    streams: bool
    """Changes arrive by themselves: ``read`` waits for them, up to half a second, and is called again at once."""

    def close(self) -> None:
        """Close connections. Called once, by the thread that read last or by a later one."""

    def read(self) -> ReadResult:
        """Return the next page, after at most one call that waits on the network.

        Raises ``RelayError`` on what is final. The caller decides when to try again after `Unreadable`.
        """


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of a snapshot: number ``number`` of ``count``, read under the name ``shard``."""

    shard: Shard
    snapshot: Snapshot
    """``as_of`` is the snapshot's at its beginning."""
    number: int
    count: int
    position: Position | None = None
    """Where reading continues. It has ``rows``, the number of rows read."""
    part: SnapshotPart = field(default_factory=SnapshotPart)
    """What it reads, as ``measure`` named it."""
    published: Callable[[], Mapping[str, ShardCheckpoint]] = dict
    """Returns the committed checkpoints of the stream, by shard."""


class Measured(NamedTuple):
    """What a snapshot has to read: ``segments``, and an estimate of the ``rows``. ``parts``: one for each segment.

    ``left_out``: tables that cannot be read.
    """

    segments: int
    rows: int
    parts: Sequence[SnapshotPart] = ()
    left_out: Sequence[str] = ()


class SnapshotSource(Protocol):
    """Reads the rows of a source's tables beside its stream."""

    is_selective: bool
    """Whether the config names the tables, so that an added one may have rows already."""
    margin: float
    """Seconds between a READ and the changes it may replace: clocks differ, and times are rounded."""
    reads_at_once: int
    """How many segments a worker reads at once: more only where their reads wait for the network most of the time."""

    def is_initial(self, plan: Plan) -> bool:
        """Whether the reading of a stream with this ``plan`` begins with a snapshot."""

    def measure(self, published: Mapping[str, ShardCheckpoint], tables: Collection[str] | None = None) -> Measured:
        """Return what a snapshot has to read. Raises ``Unavailable``, ``RelayError`` for what it can never read.

        ``published``: the committed checkpoints of the stream, by shard. ``tables``: what to read; None for all.
        """

    def may_begin(self, as_of: int, published: Mapping[str, ShardCheckpoint]) -> bool:
        """Whether a READ as of ``as_of``, in seconds, cannot undo a change: it sees all with an earlier token."""

    def open(self, segment: Segment) -> ShardReader: ...


class Source(Protocol):
    """One entry of ``sources:``. ``connect`` comes first.

    The calls that may ask the database (``connect``, ``first``, ``following``, ``shards``, ``starting_points``, and
    ``measure`` of its snapshots) are made before the worker serves its group, or in other threads; ``connect`` never
    beside the others, except ``measure``. When ``connect`` raises, nothing has changed.
    """

    name: str
    start: str
    on_gap: Literal["fail", "skip", "resnapshot"]
    has_journals: bool
    """Whether the streams of parents announce their children, instead of a listing: see ``relay.stream.journals``."""

    @property
    def left_out(self) -> Mapping[str, str]:
        """The tables that the config does not name and that cannot be relayed, each with the reason. Never changed."""

    @property
    def clock(self) -> Callable[[], float]:
        """Returns seconds since the epoch by the database's clock, which dates changes: its servers are that far."""

    @property
    def snapshots(self) -> SnapshotSource | None:
        """Reads the rows that the tables already have, or None if this source cannot."""

    def close(self) -> None: ...

    def reload(self, entry: Any) -> None:
        """Apply this source's ``entry`` of a config that was read again. On ``RelayError`` nothing has changed."""

    def connect(self, label: str | None = None) -> StreamId:
        """Look up and verify the newest stream, or the one called ``label``. Raises ``Unavailable``."""

    def first(self) -> str:
        """Return the label of the stream in which ``start`` is: the connected one, or one before it that can be read.

        Raises ``Unavailable``.
        """

    def following(self) -> str:
        """Return the label of the stream that continues the connected one, or of that one. Raises as ``first``."""

    def tables(self) -> Sequence[TableSchema]: ...

    def dropped(self, keys: Mapping[str, Sequence[Sequence[str]]], hashed: Mapping[str, int]) -> Sequence[TableSchema]:
        """Return the tables, with their key columns only, that were relayed before and no longer exist.

        Tables that the config no longer wants are left out. ``keys``, ``hashed``: former tables', as in `Opening`.
        """

    def config_hash(self) -> str:
        """Return a hash of what identifies the data behind the source."""

    def starting_points(self, shards: Sequence[Shard]) -> StartingPoints:
        """Decide where reading a stream with ``shards`` begins, by the source's clock.

        Raises ``ConfigError`` if the configured start belongs to another stream, ``Unavailable``.
        """

    def shards(self) -> list[Shard]:
        """Return one complete listing; for a source with journals, the shards to begin with."""

    def open(self, opening: Opening) -> ShardReader: ...


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check. ``exit_code``: 0 if all is well, otherwise the exit code of the problem."""

    check: str
    detail: str
    exit_code: int = 0

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    def to_json(self) -> dict[str, Any]:
        return {"check": self.check, "ok": self.ok, "detail": self.detail}


@dataclass(frozen=True, slots=True)
class CheckedTable:
    """A table as a check of its source found it."""

    schema: TableSchema
    findings: Sequence[Finding] = ()
    for_copy: Sequence[Finding] = ()
    """Whether its changes have what a copy needs; empty if they always have."""
    columns: Sequence[Column] = ()
    """All that it has; empty if its rows may have others."""
    partial: str = ""
    """Why not every change has the row before and after it, and what to do; empty if every one has both."""


@dataclass(frozen=True, slots=True)
class CheckedSource:
    """A source as a check found it: what concerns all of it, and its tables.

    ``rows``: about how many its tables have, 0 if that is not known.
    """

    findings: Sequence[Finding]
    tables: Sequence[CheckedTable]
    rows: int = 0


class SourceRows(Protocol):
    """The rows that one table has now, each as the key and the image of a change. Methods raise ``Unavailable``."""

    schema: TableSchema

    def close(self) -> None: ...

    def all(self) -> Iterator[tuple[Mapping[str, Any], Any]]: ...

    def some(self, count: int) -> Iterator[tuple[Mapping[str, Any], Any]]:
        """Yield about ``count`` rows picked at random."""

    def of(self, keys: Sequence[Sequence[str]]) -> Iterator[tuple[Mapping[str, Any], Any]]:
        """Yield the rows of some keys, perhaps with others. ``keys``: as texts, binary in base64."""


class CachedItems(Protocol):
    """The items of one table that cache keys name. ``connect`` comes first. Methods raise ``Unavailable``."""

    def close(self) -> None: ...

    def connect(self) -> None: ...

    def primary_keys(self, cache_key: str) -> Sequence[Mapping[str, Any]]:
        """Return the primary keys of items that may have the cache key; none if there are too many."""

    def load(self, keys: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return the items of the keys that have one, by their identity."""

    def identity(self, item: Mapping[str, Any]) -> str:
        """Return a text that is equal for equal primary keys. Raises KeyError, TypeError or ValueError for none."""


@dataclass(frozen=True, slots=True)
class SourceKind:
    """What the relay and its commands do with an entry of ``sources:``, by its ``type``.

    The functions take the entry, and raise ``ConfigError`` and, except ``open``, ``Unavailable``. None if this kind of
    source cannot.
    """

    open: Callable[[Any], Source]
    find_tables: Callable[[Any], Iterable[str]]
    """Asks for the tables of an entry that does not name them."""
    check: Callable[[Any], CheckedSource]
    """Looks for all that the relay needs, and changes nothing."""
    rows: Callable[[Any, Callable[[], Sequence[str]]], Iterator[SourceRows]] | None = None
    """Opens the tables one after another. The second argument returns the shards that have not ended."""
    items: Callable[[Any, Iterable[str]], CachedItems] | None = None
    """For values of a cache that are items of the table. The second argument: the templates of their keys."""
    stream_token: Callable[[Any, str, Mapping[str, ShardCheckpoint], Plan], dict[str, Any]] | None = None
    """Returns the position of a reader of the stream with this label, as programs without the relay take it."""
