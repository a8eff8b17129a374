"""The items that a table has now, read consistently: all of them, some, or those of some keys.

Rules: AWS, "Scan", "BatchGetItem" and "DynamoDB read consistency".
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from relay.change import Uncarriable
from relay.dynamodb import config_match, describe
from relay.dynamodb.pace import Pace
from relay.dynamodb.session import ShardNotFound, retried, translated
from relay.dynamodb.source import DynamoDBSource
from relay.dynamodb.values import binary, key_value
from relay.errors import Unavailable

if TYPE_CHECKING:
    from relay.config import DynamoDBConfig

_MOST_SEGMENTS = 1_000_000

FoundRow = tuple[Mapping[str, Any], Any]
"""The key and the image of an item, as a change has them."""


class DynamoDBTableRows:
    """The published items of the table of one source. Connects when it is made. All methods raise ``Unavailable``."""

    def __init__(self, config: DynamoDBConfig) -> None:
        self._config = config
        with ExitStack() as stack:
            source = stack.enter_context(closing(DynamoDBSource(config)))
            source.connect()
            self._stack = stack.pop_all()
        self.schema = source.table
        self._client, self._image = source.snapshots.client, source.snapshots.image
        self._wanted = config_match.wanted_key(self.schema.key, config.conditions(self.schema.table))

    def __repr__(self) -> str:
        return f"<DynamoDBTableRows[{self.schema.table}]>"

    def close(self) -> None:
        self._stack.close()

    def all(self) -> Iterator[FoundRow]:
        """Yield all items, page by page."""
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
        """Yield the items of the keys that have one. ``keys``: the texts of their attributes; binary in base64."""
        columns = self.schema.key
        typed = [
            {
                column.name: {column.type: binary(part) if column.type == "B" else part}
                for column, part in zip(columns, key, strict=True)
            }
            for key in keys
        ]
        return self._published(describe.load(self._client, self._config, typed))

    def _published(self, items: Iterable[Mapping[str, Mapping[str, Any]]]) -> Iterator[FoundRow]:
        for item in items:
            key = {column.name: key_value(item[column.name]) for column in self.schema.key}
            if not self._wanted.items() <= key.items():
                continue
            try:
                yield key, self._image(item)
            except ValueError as error:
                yield key, Uncarriable(item, str(error))

    def _scan(self, more: Mapping[str, Any]) -> Any:
        table = self.schema.table

        def scan() -> Any:
            with translated(table):
                return self._client.scan(TableName=table, ConsistentRead=True, **more)

        try:
            return retried(scan, f"source {self._config.name}: reading the table {table}", Pace())
        except ShardNotFound as error:
            raise Unavailable(f"source {self._config.name}: table {table!r} no longer exists") from error
