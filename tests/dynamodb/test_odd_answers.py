"""From the bytes of GetRecords' answers to committed transactions: the compiled core against plain Python."""

from __future__ import annotations

import logging
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest

from relay.change import Change, ChangeParts
from relay.config.protection import ColumnRule
from relay.dynamodb.columns import TypedRows
from relay.dynamodb.protection import ProtectedItems
from relay.dynamodb.raw_records import read_answer
from relay.dynamodb.reader import DynamoDBShardReader
from relay.dynamodb.records import RecordFormat
from relay.dynamodb.stream_calls import StreamSession
from relay.dynamodb.values import image_json
from relay.engine.publishing import Publishing
from relay.engine.repeated_aborts import RepeatedAborts
from relay.engine.topic_writers import TopicWriters
from relay.errors import RelayError
from relay.kafka.dead_letters import DeadLetterWriter
from relay.kafka.publisher import Aborted
from relay.kafka.settings import KafkaSettings
from relay.kafka.topic_writer import TopicWriter
from relay.observe.health import Liveness
from relay.observe.metrics import Metrics
from relay.reading.reader_pool import OpenShard
from relay.records import Shard, ShardCheckpoint, ShardState, StreamId
from relay.source import Opening, Page, ReadResult
from relay.table import TableSchema
from relay.token import EventToken
from tests import needs
from tests.dynamodb.odd_answers import NOW, OddAnswers
from tests.examples import examples
from tests.kafka.plain_records import PARTITIONS, AnySchema

SETTINGS = KafkaSettings(
    "shop", {}, {}, 15.0, "shop.checkpoints", "shop.gaps", "shop.watermarks", "shop.relay", ddl="shop.ddl"
)
COLUMNS = {"s": "string", "n": "decimal(20,4)"}


@pytest.fixture(autouse=True)
def core() -> None:
    needs.compiled_core()


class AnsweringClient:
    """A client of DynamoDB Streams that reads written answers. ``expires``: the calls before which iterators expire."""

    def __init__(self, bodies: Sequence[bytes], expires: set[int]) -> None:
        self._bodies = bodies
        self._expires = expires
        self._calls = self._at = 0

    def get_shard_iterator(self, ShardIteratorType: str, **_: Any) -> dict[str, Any]:
        if ShardIteratorType == "TRIM_HORIZON":
            self._at = 0
        return {"ShardIterator": str(self._at)}

    def get_records(self, ShardIterator: str, **_: Any) -> dict[str, Any]:
        self._calls += 1
        if self._calls in self._expires:
            raise ClientError({"Error": {"Code": "ExpiredIteratorException"}}, "GetRecords")
        try:
            self._at = int(ShardIterator)
            body = self._bodies[self._at]
        except (ValueError, IndexError):
            raise ClientError({"Error": {"Code": "ResourceNotFoundException"}}, "GetRecords") from None
        answer = read_answer(body)
        self._at += 1
        return answer


class SourceShard:
    """One shard: its answers, and the settings of its source."""

    def __init__(self, seed: str, name: str) -> None:
        self.answers = OddAnswers(seed, name)
        draw = self.random = random.Random(f"{seed}/settings")
        self.form: dict[str, Any] = {}
        table = self.answers.table
        match draw.choice(["simple"] * 7 + ["rows", "protected", "wanted"]):
            case "rows":
                self.form["rows"] = TypedRows(COLUMNS)
                table = replace(table, row=self.form["rows"].columns)
            case "protected":
                rules = {"s": ColumnRule("mask"), "n": ColumnRule("hash", "salt"), "é": ColumnRule("exclude")}
                self.form["protected"] = ProtectedItems(rules, image_json)
                table = replace(table, protected=tuple((column, rule.kind) for column, rule in rules.items()))
            case "wanted":
                self.form["wanted"] = {table.key[0].name: "k1"}
        self.table: TableSchema = table
        self.expires = set(draw.sample(range(1, 8), draw.choice([0, 0, 0, 1, 2])))
        checkpoint = ShardCheckpoint(
            ShardState.READING, token=EventToken(NOW - 90_000, f"{name}/label/s", "DynamoDB/1")
        )
        self.opening: dict[str, Any] = {
            "start": draw.choice([{"type": "trim_horizon"}, {"since": NOW - 50.5}]),
            "checkpoint": draw.choice([None, checkpoint]),
            "floor": draw.choice([0, NOW - 90_000, NOW - 50, NOW + 100, 1 << 40]),
        }
        self.topic: dict[str, Any] = {
            "key": draw.choice(["hash", "item"]),
            "tombstones": draw.random() < 0.3,
            "largest": draw.choice([1200, 2500, 1 << 20, 1 << 20]),
            "on_unencodable": draw.choice(["fail", "dead_letter"]),
        }
        self.letters = draw.choice([1500, 100_000])

    def reader(self) -> DynamoDBShardReader:
        name = self.table.source
        form = RecordFormat(self.table, f"{name}/label/s", **self.form)
        client: Any = AnsweringClient(self.answers.bodies, self.expires)
        session = StreamSession(client, "arn", clock=lambda: NOW)
        opening = Opening(Shard("s"), read_until=NOW, **self.opening)
        return DynamoDBShardReader(session, StreamId(name, "label"), opening, form)

    def writer(self) -> TopicWriter:
        letters = DeadLetterWriter("shop.dead_letters", self.letters)
        return TopicWriter(
            self.table, f"shop.{self.table.source}", PARTITIONS, schemas=AnySchema(), dead_letters=letters, **self.topic
        )


