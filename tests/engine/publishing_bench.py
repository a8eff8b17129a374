"""A commit path on scripted producers, whose transactions a test can look at, and abort."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from itertools import cycle
from types import SimpleNamespace
from typing import Any, cast

from relay.change import Change, Images, Operation
from relay.engine.publishing import Publishing
from relay.engine.topic_writers import TopicWriters
from relay.errors import RelayError
from relay.kafka.settings import KafkaSettings
from relay.observe.health import Liveness
from relay.observe.metrics import Metrics
from relay.reading.reader_pool import OpenShard
from relay.records import CommittedRecords, Gap, ReshardJournal, Shard, ShardCheckpoint, ShardState, StreamId
from relay.source import Page, PageCounts
from relay.table import KeyColumn, TableSchema

STREAM = StreamId("orders", "label")
TABLE = TableSchema("orders", "orders", (KeyColumn("id", "S"),), 1)
SETTINGS = KafkaSettings(
    "shop", {}, {}, 15.0, "shop.checkpoints", "shop.gaps", "shop.watermarks", "shop.relay", ddl="shop.ddl"
)

Record = tuple[str, bytes | None]


class Broker:
    """What scripted producers have committed, as transactions of (topic, value); ``fails``: the next commits do so.

    ``unseen``: the committed records of the checkpoints, by key, that the view does not show yet.
    """

    def __init__(self) -> None:
        self.transactions: list[list[Record]] = []
        self.unseen: dict[bytes, bytes | None] = {}
        self.fenced_by: list[list[int]] = []
        self.fails: list[Exception] = []
        self.opened = 0

    def on(self, topic: str) -> list[bytes | None]:
        return [value for transaction in self.transactions for sent, value in transaction if sent == topic]


class ScriptedPublisher:
    """Holds records until they are committed; an aborted transaction leaves nothing."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.open = False
        self._sent: list[Record] = []
        self._checkpoints: dict[bytes, bytes | None] = {}

    def begin(self) -> None:
        self.open = True

    def send(self, topic: str, value: bytes | None, key: bytes, partition: int, headers: Any = ()) -> None:
        assert self.open
        self._sent.append((topic, value))
        if topic == SETTINGS.checkpoints:
            self._checkpoints[key] = value

    def flush(self) -> None: ...

    def commit(self, offsets: Sequence[int], metadata: Any) -> None:
        if self.broker.fails:
            raise self.broker.fails.pop(0)
        self.broker.transactions.append(self._sent)
        self.broker.fenced_by.append(list(offsets))
        self.broker.unseen.update(self._checkpoints)
        self.abort()

    def abort(self) -> None:
        self._sent, self._checkpoints, self.open = [], {}, False

    def close(self) -> None:
        self.abort()


