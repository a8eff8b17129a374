"""The items that a table has now, read consistently: all of them, some, or the items of some keys.

Rules: AWS, "Scan", "BatchGetItem" and "DynamoDB read consistency".
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from relay.dynamodb import config_match, describe
from relay.dynamodb.pace import Pace
from relay.dynamodb.records import key_of
from relay.dynamodb.session import ShardNotFound, retried, translated
from relay.dynamodb.source import DynamoDBSource
from relay.dynamodb.values import binary
from relay.errors import Unavailable

FoundRow = tuple[dict[str, str | bytes], Any]
"""The key and the image of an item, as a change has them."""

if TYPE_CHECKING:
    from relay.config import DynamoDBConfig

_MOST_SEGMENTS = 1_000_000


class DynamoDBTableRows:
    """The published items of the table of one source. Connects when it is made. All methods raise ``Unavailable``."""

    def __init__(self, config: DynamoDBConfig) -> None:
        with ExitStack() as stack:
            source = stack.enter_context(closing(DynamoDBSource(config)))
            source.connect()
            self._stack = stack.pop_all()
        self.schema = source.table
        self._of = source.snapshots
        self._wanted = config_match.wanted_key(self.schema.key, config.conditions(self.schema.table))

    def close(self) -> None:
        self._stack.close()

    def all(self) -> Iterator[FoundRow]:
        more: dict[str, Any] = {}
        while True:
            page = self._scan(more)
            yield from self._published(page["Items"])
            if not page.get("LastEvaluatedKey"):
                return
            more = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    def some(self, count: int) -> Iterator[FoundRow]:
        """Yield up to ``count`` items: the first of each of as many segments of the table."""
        segments = min(count, _MOST_SEGMENTS)
        for segment in random.sample(range(segments), segments):
            page = self._scan({"Segment": segment, "TotalSegments": segments, "Limit": 1})
            yield from self._published(page["Items"])

    def of(self, keys: Sequence[Sequence[str]]) -> Iterator[FoundRow]:
        columns = self.schema.key
        typed = [
            {
                column.name: {column.type: binary(part) if column.type == "B" else part}
                for column, part in zip(columns, key, strict=True)
            }
            for key in keys
        ]
        return self._published(describe.load(self._of.client, self._of.config, typed))

    def _published(self, items: Iterable[Mapping[str, Mapping[str, Any]]]) -> Iterator[FoundRow]:
        for item in items:
            key = key_of(item, self.schema)
            if self._wanted.items() <= key.items():
                yield key, self._of.carried(item)

    def _scan(self, more: Mapping[str, Any]) -> Any:
        table = self.schema.table

        def scan() -> Any:
            with translated(table):
                return self._of.client.scan(TableName=table, ConsistentRead=True, **more)

        try:
            return retried(scan, f"source {self._of.config.name}: reading the table {table}", Pace())
        except ShardNotFound as error:
            raise Unavailable(f"source {self._of.config.name}: table {table!r} no longer exists") from error