class Owner:
    """A source that writes a checkpoint with every page."""

    def __init__(self, name: str) -> None:
        self.source = SimpleNamespace(name=name, on_gap="skip")
        self.stream = StreamId(name, "label")
        self.confirmed = 0

    def checkpoint(self, shard: Any, page: Page) -> ShardCheckpoint:
        return ShardCheckpoint(ShardState.READING, page.position, page.token, progress=page.progress)

    def checkpoint_before_gap(self, page: Page) -> ShardCheckpoint | None:
        return None

    def check_tables(self, tables: Sequence[TableSchema]) -> None: ...
    def list_soon(self) -> None: ...
    def put_aside(self, shard: Any, why: RelayError) -> None: ...

    def confirm(self, page: Page) -> None:
        self.confirmed += 1

    def resume_timestamp(self) -> int:
        return NOW + self.confirmed


class KeepingPublisher:
    """Keeps what is committed; what is aborted, too, apart from it. ``fails``: the next commits do so."""

    def __init__(self) -> None:
        self.committed: list[list[Any]] = []
        self.aborted: list[list[Any]] = []
        self.fails: list[Exception] = []
        self.open = False
        self._sent: list[Any] = []

    def begin(self) -> None:
        self.open = True

    def send(self, topic: str, value: bytes | None, key: bytes, partition: int, headers: Any = ()) -> None:
        if topic != SETTINGS.watermarks:  # by the clock
            self._sent.append((topic, value, key, partition, list(headers)))

    def flush(self) -> None: ...

    def commit(self, offsets: Sequence[int], metadata: Any) -> None:
        if self.fails:
            raise self.fails.pop()
        self.committed.append(self._sent)
        self._sent, self.open = [], False

    def abort(self) -> None:
        self.aborted.append(self._sent)
        self._sent, self.open = [], False

    def close(self) -> None: ...


class OneProducer:
    """Gives the same producer to each transaction."""

    name = "shop-0"

    def __init__(self, publisher: KeepingPublisher) -> None:
        self._publisher = publisher
        self.stop_by = lambda: math.inf

    def open(self) -> None: ...

    def __next__(self) -> KeepingPublisher:
        return self._publisher


class KeepingHandler(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != "relay.native":
            self.lines.append(f"{record.name} {record.levelname} {record.getMessage()}")


@contextmanager
def way(native: str) -> Iterator[list[str]]:
    """Take one of both ways, by a clock that passes with each look. Returns the lines of the log."""
    times = iter(range(NOW * 10**9, NOW * 10**10, 10**6))
    handler, logger = KeepingHandler(), logging.getLogger("relay")
    level = logger.level
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAY_NATIVE", native)
        patch.setattr("time.time_ns", lambda: next(times))
        patch.setattr("time.time", lambda: float(NOW + 1))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            yield handler.lines
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)


def read(shard: SourceShard) -> tuple[list[Page], list[Any]]:
    """Return the pages of a shard, and all that the reads returned, or what the last of them raised."""
    reader = shard.reader()
    pages: list[Page] = []
    results: list[Any] = []
    for _ in range(12):
        try:
            result: ReadResult = reader.read()
        except RelayError as error:
            results.append((type(error), str(error)))
            break
        if isinstance(result, Page):
            pages.append(result)
            result = replace(result, changes=[_shown(change) for change in result.changes])
        results.append(result)
        if isinstance(result, Page) and result.finished:
            break
    return pages, results


def _shown(change: Change) -> Any:
    """Return a change with the types of its parts, and the order of its members."""
    kinds = [type(getattr(change, name)) for name in change.__slots__]
    # Plain Python sets the times of publishing in the change itself.
    return replace(change), kinds, list((change.key or {}).items()), list(change.attributes.items())


