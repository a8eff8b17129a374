"""Batches of changes for a table of a copy, without Spark and Kafka: what a decoded batch has of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from relay.change import MARK, Images, Operation, Snapshot
from relay.kafka.group_offsets import Offsets
from relay.table import WITH_DECIMALS
from relay.token import EventToken
from spark_consumers.copy import TableCopies, apply
from spark_consumers.fold import ChangeHead, Place, VerdictCounts
from spark_consumers.records import Layout, RecordField
from spark_consumers.sinks import delta
from spark_consumers.sinks.copy_table import CopyTable
from spark_consumers.sinks.target import TargetTable
from spark_consumers.table_consumer import TableBatch

SHARD = "shop/shop/-"
FOREVER = 1e10  # seconds


def layout(key: Mapping[str, str], row: Mapping[str, str] | None, table: str = "orders") -> Layout:
    """Return a layout of columns and their types: ``N`` for a DynamoDB number in a key, ``sql date`` for one of SQL."""
    fields = None if row is None else tuple(_field(*column) for column in row.items())
    return Layout("shop", table, tuple(_field(*column) for column in key.items()), fields)


def _field(name: str, column: str) -> RecordField:
    if column.startswith("sql "):
        sql = column.removeprefix("sql ")
        kind = "timestamp" if sql == "timestamp" else "string"
        return RecordField(name, name, kind, kind, sql in WITH_DECIMALS, sql)
    kind = {"N": "string", "json": "string", "rest": "string"}.get(column, column)
    return RecordField(name, name, kind, column)


@dataclass(frozen=True)
class Published:
    """A change on the topic with its image. ``layout``: its number."""

    head: ChangeHead
    image: Mapping[str, Any] | None = None
    layout: int = 0


def change(
    number: int, key: Sequence[str], image: Mapping[str, Any] | None, operation: Operation | None = None, **more: Any
) -> Published:
    """Return the change at offset ``number``: without an image a DELETE. ``more``: of its head, and its layout."""
    kind = operation or (Operation.UPDATE if image is not None else Operation.DELETE)
    place = Place(more.pop("topic", "shop.orders"), more.pop("partition", 0), number)
    number_of_layout = more.pop("layout", 0)
    token = EventToken(1000 + number, SHARD, f"MariaDB/0-1-{number}")
    new = (place.partition, place.offset) if image is not None else None
    head = ChangeHead(tuple(key), place, f"e{number}", kind, new, Images.NEW_AND_OLD, token, None, {})
    return Published(replace(head, **more), image, number_of_layout)


def read(number: int, key: Sequence[str], image: Mapping[str, Any], as_of: int, snapshot: str = "s") -> Published:
    """Return a row of a snapshot."""
    return change(number, key, image, Operation.READ, token=None, snapshot=Snapshot(snapshot, as_of))


def mark(number: int, kind: str, as_of: int, snapshot: str = "s") -> Published:
    """Return the begin or the end of a snapshot."""
    return change(number, (), None, Operation.READ, token=None, snapshot=Snapshot(snapshot, as_of), mark=kind)


class Batch:
    """Stands in for a decoded batch of one table's changes."""

    def __init__(self, changes: Sequence[Published]) -> None:
        self.changes = changes

    def where(self, condition: str) -> Batch:
        topic = condition.removeprefix("topic = ")
        return self if topic == condition else Batch([c for c in self.changes if topic == f"'{c.head.place.topic}'"])

    def select(self, *columns: str) -> Batch:
        return self

    def toLocalIterator(self) -> Iterator[tuple[int, int, int, str]]:
        for each in self.changes:
            if each.image is not None:
                yield *each.head.partition_offset, each.layout, json.dumps(each.image, ensure_ascii=False)


def in_spark(session: SparkSession, changes: Sequence[Published]) -> DataFrame:
    """Return a decoded batch of ``shop.orders`` in Spark, with the columns that a copy reads."""
    columns = dict(column.split(" ") for column in COLUMNS.split(", "))
    return delta.local_frame(session, map(row_of, changes), columns).persist()


COLUMNS = (
    "status string, source string, table string, topic string, partition int, offset long, layout int, "
    "key_texts array<string>, event_id string, operation string, images string, token string, new string, "
    "snapshot_id string, snapshot_as_of long, attributes map<string,string>"
)


def row_of(each: Published) -> tuple[Any, ...]:
    """Return the values of ``COLUMNS``."""
    head = each.head
    image = None if each.image is None else json.dumps(each.image, ensure_ascii=False)
    snapshot = (None, None) if head.snapshot is None else (head.snapshot.id, head.snapshot.as_of)
    attributes = {**head.attributes, **({} if head.mark is None else {MARK: head.mark})}
    key = list(head.key) if head.mark is None and head.operation is not Operation.TRUNCATE else None
    token = None if head.token is None else head.token.to_json()
    where = ("change", "shop", "orders", head.place.topic, *head.partition_offset, each.layout)
    return (*where, key, head.event_id, head.operation.value, head.images.value, token, image, *snapshot, attributes)


def end_of(changes: Sequence[Published], partitions: int = 1) -> Offsets:
    """Return the end of a batch whose topics have so many partitions with records, and one without."""
    ends = {str(number): 1_000_000 for number in range(partitions)} | {str(partitions): 0}
    return {each.head.place.topic: ends for each in changes}


def play(
    table: TargetTable,
    layouts: Mapping[int, Layout] | Layout,
    *changes: Published,
    session: SparkSession | None = None,
    partitions: int = 1,
) -> VerdictCounts:
    """Apply a batch as the consumer does; without ``session`` by the rule alone, without Spark.

    ``partitions``: of each topic.
    """
    numbered = layouts if isinstance(layouts, Mapping) else {0: layouts}
    if session is not None:
        copies = TableCopies(lambda source, name: table, FOREVER)
        known = [numbered.get(number, layout({}, None)) for number in range(max(numbered) + 1)]
        batch = TableBatch(in_spark(session, changes), known, {}, end_of(changes, partitions))
        plan = copies.plan(batch)
        found = plan.write([])
        plan.close()
        batch.records.unpersist()
        assert found.pop("collected") == 0
        return VerdictCounts(**found)
    counts = VerdictCounts()
    given: Any = Batch(changes)
    copied = CopyTable(table, FOREVER)
    copied.prepare(given, numbered)
    apply(given, copied, [each.head for each in changes], counts, end_of(changes, partitions))
    return counts
