"""A source of a few changes, any of whose calls can be held up, and the worker that relays it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Literal

from relay.avro.registry import open_schemas
from relay.change import Change, Images, Operation, event_id
from relay.config import Config
from relay.config.topic_routes import DEFAULT, TopicClaims
from relay.engine.config_reload import ReloadedConfig
from relay.engine.connected_sources import ConnectedSources
from relay.engine.topic_writers import TopicWriters
from relay.engine.worker import Worker
from relay.errors import StreamGone
from relay.kafka import topics
from relay.kafka.publisher import Probe
from relay.kafka.settings import KafkaSettings
from relay.kafka.topic_writer import TopicWriter
from relay.observe.observer import Observer
from relay.process.slow_call import call_all
from relay.records import Shard, StreamId
from relay.source import LastPage, Opening, Page, PageCounts, ReadResult, ShardReader, SnapshotSource, StartingPoints
from relay.table import KeyColumn, TableSchema
from relay.token import EventToken
from tests.waiting import PATIENCE

CLAIMS = TopicClaims("test", DEFAULT, (), lambda _: {})

LABEL = "2026-01-01T00:00:00.000"


class ScriptedSource:
    """One change per shard, then empty pages, or the end of the shard if ``ends``. ``label``: of its newest stream."""

    start = "trim_horizon"
    on_gap: Literal["fail", "skip", "resnapshot"] = "fail"
    has_journals = False
    left_out: Mapping[str, str] = {}

    def __init__(self, name: str, shards: int = 1, *, ends: bool = False) -> None:
        self.name = name
        self.clock: Callable[[], float] = time.time
        self.stream = StreamId(name, LABEL)
        self.label = LABEL
        self.ends = ends
        self.snapshots: SnapshotSource | None = None
        # What `dropped` returns.
        self.gone: tuple[TableSchema, ...] = ()
        # Labels of streams that no longer exist.
        self.removed: set[str] = set()
        self.table = TableSchema(name, name, (KeyColumn("id", "S"),), 1)
        # By shard, the tables whose schemas its change uses.
        self.new_tables: dict[str, tuple[TableSchema, ...]] = {}
        # Of a config that was read again.
        self.entry: Any = None
        # Tables that a snapshot has found with a key.
        self.keyed: list[set[str]] = []
        # How often its shards were listed.
        self.listings = 0
        # How each shard was opened last.
        self.openings: dict[str, Opening] = {}
        self._shards = [Shard(f"shard-{number:05}") for number in range(shards)]
        # By name of a call: set once it may return, and once it was made.
        self._held: dict[str, threading.Event] = {}
        self._made: dict[str, threading.Event] = {}

    def lists(self, shards: Sequence[Shard]) -> None:
        """Let it have ``shards`` from now on."""
        self._shards = [*shards]

    def hold(self, call: str) -> Callable[[], None]:
        """Let ``call`` wait from now on. Returns what lets it go."""
        self._held[call], self._made[call] = threading.Event(), threading.Event()
        return self._held[call].set

    def wait_for(self, call: str) -> None:
        """Wait until a call that is held was made."""
        assert self._made[call].wait(PATIENCE), f"{call} was not called"

    def arrive(self, call: str) -> None:
        if call in self._held:
            self._made[call].set()
            assert self._held[call].wait(PATIENCE), f"nobody lets {call} go"

    def close(self) -> None:
        """Nothing is open."""

    def reload(self, entry: Any) -> None:
        self.entry = entry

    def has_keys(self, tables: Set[str]) -> None:
        self.keyed.append({*tables})

    def connect(self, label: str | None = None) -> StreamId:
        self.arrive("connect")
        self.stream = StreamId(self.name, label or self.label)
        return self.stream

    def first(self) -> str:
        return self.stream.label

    def following(self) -> str:
        return self.label

    def tables(self) -> Sequence[TableSchema]:
        return (self.table,)

    def dropped(self, keys: Mapping[str, Sequence[Sequence[str]]], hashed: Mapping[str, int]) -> Sequence[TableSchema]:
        return self.gone

    def config_hash(self) -> str:
        return "scripted"

    def starting_points(self, shards: Sequence[Shard]) -> StartingPoints:
        self.arrive("starting_points")
        return StartingPoints({shard.id: {"type": "trim_horizon"} for shard in shards}, self.clock())

    def shards(self) -> list[Shard]:
        self.listings += 1
        self.arrive("shards")
        if self.stream.label in self.removed:
            raise StreamGone(f"stream {self.stream.label} does not exist")
        return list(self._shards)

    def open(self, opening: Opening) -> ShardReader:
        self.openings[opening.shard.id] = opening
        return ScriptedReader(self, opening)


class ScriptedReader:
    """Reads one shard of a `ScriptedSource`."""

    streams = False

    def __init__(self, source: ScriptedSource, opening: Opening) -> None:
        self.shard = opening.shard
        self._source = source
        self._stream = source.stream
        self._is_read = opening.position is not None

    def close(self) -> None:
        """Nothing is held."""

    def read(self) -> ReadResult:
        begun = time.time()
        changes, self._is_read = [] if self._is_read else [self._change()], True
        return Page(
            shard=self.shard,
            changes=changes,
            position={"type": "scripted", "sequence": 1},
            token=changes[0].token if changes else None,
            progress=begun,
            begun=begun,
            counts=PageCounts(len(changes)),
            tables=self._source.new_tables.get(self.shard.id, ()) if changes else (),
            end=LastPage() if self._source.ends else None,
        )

    def _change(self) -> Change:
        source, shard = self._source, self._stream.qualified(self.shard.id)
        table = source.new_tables.get(self.shard.id, (source.table,))[0]
        return Change(
            event_id=event_id(shard, "1", table.table, self.shard.id.encode(), 0),
            operation=Operation.INSERT,
            source=source.name,
            table=table.table,
            key={"id": self.shard.id},
            old=None,
            new={"id": self.shard.id} if table.row else "{}",
            images=Images.NEW_AND_OLD,
            token=EventToken(1_700_000_000, shard, "DynamoDB/1"),
            committed_at=1_700_000_000_000_000,
        )


def config_of(name: str, servers: str, sources: Sequence[ScriptedSource], **keys: Any) -> Config:
    """Return a config whose sources have the names of ``sources``, which take their places, and ``keys``."""
    entries = [
        {"name": source.name, "type": "dynamodb", "table": source.name, "region": "us-east-1", **keys}
        for source in sources
    ]
    kafka = {"bootstrap_servers": servers, "partitions": 1}
    return Config.model_validate({"name": name, "kafka": kafka, "sources": entries})


def worker_of(
    config: Config,
    sources: Sequence[ScriptedSource],
    schemas: Any,
    *,
    make: Callable[[TableSchema], None] = lambda table: None,
    observer: Observer | None = None,
    probe: Probe | None = None,
    reloaded: ReloadedConfig | None = None,
) -> Worker:
    """Return a worker of ``sources``. ``make``: called with each table before its writer is made."""

    def writer(table: TableSchema) -> TopicWriter:
        make(table)
        return TopicWriter(table, config.topic(table.source), config.kafka.partitions, "hash", schemas)

    tables = [source.table for source in sources]
    writers = TopicWriters(writer)
    writers.add(call_all("schemas", [partial(writer, table) for table in tables]))
    writers.use(tables)
    topics.create_missing(topics.connect(config), config, [table.table for table in tables])
    reloaded = reloaded or ReloadedConfig(config, lambda: config)
    return Worker(
        KafkaSettings.from_config(config),
        {source.connect(): source for source in sources},
        writers,
        observer=observer or Observer(config.name),
        config=reloaded,
        connections=ConnectedSources(reloaded),
        probe=probe,
    )


@contextmanager
def running(
    config: Config,
    sources: Sequence[ScriptedSource],
    *,
    make: Callable[[TableSchema], None] = lambda table: None,
    schemas: Any = None,
    observer: Observer | None = None,
    reloaded: ReloadedConfig | None = None,
) -> Iterator[Worker]:
    """Run a worker of ``sources`` in a thread, with the schemas topic if no ``schemas`` are given.

    Raises what it raised.
    """
    with closing(open_schemas_of(config)) as in_topic:
        worker = worker_of(config, sources, schemas or in_topic, make=make, observer=observer, reloaded=reloaded)
        errors: list[BaseException] = []

        def run() -> None:
            try:
                worker.run()
            except BaseException as error:  # raised below
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield worker
        finally:
            worker.stop()
            thread.join(PATIENCE)
            assert not thread.is_alive()
        if errors:
            raise errors[0]


def open_schemas_of(config: Config) -> Any:
    """Open the schemas topic of ``config``, which is created if it is missing."""
    topics.create_missing(topics.connect(config), config, [])
    return open_schemas(config)
