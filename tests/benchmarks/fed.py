"""Runs a worker on changes made in its own process, to measure only the worker.

``python -m tests.benchmarks.fed FEED``, the JSON of a `Feed`. At the end it prints ``{"peak_mb": ..., "cpu_s": ...}``.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Literal

import orjson

from relay.avro.registry import open_schemas
from relay.change import Change, Transaction
from relay.config import Config
from relay.engine.config_reload import ReloadedConfig
from relay.engine.connected_sources import ConnectedSources
from relay.engine.topic_writers import TopicWriters
from relay.engine.worker import Worker
from relay.kafka import topics
from relay.kafka.settings import KafkaSettings
from relay.kafka.topic_writer import TopicWriter
from relay.observe.observer import Observer
from relay.records import Shard, StreamId
from relay.source import LastPage, Opening, Page, PageCounts, ShardReader, StartingPoints
from relay.table import TableSchema
from relay.token import EventToken
from tests.benchmarks.changes import STREAM, TABLE, change

_KEPT = 1000  # changes that are made once, and sent repeatedly with other positions


@dataclass(frozen=True)
class Feed:
    """``pages`` of each shard, with ``page`` changes each, whose images are ``image`` bytes longer than usual.

    ``per_second``: the rate of live changes over all shards; 0 for a backlog. ``one_transaction``: all changes are one
    transaction at the source.
    """

    name: str
    servers: str
    shards: int
    pages: int
    page: int
    image: int = 0
    per_second: float = 0.0
    one_transaction: bool = False

    @property
    def changes(self) -> int:
        return self.shards * self.pages * self.page

    @property
    def topic(self) -> str:
        return f"{self.name}.orders"

    def to_json(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    def config(self) -> Config:
        return Config.model_validate(
            {
                "name": self.name,
                "kafka": {"bootstrap_servers": self.servers},
                # Replaced by the `FedSource`.
                "sources": [{"name": "orders", "type": "dynamodb", "table": "orders", "region": "us-east-1"}],
            }
        )


class FedSource:
    """A source whose changes are made in advance."""

    name = STREAM.source
    start = "trim_horizon"
    on_gap: Literal["fail", "skip", "resnapshot"] = "fail"
    snapshots = None
    clock = staticmethod(time.time)

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.begun = time.time()
        self._changes = [self._made(number) for number in range(_KEPT)]

    def _made(self, number: int) -> Change:
        made = change(number)
        more = f',"more":{{"S":"{"x" * self.feed.image}"}}}}'
        made.new = str(made.new)[:-1] + more
        return made

    has_journals = False
    left_out: Mapping[str, str] = {}

    def reload(self, entry: Any) -> None:
        """It has no settings to change."""

    def has_keys(self, tables: Set[str]) -> None:
        """Nothing is left out."""

    def close(self) -> None:
        """Nothing is open."""

    def connect(self, label: str | None = None) -> StreamId:
        return STREAM

    def first(self) -> str:
        return STREAM.label

    def following(self) -> str:
        return STREAM.label

    def tables(self) -> Sequence[TableSchema]:
        return (TABLE,)

    def dropped(self, keys: Mapping[str, Sequence[Sequence[str]]], hashed: Mapping[str, int]) -> Sequence[TableSchema]:
        return ()

    def config_hash(self) -> str:
        return "fed"

    def starting_points(self, shards: Sequence[Shard]) -> StartingPoints:
        return StartingPoints({shard.id: {"type": "trim_horizon"} for shard in shards}, self.clock())

    def shards(self) -> list[Shard]:
        return [Shard(f"shard-{number:04}") for number in range(self.feed.shards)]

    def open(self, opening: Opening) -> ShardReader:
        return FedReader(self, opening.shard)

    def page(self, shard: Shard, first: int, size: int) -> list[Change]:
        """Return ``size`` changes from ``first`` on, as copies, because the worker writes to them."""
        now = int(time.time() * 1_000_000)
        qualified = STREAM.qualified(shard.id)
        transaction = Transaction("one", first, False) if self.feed.one_transaction else None
        return [
            Change(
                made.event_id,
                made.operation,
                made.source,
                made.table,
                made.key,
                made.old,
                made.new,
                made.images,
                EventToken(1_700_000_000, qualified, f"DynamoDB/{first + n}"),
                now,
                transaction=transaction,
                attributes=made.attributes,
            )
            for n in range(size)
            for made in [self._changes[(first + n) % _KEPT]]
        ]


class FedReader:
    """Reads one shard of a `FedSource`."""

    streams = False

    def __init__(self, source: FedSource, shard: Shard) -> None:
        self.source = source
        self.shard = shard
        self._next = 0

    def close(self) -> None:
        """Nothing is held."""

    def read(self) -> Page:
        feed, begun = self.source.feed, time.time()
        end = feed.pages * feed.page
        size = min(feed.page, end - self._next)
        if feed.per_second:
            due = int((begun - self.source.begun) * feed.per_second / feed.shards)
            size = min(max(0, due - self._next), size)
        changes = self.source.page(self.shard, self._next, size)
        self._next += size
        return Page(
            shard=self.shard,
            changes=changes,
            position={"type": "fed", "next": self._next},
            token=changes[-1].token if changes else None,
            # A backlog is old, or its first page would count as caught up.
            progress=begun if feed.per_second else 1_700_000_000.0,
            begun=begun,
            counts=PageCounts(size, sum(len(str(one.new)) + len(str(one.old)) for one in changes)),
            pause=None if feed.per_second else 0.0,
            end=LastPage() if self._next >= end else None,
        )


def main(text: str) -> None:
    feed = Feed(**orjson.loads(text))
    config = feed.config()
    admin = topics.connect(config)
    topics.create_missing(admin, config, [TABLE.table])
    with closing(open_schemas(config)) as schemas:
        outbox = TopicWriter(TABLE, feed.topic, config.kafka.partitions, "hash", schemas)
    outboxes = TopicWriters(lambda _: outbox, [TABLE])
    source = FedSource(feed)
    live = feed.per_second > 0
    reloaded = ReloadedConfig(config, lambda: config)
    worker = Worker(
        KafkaSettings.from_config(config),
        {STREAM: source},
        outboxes,
        observer=Observer(feed.name),
        config=reloaded,
        connections=ConnectedSources(reloaded),
        until_caught_up=not live,
    )
    if live:
        threading.Timer(feed.changes / feed.per_second + 3.0, worker.stop).start()
    worker.run()
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(orjson.dumps({"peak_mb": _peak() / 1024, "cpu_s": used.ru_utime + used.ru_stime}).decode())


def _peak() -> int:
    """Return the peak resident memory in KB. ru_maxrss would include the process that this one was forked from."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))


if __name__ == "__main__":
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    main(sys.argv[1])
