"""Records as Debezium's connectors give them through an Avro converter: schemas, keys and values.

``before``, ``after``, ``source``, ``transaction``, ``op`` and the times, in the order and under the names that
Debezium's MySQL connector has. What else a change has is in its headers. The types are in ``relay.types.connect``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import orjson

from relay.avro import connect_values
from relay.avro.columns import NULL, PRESENT, Writer, long, text, write_bytes, write_string
from relay.avro.encode import FAULTS, Unencodable, optional, row_bytes
from relay.avro.schema import change_schema
from relay.change import Change, Operation, Uncarriable, refusal
from relay.config import Config
from relay.config.sources import DynamoDBConfig, SourceConfig
from relay.errors import RelayError
from relay.table import TableSchema
from relay.types.columns import ColumnKind
from relay.types.connect import ConnectType, Semantic, avro_name, connect_type, one_name

_OPERATIONS = {Operation.INSERT: "c", Operation.UPDATE: "u", Operation.DELETE: "d", Operation.TRUNCATE: "t"}
_SNAPSHOT = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
_TEXT, _LONG = ["null", "string"], ["null", "long"]
_MANNER = "exactly in `envelope: debezium`"
_DYNAMODB_KEYS = {"S": write_string, "N": write_string, "B": write_bytes}


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """A source. ``connector``: its type. ``database``: or keyspace; empty for DynamoDB. ``version``: the relay's."""

    connector: str
    name: str
    database: str
    version: str

    @classmethod
    def of(cls, entry: SourceConfig, version: str = "") -> Self:
        return cls(entry.type, entry.name, "" if isinstance(entry, DynamoDBConfig) else entry.database, version)


TypedKey = Callable[[Mapping[str, Any]], Mapping[str, Any]]

# The fields of `source` behind the ones that all connectors have: name, type, and what a change has there.
_Field = tuple[str, Any, Callable[[Change, SourceInfo], bytes]]
_SOURCES: dict[str, tuple[str, tuple[_Field, ...]]] = {
    "mysql": (
        "io.debezium.connector.mysql",
        (
            ("table", _TEXT, lambda change, _: PRESENT + text(change.table)),
            ("server_id", "long", lambda change, _: b"\x00"),
            ("gtid", _TEXT, lambda change, _: optional(change.transaction.id if change.transaction else None, text)),
            ("file", "string", lambda change, _: b"\x00"),
            ("pos", "long", lambda change, _: b"\x00"),
            ("row", "int", lambda change, _: long(change.transaction.order if change.transaction else 0)),
            ("thread", _LONG, lambda change, _: NULL),
            ("query", _TEXT, lambda change, _: NULL),
        ),
    ),
    "vitess": (
        "io.debezium.connector.vitess",
        (
            ("keyspace", "string", lambda _, origin: text(origin.database)),
            ("table", "string", lambda change, _: text(change.table)),
            ("shard", "string", lambda change, _: text(_shard(change))),
            ("vgtid", "string", lambda change, origin: text(_vgtid(change, origin))),
        ),
    ),
    "dynamodb": (
        "relay.connector.dynamodb",
        (
            ("table", "string", lambda change, _: text(change.table)),
            ("shard", _TEXT, lambda change, _: optional(_shard(change) or None, text)),
        ),
    ),
}


def value_schema(config: Config, table: TableSchema) -> dict[str, Any]:
    """Return the schema of a table's values on its topic, in the envelope that the config chooses."""
    entry = next(each for each in config.sources if each.name == table.source)
    if not entry.is_debezium:
        return change_schema(table)
    return DebeziumEncoder(table, config.topic(table.table), SourceInfo.of(entry)).value_schema


