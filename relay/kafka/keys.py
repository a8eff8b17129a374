"""Kafka keys and partitions. Golden files pin the bytes: with others, items would change partitions (I2)."""

from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any, Literal, TypeVar

import orjson
from confluent_kafka import murmur2

from relay.errors import RelayError
from relay.table import TableSchema
from relay.types.columns import ColumnKind

T = TypeVar("T")


def partition(hash_bytes: bytes, partitions: int) -> int:
    """Return the partition that Java's default partitioner chooses for a key with these bytes: non-negative murmur2."""
    return murmur2(hash_bytes, partitions)


class KeyCodec:
    """Encodes the Kafka keys of one table. ``mode``: ``hash`` for the canonical bytes of the hash key, ``item`` for the
    full primary key as JSON."""

    def __init__(self, table: TableSchema, mode: Literal["hash", "item"]) -> None:
        self._table = table
        self.mode = mode
        self._hash_columns = [(column.name, _canonical(column.type)) for column in table.key[: table.hash_columns]]
        self._item_columns = [(column.name, _item_json(column.type)) for column in table.key]

    def hash_bytes(self, key: Mapping[str, Any]) -> bytes:
        """Return the bytes that choose the partition: a single column as is, several each with a length prefix."""
        try:
            if len(self._hash_columns) == 1:
                name, canonical = self._hash_columns[0]
                return canonical(key[name])
            parts = [canonical(key[name]) for name, canonical in self._hash_columns]
        except (KeyError, TypeError, ValueError, AttributeError) as fault:
            raise self._invalid_key(key, fault) from fault
        return b"".join([len(part).to_bytes(4, "big") + part for part in parts])

    def hash_and_record_key(self, key: Mapping[str, Any]) -> tuple[bytes, bytes]:
        hash_bytes = self.hash_bytes(key)
        return hash_bytes, hash_bytes if self.mode == "hash" else self.kafka_key(key)

    def kafka_key(self, key: Mapping[str, Any]) -> bytes:
        if self.mode == "hash":
            return self.hash_bytes(key)
        try:
            return orjson.dumps({name: shown(key[name]) for name, shown in self._item_columns})
        except (KeyError, TypeError, ValueError, AttributeError) as fault:
            raise self._invalid_key(key, fault) from fault

    def _invalid_key(self, key: Mapping[str, Any], fault: Exception) -> RelayError:
        columns = ", ".join(f"{column.name} ({column.type})" for column in self._table.key)
        what = f"source {self._table.source}: {dict(key)!r} is not a key of table {self._table.table}"
        return RelayError(f"{what}, whose key columns are {columns}: {fault!r}")


def _canonical(kind: str) -> Callable[[Any], bytes]:
    if kind in ("S", "N", ColumnKind.STRING):
        return str.encode
    if kind in ("B", ColumnKind.BYTES):
        return partial(_checked, bytes)
    return _sql_bytes


def _checked(kind: type[T], value: Any) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value


def _sql_bytes(value: Any) -> bytes:
    return b"%d" % value if type(value) is int else _sql_text(value).encode()


def _sql_text(value: Any) -> str:
    """Return a value as SQL prints it, with times in UTC."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Decimal) and value.is_finite():
        return f"{value:f}"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    raise TypeError(f"{value!r} cannot be part of a key")


def _item_json(kind: str) -> Callable[[Any], Any]:
    if kind in ("S", "N"):
        return lambda value: {kind: _checked(str, value)}
    if kind == "B":
        return lambda value: {kind: b64encode(_checked(bytes, value)).decode()}
    if kind == ColumnKind.BYTES:
        return lambda value: b64encode(_checked(bytes, value)).decode()
    if kind == ColumnKind.STRING:
        return partial(_checked, str)
    if kind in (ColumnKind.INT, ColumnKind.LONG, ColumnKind.BOOLEAN):
        return partial(_checked, int)
    return _sql_text
