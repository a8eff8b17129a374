"""The present items of a table, read consistently: all items, some, or those with certain keys, also cache keys."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from relay.config.template import Template
from relay.dynamodb import config_match
from relay.dynamodb.account_pace import Pace
from relay.dynamodb.describe import TableCalls
from relay.dynamodb.records import key_of
from relay.dynamodb.source import DynamoDBSource
from relay.dynamodb.stream_calls import ShardNotFound, retried, translated
from relay.dynamodb.table_snapshots import python_key
from relay.dynamodb.values import image_json, key_attribute, key_value
from relay.errors import Unavailable
from relay.process.connections import closed_on_error

FoundRow = tuple[dict[str, str | bytes], Any]
"""The key and the image of an item, in the form of a change."""

if TYPE_CHECKING:
    from relay.config import DynamoDBConfig
    from relay.table import KeyColumn

_MOST_SEGMENTS = 1_000_000
_MOST_WAYS = 16  # ways to split a cache key; beyond that, its item is unknown
# AWS, "Service, account, and table quotas": digits and magnitude of a number; bytes of a hash and of a range key.
_DIGITS, _LONGEST = 38, 126
_LONGEST_KEYS = (2048, 1024)


class DynamoDBTableRows:
    """The published items of one source's table. Connects when created. All methods raise ``Unavailable``."""

    def __init__(self, config: DynamoDBConfig) -> None:
        with closed_on_error(DynamoDBSource(config)) as self._source:
            self._source.connect()
        self.schema = self._source.table
        self._of = self._source.snapshots
        self._wanted = config_match.wanted_key(self.schema.key, config.conditions(self.schema.table))

    def close(self) -> None:
        self._source.close()

    def all(self) -> Iterator[FoundRow]:
        more: dict[str, Any] = {}
        while True:
            page = self._scan(more)
            yield from self._published(page["Items"])
            if not page.get("LastEvaluatedKey"):
                return
            more = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    def some(self, count: int) -> Iterator[FoundRow]:
        """Yield up to ``count`` items: the first one in each of as many segments of the table."""
        segments = min(count, _MOST_SEGMENTS)
        for segment in random.sample(range(segments), segments):
            page = self._scan({"Segment": segment, "TotalSegments": segments, "Limit": 1})
            yield from self._published(page["Items"])

    def of(self, keys: Sequence[Sequence[str]]) -> Iterator[FoundRow]:
        columns = self.schema.key
        typed = [{c.name: {c.type: part} for c, part in zip(columns, key, strict=True)} for key in keys]
        return self._published(self._of.calls.load(map(python_key, typed)))

    def _published(self, items: Iterable[Mapping[str, Mapping[str, Any]]]) -> Iterator[FoundRow]:
        for item in items:
            key = key_of(item, self.schema)
            if self._wanted.items() <= key.items():
                yield key, self._of.carried(item)

    def _scan(self, more: Mapping[str, Any]) -> Any:
        table = self.schema.table

        def scan() -> Any:
            with translated(table):
                return self._of.calls.dynamodb.scan(TableName=table, ConsistentRead=True, **more)

        try:
            return retried(scan, f"source {self.schema.source}: reading the table {table}", Pace())
        except ShardNotFound as error:
            raise Unavailable(f"source {self.schema.source}: table {table!r} no longer exists") from error


class ItemsOfKeys:
    """The items of one DynamoDB table that cache keys name by its templates. Connects when first used."""

    def __init__(self, source: DynamoDBConfig, templates: Iterable[str]) -> None:
        self._source = source
        self._templates = [*map(Template.parse, templates)]
        self._calls: TableCalls | None = None
        self._key: tuple[KeyColumn, ...] = ()

    def close(self) -> None:
        if self._calls is not None:
            self._calls.close()

    def connect(self) -> None:
        if self._calls is None:  # a client that was made without credentials would never have any
            with closed_on_error(TableCalls(self._source, probe=True)) as calls:
                self._key = calls.describe(patience=0.0).key
            self._calls = calls

    def primary_keys(self, cache_key: str) -> list[dict[str, dict[str, Any]]]:
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for template in self._templates:
            if not {column.name for column in self._key} <= set(template.columns):
                continue
            ways = list(islice(template.matches(cache_key), _MOST_WAYS + 1))
            if len(ways) > _MOST_WAYS:
                return []
            for columns in ways:
                with suppress(ValueError):
                    limits = zip(self._key, _LONGEST_KEYS, strict=False)
                    key = {column.name: _typed(column.type, columns[column.name], most) for column, most in limits}
                    found[image_json(key)] = key
        return list(found.values())

    def load(self, keys: Iterable[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
        assert self._calls is not None
        return {self.identity(item): item for item in self._calls.load(keys)}

    def identity(self, item: Mapping[str, Mapping[str, Any]]) -> str:
        return repr([key_value({column.type: item[column.name][column.type]}) for column in self._key])


def _typed(kind: str, text: str, longest: int) -> dict[str, Any]:
    """Return the key attribute with this text in a cache key. Raises ValueError if no legal one has it."""
    found = key_attribute(kind, text)
    if kind == "N":
        is_legal = len(text.strip("-0.").replace(".", "")) <= _DIGITS and len(text) <= _LONGEST
    else:
        is_legal = 0 < len(text.encode() if kind == "S" else found[kind]) <= longest
    if not is_legal:
        raise ValueError(f"{text!r} is not the text of a key attribute")
    return found
