"""The items that cache keys name: primary keys from cache keys by their templates, and the items by primary keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from relay.config.template import Template
from relay.dynamodb import describe
from relay.dynamodb.values import image_json, key_attribute, key_value

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

    from relay.config import DynamoDBConfig
    from relay.table import KeyColumn

_MOST_WAYS = 16  # to take a cache key apart; one with more has no known item
# AWS, "Service, account, and table quotas": digits of a number and its magnitude; bytes of a hash and of a range key.
_DIGITS, _LONGEST = 38, 126
_LONGEST_KEYS = (2048, 1024)


class ItemsOfKeys:
    """The items of one DynamoDB table that cache keys name by its templates. Connects when first used."""

    def __init__(self, source: DynamoDBConfig, templates: Iterable[str]) -> None:
        self._source = source
        self._templates = [*map(Template.parse, templates)]
        self._client: DynamoDBClient | None = None
        self._key: tuple[KeyColumn, ...] = ()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def connect(self) -> None:
        if self._client is not None:
            return
        self._client, streams = describe.clients(self._source, probe=True)
        with closing(streams):
            self._key = describe.describe(self._client, self._source, streams, patience=0.0).key

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
                    key = {
                        column.name: _typed(column.type, columns[column.name], longest)
                        for column, longest in zip(self._key, _LONGEST_KEYS, strict=False)
                    }
                    found[image_json(key)] = key
        return list(found.values())

    def load(self, keys: Iterable[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
        assert self._client is not None
        loaded = describe.load(self._client, self._source, keys)
        return {self.identity(item): item for item in loaded}

    def identity(self, item: Mapping[str, Mapping[str, Any]]) -> str:
        parts = [key_value({column.type: item[column.name][column.type]}) for column in self._key]
        return repr(parts)


def _typed(kind: str, text: str, longest: int) -> dict[str, Any]:
    """Return the key attribute that has this text in a cache key. Raises ValueError if none that is legal has."""
    found = key_attribute(kind, text)
    if kind == "N":
        is_legal = len(text.strip("-0.").replace(".", "")) <= _DIGITS and len(text) <= _LONGEST
    else:
        is_legal = 0 < len(text.encode() if kind == "S" else found[kind]) <= longest
    if not is_legal:
        raise ValueError(f"{text!r} is not the text of a key attribute")
    return found