def joined(pages: Sequence[tuple[int, Page]], draw: random.Random) -> list[tuple[int, Page]]:
    """Return pages of several sources, in which a page may also have the changes of another source."""
    found: list[tuple[int, Page]] = []
    for at, page in pages:
        if found and found[-1][0] != at and page.changes and draw.random() < 0.3:
            before = found.pop()[1]
            parts = [
                part
                for each in (before, page)
                for part in (each.changes.parts if isinstance(each.changes, ChangeParts) else [list(each.changes)])
            ]
            page = replace(page, changes=ChangeParts(parts))
        found.append((at, page))
    return found


class Outcome:
    """What comes of ``shards`` on one way. ``seed``: of the order of their pages, of aborts and of commits."""

    def __init__(self, shards: Sequence[SourceShard], seed: str, native: str) -> None:
        draw = random.Random(seed)
        with way(native) as self.log:
            readings = [read(shard) for shard in shards]
            self.reads = [results for _, results in readings]
            self.blocks = Counter(type(page.changes) for pages, _ in readings for page in pages if page.changes)
            order = [at for at, (pages, _) in enumerate(readings) for _ in pages]
            draw.shuffle(order)
            waiting = [iter(pages) for pages, _ in readings]
            self._publish(shards, joined([(at, next(waiting[at])) for at in order], draw), draw)

    def _publish(self, shards: Sequence[SourceShard], pages: Sequence[tuple[int, Page]], draw: random.Random) -> None:
        self.publisher = KeepingPublisher()
        made = {shard.table: shard for shard in shards}
        writers = TopicWriters(lambda table: made[table].writer(), made)
        producers = OneProducer(self.publisher)
        view = SimpleNamespace(checkpoints={}, topic=SETTINGS.checkpoints, requested_of=lambda source: {})
        group = SimpleNamespace(offsets=sorted, metadata=None, barrier_timeout=1.0, owned=set(), view=view)
        metrics, liveness = Metrics(), Liveness()
        owners = {shard.table.source: Owner(shard.table.source) for shard in shards}
        publishing = Publishing(
            SETTINGS,
            cast(Any, group),
            cast(Any, owners),
            writers,
            cast(Any, producers),
            observer=cast(Any, SimpleNamespace(metrics=metrics, liveness=liveness)),
        )
        publishing._aborts = RepeatedAborts(SETTINGS, list, liveness, sleep=lambda _: None)
        opened = [
            OpenShard(cast(Any, None), owner.stream.shard_key("s"), owner.source.name) for owner in owners.values()
        ]
        self.error: Any = None
        self.states: list[Any] = []
        try:
            for at, page in pages:
                publishing.page(opened[at], page)
                self._look(publishing)
                if draw.random() < 0.3:
                    self.publisher.fails.append(Aborted("a rebalance"))
                    with pytest.raises(Aborted):
                        publishing.commit()
                    publishing.again(Aborted("a rebalance"))
                    self._look(publishing)
                if draw.random() < 0.5:
                    publishing.commit()
            publishing.commit()
        except RelayError as error:
            self.error = type(error), str(error)
        self.dead_lettered = {place: writer.dead_lettered for place, writer in writers.items()}
        self.metrics = [
            line
            for line in generate_latest(metrics.registry).decode().splitlines()
            if "_commit_seconds" not in line and not line.startswith("#")
        ]
        self.confirmed = [owner.confirmed for owner in owners.values()]

    def _look(self, publishing: Publishing) -> None:
        transaction = publishing.transaction
        self.states.append((transaction.size, transaction.yielding, transaction.lag, transaction.takes_rows))

    def parts(self) -> Mapping[str, Any]:
        return {
            "reads": self.reads,
            "committed": self.publisher.committed,
            "aborted": self.publisher.aborted,
            "error": self.error,
            "states": self.states,
            "dead letters": self.dead_lettered,
            "metrics": self.metrics,
            "confirmed": self.confirmed,
            "log": self.log,
        }


def compare(seed: int) -> Counter[Any]:
    """Compare both ways. Return of how many pages the core has made the changes, and of how many it has not."""
    shards = [SourceShard(f"{seed}/{at}", f"shop{at}") for at in range(1 + seed % 2)]
    plain, compiled = (Outcome(shards, f"{seed}/outcome", native) for native in ("off", "required"))
    for (name, expected), found in zip(plain.parts().items(), compiled.parts().values(), strict=True):
        assert found == expected, f"{name} of seed {seed}"
    assert ChangeParts not in plain.blocks
    return compiled.blocks


@settings(deadline=None, max_examples=examples(100))
@given(st.integers(0, 1 << 40))
def test_both_ways_publish_the_same_of_any_answers(seed: int) -> None:
    """I1, I2, I3, I8: also after aborts, and what is said and counted of it."""
    compare(seed)


def test_many_of_those_answers_are_made_by_the_core() -> None:
    """Or the comparison would be one of plain Python with itself."""
    made: Counter[Any] = Counter()
    for seed in range(30):
        made += compare(seed)
    assert made[ChangeParts] > made[list] > 0
