"""Decoding of Kafka values to changes, with the column names of the source. It never guesses."""

from collections.abc import Callable, Collection, Mapping
from io import BytesIO
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import fastavro
import orjson

from relay.avro.framing import UnknownFraming, split
from relay.avro.part import part_reader
from relay.avro.schema import columns_of_row, source_name
from relay.errors import RelayError
from relay.token import EventToken, OriginToken
from relay.types.columns import ColumnKind
from relay.types.items import item_values, one_value

__all__ = ["Undecodable", "UnknownFraming", "UnknownSchema", "WriterSchemas", "decode", "part_decoder", "token_of"]


class UnknownSchema(RelayError):
    """The value's schema is not known, even after reading the schemas again. Fail, and retry later."""


class Undecodable(RelayError):
    """The value does not match its schema: it is damaged."""


class WriterSchemas(Protocol):
    """Looks up schemas: `TopicSchemas` or `RegistrySchemas`."""

    def lookup(self, header: bytes) -> Mapping[str, Any] | None: ...


_LOADS: dict[str, Callable[[str], Any]] = {
    ColumnKind.JSON: lambda text: one_value(orjson.loads(text)),
    ColumnKind.REST: item_values,
}


class _BodyReader:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema: Any = fastavro.parse_schema(dict(schema))
        fields = {field["name"]: field["type"] for field in schema["fields"]}
        self._names = {
            part: {field["name"]: source_name(field) for field in fields[kept][1]["fields"]}
            for part, kept in (("key", "key"), ("old", "old"), ("new", "old"))
            if fields[kept][1] != "string"
        }
        self._loads = [(n, _LOADS[kind]) for n, kind in columns_of_row(schema) or () if kind in _LOADS]

    def read(self, body: bytes) -> dict[str, Any]:
        stream = BytesIO(body)
        try:
            change: Any = fastavro.schemaless_reader(stream, self.schema, None)
        except Exception as fault:
            # fastavro raises many types for damaged bytes: EOFError, IndexError, UnicodeError ...
            raise Undecodable(f"a value of {len(body)} bytes is damaged: {fault!r}") from fault
        if stream.tell() != len(body):
            raise Undecodable(f"a value is damaged: its schema ends after {stream.tell()} of {len(body)} bytes")
        for part, names in self._names.items():
            if change[part] is not None:
                change[part] = {names[name]: value for name, value in change[part].items()}
        return dict(change)

    def load_items(self, change: dict[str, Any]) -> None:
        """Turn DynamoDB-typed JSON in the images into Python values. Raises `Undecodable`."""
        try:
            for part in ("old", "new"):
                image = change[part]
                if isinstance(image, str):
                    change[part] = item_values(image)
                elif image is not None:
                    image |= {name: load(image[name]) for name, load in self._loads if image[name] is not None}
        except ValueError as fault:
            raise Undecodable(f"an image is damaged: {fault}") from fault


# Shared by the threads: entries are only added, each in one step.
_readers: WeakKeyDictionary[WriterSchemas, dict[bytes, _BodyReader]] = WeakKeyDictionary()


def decode(schemas: WriterSchemas, value: bytes, *, typed_json: bool = True) -> dict[str, Any]:
    """Return the change in ``value``, the bytes of a Kafka value, as a dict by Avro field name.

    ``key`` and typed images are dicts by original column name, images of DynamoDB items are DynamoDB-typed JSON text,
    enums are text, decimals `Decimal`, timestamps aware datetimes. Without ``typed_json``, that text, also in columns,
    becomes Python values as `item_values` returns them. Raises `UnknownFraming`, `UnknownSchema` or `Undecodable`, and
    the errors of ``schemas.lookup``.
    """
    header, body = split(value)
    readers = _readers.setdefault(schemas, {})
    reader = readers.get(header)
    if reader is None:
        schema = schemas.lookup(header)
        if schema is None:
            raise UnknownSchema(
                f"no schema is known for values that start with {header.hex()}: check that `name` and "
                "`schema_registry` in the config match those of the relay that wrote these values, then retry"
            )
        reader = readers[header] = _BodyReader(schema)
    change = reader.read(body)
    if not typed_json:
        reader.load_items(change)
    return change


def part_decoder(schema: Mapping[str, Any], columns: Collection[str]) -> Callable[[bytes], dict[str, Any]]:
    """Return a function that reads a part of a change from an Avro body, several times as fast as `decode`.

    The part is ``operation``, ``key``, ``token``, ``old`` and ``new``, with only these ``columns`` in the images. An
    image of a DynamoDB item is read if there are any columns, otherwise it is "". The decoder raises `Undecodable`, but
    may not notice damage in what it skips.
    """
    reader = _BodyReader(schema)
    read = part_reader(reader.schema, columns)

    def decode_part(body: bytes) -> dict[str, Any]:
        try:
            return read(body)
        except Exception:
            return reader.read(body)  # which reports the damage, if there is any

    return decode_part


def token_of(fields: Mapping[str, Any] | None) -> EventToken | None:
    if fields is None:
        return None
    origin = fields["origin"]
    return EventToken(
        fields["timestamp"], fields["shard"], fields["position"], None if origin is None else OriginToken(**origin)
    )