class ScriptedProducers:
    """Opens two scripted producers, as a worker has them."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.name = "shop-0"
        self.stop_by = lambda: math.inf
        self.tell: Callable[[str], None] = print

    def open(self) -> None:
        self.broker.opened += 1
        self._turns = cycle([ScriptedPublisher(self.broker) for _ in range(2)])

    def __next__(self) -> ScriptedPublisher:
        return next(self._turns)

    def start_over(self, *, under_a_new_name: bool) -> None:
        if under_a_new_name:
            self.name = "shop-other"
        self.open()

    def close(self) -> None: ...

    def release(self) -> None:
        self.name = ""


class Writer:
    """Sends the id of a change."""

    table = TABLE
    topic = "shop.orders"
    partitions = 6
    dead_lettered = 0

    def spread(self, partitions: int) -> None:
        self.partitions = partitions

    def send_page(self, publisher: ScriptedPublisher, changes: list[Change], resume: int) -> int:
        for change in changes:
            publisher.send("shop.orders", change.event_id.encode(), b"", 0)
        return len(changes)

    def send_to_all_partitions(
        self, publisher: ScriptedPublisher, change: Change, resume: int, partitions: range | None = None
    ) -> None:
        publisher.send("shop.orders", b"everywhere", b"", 0)


class Owner:
    """A source that writes a checkpoint with every page."""

    def __init__(self, on_gap: str = "skip") -> None:
        self.source = SimpleNamespace(name="orders", on_gap=on_gap)
        self.stream = STREAM
        self.confirmed: list[Page] = []
        self.before_gap: ShardCheckpoint | None = None
        self.refuses_tables = False
        self.refuses_journal = False
        # Why shards were put aside.
        self.aside: list[str] = []

    def checkpoint(self, shard: OpenShard, page: Page) -> ShardCheckpoint:
        gap = page.gap.id if page.gap else None
        return ShardCheckpoint(ShardState.READING, page.position, gap=gap, progress=1.0)

    def checkpoint_before_gap(self, page: Page) -> ShardCheckpoint | None:
        return self.before_gap

    def check_tables(self, tables: Sequence[TableSchema]) -> None:
        if self.refuses_tables:
            raise RelayError("its key has changed")

    def check_journal(self, shard: Shard, journal: ReshardJournal) -> None:
        if self.refuses_journal:
            raise RelayError("it merges shards that are not read")

    def list_soon(self) -> None: ...

    def put_aside(self, shard: OpenShard, why: RelayError) -> None:
        shard.closed = True
        self.aside.append(str(why))

    def confirm(self, page: Page) -> None:
        self.confirmed.append(page)

    def resume_timestamp(self) -> int:
        return 0


class Bench:
    """A ``Publishing`` over scripted producers, and a shard to publish for."""

    def __init__(self, on_gap: str = "skip") -> None:
        self.broker = Broker()
        self.liveness = Liveness()
        self.owner = Owner(on_gap)
        # The partitions whose ends were waited for.
        self.waited_for: list[set[int]] = []
        self.records = CommittedRecords()
        # By topic, over how many partitions the plan spreads the changes, as was requested.
        self.partitions: dict[str, int] = {}
        self.view = SimpleNamespace(
            of=self.records.of,
            altered_of=self.records.altered_of,
            partitions_of=lambda source: self.partitions,
            requested_of=lambda source: self.partitions,
            require_end=lambda partitions, timeout: self.waited_for.append(set(partitions)),
            watch=self._watch,
            check_stop=lambda: None,
            topic=SETTINGS.checkpoints,
        )
        self.producers = ScriptedProducers(self.broker)
        self.group = SimpleNamespace(offsets=sorted, metadata=None, barrier_timeout=1.0, owned=set(), view=self.view)
        observer = SimpleNamespace(metrics=Metrics(), liveness=self.liveness)
        writers = TopicWriters(lambda table: cast(Any, Writer()), [TABLE])
        self.publishing = Publishing(
            SETTINGS,
            cast(Any, self.group),
            {"orders": cast(Any, self.owner)},
            writers,
            cast(Any, self.producers),
            observer=cast(Any, observer),
        )

    def _watch(self, partitions: Set[int]) -> Callable[[], bool]:
        self.waited_for.append(set(partitions))
        return lambda: not self.broker.unseen

    def show(self) -> None:
        """Let the view show all that is committed."""
        for key, value in self.broker.unseen.items():
            self.records.apply(key, value)
        self.broker.unseen.clear()

    def shard(self, name: str = "s") -> OpenShard:
        return OpenShard(cast(Any, None), STREAM.shard_key(name), "orders")


def page(number: int, *, shard: str = "s", gap: Gap | None = None) -> Page:
    change = Change(
        f"change-{number}", Operation.INSERT, "orders", "orders", {"id": "a"}, None, "{}", Images.NEW, None, 1
    )
    return Page(Shard(shard), [change], {"sequence": number}, None, 1.0, 0.0, counts=PageCounts(1, 1), gap=gap)


def gap(found_at: float = 0.0, seconds: int = 1) -> Gap:
    return Gap("orders", "label", "s", "trimmed", {"type": "at_time", "seconds": seconds}, None, found_at)


def positions(bench: Bench) -> list[Any]:
    return [ShardCheckpoint.from_json(value).position for value in bench.broker.on("shop.checkpoints") if value]
