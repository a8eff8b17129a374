"""The contract between a database and the engine; nothing else knows about a database.

`Source` lists shards and opens them, `ShardReader` reads one shard page by page, and `SnapshotSource` the rows that a
table already has. The package of each database exports a `SourceKind`, ``kind.KIND``.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from relay.change import Change, SchemaChange, Snapshot
from relay.records import Gap, Plan, Position, ReshardJournal, Shard, ShardCheckpoint, SnapshotPart, Start, StreamId
from relay.table import Column, TableSchema
from relay.token import EventToken

STREAMED_PAGE = 256 << 10  # approximate bytes of changes in one page of a shard that pushes its changes


@dataclass(frozen=True, slots=True)
class PageCounts:
    records: int = 0  # sent by the source, including any that ``start`` discards
    size: int = 0  # bytes
    behind: int = 0  # changes that are older than one before them; their tokens carry the later time


@dataclass(frozen=True, slots=True)
class LastPage:
    """The last page of a shard. ``journal``: why it ends and which shards continue it, if its source has journals."""

    journal: ReshardJournal | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """The changes of one read, in order, and how far the shard has been read once they are published."""

    shard: Shard
    changes: Sequence[Change]
    position: Position | None  # the position after ``changes`` and all earlier pages, or None if nothing was ever read
    token: EventToken | None  # the timestamp of the last change read so far, even if ``start`` discarded it
    progress: float | None  # seconds up to which it was read, by the source's clock, not clamped; or None
    begun: float  # the time before the read, by the source's clock
    counts: PageCounts = PageCounts()
    # Seconds from the beginning of this read to the next: 0 if more is probably waiting. None: the pool decides.
    pause: float | None = None
    end: LastPage | None = None  # set if the shard is closed and this is its last page
    gap: Gap | None = None  # changes that the source has dropped; the changes of this page come after them
    at_head: bool = False  # open, but long quiet, so nothing waits as far as a source without heads can tell
    tables: Sequence[TableSchema] = ()  # of the tables in ``changes``, if they differ from page to page
    reached: float | None = None  # all committed before it was read, in seconds, if the source knows its head
    schema_changes: Sequence[SchemaChange] = ()  # the statements of the transactions that end in this page
    warning: str | None = None  # a problem although it can be read, such as a server that does not answer

    @property
    def finished(self) -> bool:
        return self.end is not None

    @property
    def journal(self) -> ReshardJournal | None:
        return self.end.journal if self.end is not None else None

    @property
    def has_content(self) -> bool:
        """Whether the page publishes anything besides a checkpoint."""
        return bool(self.changes or self.schema_changes)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A read that failed for a temporary reason. The position has not moved."""

    shard: Shard
    begun: float
    reason: str


@dataclass(frozen=True, slots=True)
class UnknownShard:
    """A read that found that the source does not know the shard (any more)."""

    shard: Shard
    begun: float


ReadResult = Page | Unreadable | UnknownShard


@dataclass(frozen=True, slots=True)
class StartingPoints:
    """Where the config says reading begins, decided once for each stream."""

    shards: Mapping[str, Start]  # the start of each shard
    decided_at: float  # when the plan was made, in seconds since the epoch, just after the heads were read
    lost: Mapping[str, Position] = field(default_factory=dict)  # shards whose position the source has dropped


@dataclass(frozen=True, slots=True)
class Opening:
    """Where and how a shard is opened."""

    shard: Shard
    start: Start  # where reading begins if there is no checkpoint with a position
    checkpoint: ShardCheckpoint | None = None  # the last committed checkpoint, or None
    floor: int = 0  # the lowest timestamp that a token may get, in seconds
    read_until: float = 0.0  # seconds up to which the topic is complete; what was dropped since then is a gap
    parents: Mapping[str, ShardCheckpoint] = field(default_factory=dict)  # how the parents ended, by shard
    keys: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    """Key columns, hash columns first, of each table that was ever relayed; it may no longer exist."""
    hashed: Mapping[str, int] = field(default_factory=dict)  # how many key columns choose the partition, with journals
    is_awaited: bool = False  # whether somebody waits until the shard is read to its head
    is_closed: Callable[[], bool] = lambda: False  # whether the newest listing has it closed; any thread may call it

    @property
    def position(self) -> Position | None:
        """The position of the checkpoint, or None if no part of the shard was published yet."""
        return self.checkpoint.position if self.checkpoint is not None else None

    @property
    def resume(self) -> Position | Start:
        """Where reading continues, or begins."""
        return self.start if self.position is None else self.position