class DebeziumEncoder:
    """The records of one table: ``key_schema`` and ``value_schema``, and their bytes without headers.

    ``typed_key``: converts the values of a key into values as a row has them. It raises ValueError.
    """

    def __init__(self, table: TableSchema, topic: str, origin: SourceInfo, typed_key: TypedKey = dict) -> None:
        self._origin = origin
        self._typed_key = typed_key
        details, row = dict(table.details), {column.name: column for column in table.row or ()}
        columns = {
            name: (each.type, connect_type(each.type, each.sql, details.get(name, ""))) for name, each in row.items()
        }
        place = ".".join(map(avro_name, topic.split(".")))
        if problem := one_name([*(column.name for column in table.key), *row]):  # I8
            raise RelayError(f"topic {topic}: {problem}")
        self._key: list[tuple[str, Writer]] = []
        fields = []
        for column in table.key:
            kind, found = columns.get(column.name) or _key_type(column.type, column.sql)
            write = _DYNAMODB_KEYS.get(kind) or connect_values.required(kind, found)
            self._key.append((column.name, write))
            fields.append(_field(avro_name(column.name), found.avro))
        self.key_schema = _record(f"{place}.Key", fields)
        image: Any = connect_type(ColumnKind.JSON).avro
        self._row: list[tuple[str, Writer]] | None = None
        if table.row is not None:
            in_key = {column.name for column in table.key}
            writers = {name: connect_values.required if name in in_key else connect_values.optional for name in row}
            self._row = [(name, writers[name](*each)) for name, each in columns.items()]
            values = [
                _field(avro_name(name), each[1].avro, optional=name not in in_key) for name, each in columns.items()
            ]
            image = _record(f"{place}.Value", _once(values))
        after = f"{place}.Value" if table.row is not None else image
        self.value_schema = _envelope(place, image, after, origin)
        said = text(origin.version) + text(origin.connector) + text(origin.name)
        database = text(origin.database if origin.connector == "mysql" else "")
        snapshot, sequence = b"\x00" + text("false"), origin.connector == "dynamodb"
        extra = [write for _, _, write in _SOURCES[origin.connector][1]]

        def source(change: Change) -> bytes:
            at = change.committed_at
            position = change.token.position if sequence and change.token is not None else None
            times = PRESENT + long(at) + PRESENT + long(at * 1000)
            common = said + long(at // 1000) + snapshot + database + optional(position, text) + times
            return common + b"".join([write(change, origin) for write in extra])

        self._source = source

    def key(self, change: Change) -> bytes:
        """Return the body of the record key. Raises `Unencodable`."""
        try:
            key = self._typed_key(change.key or {})
            return b"".join([write(key[name]) for name, write in self._key])
        except FAULTS as fault:
            raise Unencodable(refusal(change, f"its key: {fault}", _MANNER), in_key=True) from fault

    def value(self, change: Change) -> bytes:
        """Return the body of the value. Raises `Unencodable`, naming the key and the column."""
        at = change.relayed_at
        try:
            fields = (
                self._image(change.old, "old"),
                self._image(change.new, "new"),
                self._source(change),
                NULL,
                text(_OPERATIONS[change.operation]),
                PRESENT + long(at // 1000) + PRESENT + long(at) + PRESENT + long(at * 1000),
            )
        except FAULTS as fault:
            raise Unencodable(refusal(change, fault, _MANNER), in_key=False) from fault
        return b"".join(fields)

    def _image(self, image: Any, which: str) -> bytes:
        if image is None:
            return NULL
        if isinstance(image, Uncarriable):
            raise ValueError(image.reason)
        return PRESENT + (text(image) if self._row is None else row_bytes(self._row, image, which))


def _key_type(kind: str, sql: str) -> tuple[str, ConnectType]:
    if kind in _DYNAMODB_KEYS:
        return kind, ConnectType("bytes" if kind == "B" else "string")
    return kind, connect_type(kind, sql)


def _shard(change: Change) -> str:
    return change.token.shard.split("/", 2)[2] if change.token is not None else ""


def _vgtid(change: Change, origin: SourceInfo) -> str:
    if change.token is None:
        return "[]"
    place = {"keyspace": origin.database, "shard": _shard(change), "gtid": change.token.position}
    return orjson.dumps([place]).decode()


def _record(full_name: str, fields: list[dict[str, Any]], version: int | None = None) -> dict[str, Any]:
    namespace, _, name = full_name.rpartition(".")
    record: dict[str, Any] = {"type": "record", "name": name, "namespace": namespace, "fields": fields}
    return record | ({"connect.version": version} if version else {}) | {"connect.name": full_name}


def _once(fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Name the record of a geometry where it was defined before, since Avro takes each definition once."""
    seen = False
    for field in fields:
        kind = field["type"]
        found = kind[1] if isinstance(kind, list) else kind
        if isinstance(found, Mapping) and found.get("connect.name") == Semantic.GEOMETRY:
            if seen:
                field["type"] = ["null", str(Semantic.GEOMETRY)]
            seen = True
    return fields


def _envelope(place: str, image: Any, after: Any, origin: SourceInfo) -> dict[str, Any]:
    package, extra = _SOURCES[origin.connector]
    flag = {"connect.version": 1, "connect.parameters": {"allowed": _SNAPSHOT}, "connect.default": "false"}
    snapshot = {"type": "string", **flag, "connect.name": str(Semantic.ENUM)}
    common: list[tuple[str, Any]] = [
        ("version", "string"),
        ("connector", "string"),
        ("name", "string"),
        ("ts_ms", "long"),
        ("snapshot", [snapshot, "null"]),
        ("db", "string"),
        ("sequence", _TEXT),
        ("ts_us", _LONG),
        ("ts_ns", _LONG),
        *((name, kind) for name, kind, _ in extra),
    ]
    block = [("id", "string"), ("total_order", "long"), ("data_collection_order", "long")]
    transaction = _record("event.block", [_field(*each) for each in block], 1)
    fields = [
        ("before", ["null", image]),
        ("after", ["null", after]),
        ("source", _record(f"{package}.Source", [_field(*each) for each in common], 1)),
        ("transaction", ["null", transaction]),
        ("op", "string"),
        *((name, _LONG) for name in ("ts_ms", "ts_us", "ts_ns")),
    ]
    return _record(f"{place}.Envelope", [_field(*each) for each in fields], 2)


def _field(name: str, kind: Any, *, optional: bool = False) -> dict[str, Any]:
    kind = ["null", kind] if optional else kind
    if not isinstance(kind, list):
        return {"name": name, "type": kind}
    return {"name": name, "type": kind, "default": None if kind[0] == "null" else kind[0]["connect.default"]}