class ShardReader(Protocol):
    """Reads one shard, in order. Used by one thread at a time."""

    shard: Shard
    # Whether the source pushes changes: ``read`` waits up to half a second for them, and is called again at once.
    streams: bool

    def close(self) -> None:
        """Close connections. Called once, by the last thread that read or a later one."""

    def read(self) -> ReadResult:
        """Return the next page, after one call on the network. Raises ``RelayError`` for what a retry cannot repair."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of a snapshot: number ``number`` of ``count``, read under the name ``shard``."""

    shard: Shard
    snapshot: Snapshot  # its ``as_of`` was set when the snapshot began
    number: int
    count: int
    position: Position | None = None  # where reading continues; its ``rows`` is the number of rows already read
    part: SnapshotPart = field(default_factory=SnapshotPart)  # what the segment reads, as ``measure`` named it
    published: Callable[[], Mapping[str, ShardCheckpoint]] = dict  # the stream's committed checkpoints


class Measured(NamedTuple):
    """What a snapshot has to read, in ``segments``, with an estimate of its ``rows``."""

    segments: int
    rows: int
    parts: Sequence[SnapshotPart] = ()  # one for each segment
    left_out: Sequence[str] = ()  # tables that cannot be read


class SnapshotSource(Protocol):
    """Reads the rows of a source's tables beside its stream."""

    is_selective: bool  # whether the config names the tables: a table added there may already have rows
    margin: float  # seconds between a READ and older changes that it may replace: clocks differ, and times are rounded
    reads_at_once: int  # segments that a worker reads at once: more only where reads mostly wait for the network

    def is_initial(self, plan: Plan) -> bool:
        """Whether reading a stream with this ``plan`` begins with a snapshot."""

    def measure(self, published: Mapping[str, ShardCheckpoint], tables: Collection[str] | None = None) -> Measured:
        """Return what a snapshot has to read. Raises ``Unavailable``, or ``RelayError`` for what can never be read.

        ``published``: the committed checkpoints of the stream, by shard. ``tables``: what to read; None for all.
        """

    def may_begin(self, as_of: int, published: Mapping[str, ShardCheckpoint]) -> bool:
        """Whether a READ as of ``as_of``, in seconds, is safe: it sees every change that has an earlier token."""

    def open(self, segment: Segment) -> ShardReader: ...


class Source(Protocol):
    """One entry of ``sources:``. Call ``connect`` before anything else.

    The calls that may ask the database (``connect``, ``first``, ``following``, ``shards``, ``starting_points``, and
    ``measure`` of its snapshots) run before the worker serves its group, or in other threads. ``connect`` may run at
    the same time as ``measure``, but not as the others. When ``connect`` raises, nothing has changed.
    """

    name: str
    start: str
    on_gap: Literal["fail", "skip", "resnapshot"]
    has_journals: bool  # whether journals of parents announce children: see ``relay.stream.journals``

    @property
    def left_out(self) -> Mapping[str, str]:
        """The tables that cannot be relayed and that the config does not name, with the reasons. Never changed."""

    def has_keys(self, tables: Set[str]) -> None:
        """Leave out none of ``tables`` for want of a key: each has one, in every shard."""

    @property
    def clock(self) -> Callable[[], float]:
        """Returns seconds since the epoch by the database's clock, which also dates its changes."""

    @property
    def snapshots(self) -> SnapshotSource | None:
        """Reads the existing rows of the tables; None if this source cannot."""

    def close(self) -> None: ...

    def reload(self, entry: Any) -> None:
        """Apply this source's ``entry`` of a config that was read again. After a ``RelayError`` nothing has changed."""

    def connect(self, label: str | None = None) -> StreamId:
        """Look up and verify the newest stream, or the one called ``label``. Raises ``Unavailable``."""

    def first(self) -> str:
        """Return the label of the readable stream that contains ``start``. Raises ``Unavailable``."""

    def following(self) -> str:
        """Return the label of the stream after the connected one, or of the connected one. Raises as ``first`` does."""

    def tables(self) -> Sequence[TableSchema]: ...

    def dropped(self, keys: Mapping[str, Sequence[Sequence[str]]], hashed: Mapping[str, int]) -> Sequence[TableSchema]:
        """Return the tables that were relayed before and are not among `tables`, with their key columns only.

        Tables that the config no longer wants are left out. ``keys``, ``hashed``: see `Opening`.
        """

    def config_hash(self) -> str:
        """Return a hash of what identifies the data behind the source."""

    def starting_points(self, shards: Sequence[Shard]) -> StartingPoints:
        """Decide where reading begins. Raises ``ConfigError`` for a start in another stream, and ``Unavailable``."""

    def shards(self) -> list[Shard]:
        """Return one complete listing of the shards; for a source with journals, the shards to begin with."""

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
    """A table as the check of its source found it."""

    schema: TableSchema
    findings: Sequence[Finding] = ()
    for_copy: Sequence[Finding] = ()  # what a copy needs and the table's changes lack
    columns: Sequence[Column] = ()  # all columns of the table; empty if its rows may have others
    seen: Collection[str] = ()  # names found in a sample of rows, if rows may have other columns
    partial: str = ""  # why some changes lack the row before or after, and what to do; empty if every change has both


@dataclass(frozen=True, slots=True)
class CheckedSource:
    """A source as a check found it. ``rows``: the approximate rows of its tables; 0 if unknown."""

    findings: Sequence[Finding]
    tables: Sequence[CheckedTable]
    rows: int = 0


class SourceRows(Protocol):
    """The current rows of one table, each as the key and the image of a change. Methods raise ``Unavailable``."""

    schema: TableSchema

    def close(self) -> None: ...

    def all(self) -> Iterator[tuple[Mapping[str, Any], Any]]: ...

    def some(self, count: int) -> Iterator[tuple[Mapping[str, Any], Any]]:
        """Yield about ``count`` rows picked at random."""

    def of(self, keys: Sequence[Sequence[str]]) -> Iterator[tuple[Mapping[str, Any], Any]]:
        """Yield the rows with these ``keys``, and perhaps others. Keys are texts, binary ones in base64."""


class CachedItems(Protocol):
    """The items of one table that cache keys name. Call ``connect`` first. Methods raise ``Unavailable``."""

    def close(self) -> None: ...

    def connect(self) -> None: ...

    def primary_keys(self, cache_key: str) -> Sequence[Mapping[str, Any]]:
        """Return the primary keys of items that may have the cache key, or nothing if there are too many."""

    def load(self, keys: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return the items that exist for ``keys``, by their identity."""

    def identity(self, item: Mapping[str, Any]) -> str:
        """Return a text that identifies the primary key. Raises KeyError, TypeError or ValueError without one."""


@dataclass(frozen=True, slots=True)
class SourceKind:
    """What the relay and its commands can do with an entry of ``sources:`` of one ``type``.

    The functions take the entry. They raise ``ConfigError`` and, except ``open``, ``Unavailable``. A function is None
    if this kind of source does not support it.
    """

    open: Callable[[Any], Source]
    find_tables: Callable[[Any], Iterable[str]]  # finds the tables of an entry that names none
    check: Callable[[Any], CheckedSource]  # checks for everything that the relay needs, and changes nothing
    rows: Callable[[Any, Callable[[], Sequence[Opening]], Iterable[str]], Iterator[SourceRows]]
    """Opens tables of the entry, the third argument, one after another. The second returns the unfinished shards.

    Raises ``RelayError`` for a table that does not exist or is not relayed.
    """
    items: Callable[[Any, Iterable[str]], CachedItems] | None = None
    """Opens the tables whose items are values of a cache. The second argument: the templates of their keys."""
    stream_token: Callable[[Any, str, Mapping[str, ShardCheckpoint], Plan], dict[str, Any]] | None = None
    """Returns a reader's position in the stream with this label, as programs without the relay accept it."""
