"""The bytes of a Kafka value back to the change, with the names it had at the source.

Never decodes what it does not know: a value of unknown framing or schema is an error, and so is a body that
does not end where its schema ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import fastavro

from relay.avro.framing import UnknownFraming, split
from relay.avro.schema import source_name
from relay.errors import RelayError

__all__ = ["Undecodable", "UnknownFraming", "UnknownSchema", "WriterSchemas", "decode"]


class UnknownSchema(RelayError):
    """A value whose schema is not known, even after looking again. Fail, and try again later."""


class Undecodable(RelayError):
    """A value that is not what its schema says: damaged."""


class WriterSchemas(Protocol):
    """Where schemas are looked up: `TopicSchemas` or `RegistrySchemas`."""

    def lookup(self, header: bytes) -> Mapping[str, Any] | None: ...


class _BodyReader:
    """Reads the bodies one schema wrote."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = fastavro.parse_schema(dict(schema))
        fields = {field["name"]: field["type"] for field in schema["fields"]}
        self._names = {
            part: {field["name"]: source_name(field) for field in fields[kept][1]["fields"]}
            for part, kept in (("key", "key"), ("old", "old"), ("new", "old"))
            if fields[kept][1] != "string"
        }

    def read(self, body: bytes) -> dict[str, Any]:
        stream = BytesIO(body)
        try:
            change: Any = fastavro.schemaless_reader(stream, self._schema, None)
        except Exception as fault:
            # Which exceptions damaged bytes lead to is fastavro's affair: EOFError, IndexError, UnicodeError ...
            raise Undecodable(f"a value of {len(body)} bytes is damaged: {fault!r}") from fault
        if stream.tell() != len(body):
            raise Undecodable(f"a value is damaged: its schema ends after {stream.tell()} of {len(body)} bytes")
        for part, names in self._names.items():
            if change[part] is not None:
                change[part] = {names[name]: value for name, value in change[part].items()}
        return dict(change)


_readers: WeakKeyDictionary[WriterSchemas, dict[bytes, _BodyReader]] = WeakKeyDictionary()


def decode(schemas: WriterSchemas, value: bytes) -> dict[str, Any]:
    """Give a change by its Avro field names.

    ``key`` and typed images are dicts by original column name, images of DynamoDB items stay the JSON text
    they are, enums are text, decimals `Decimal`, times aware datetimes. Raises `UnknownFraming`,
    `UnknownSchema` or `Undecodable`.
    """
    header, body = split(value)
    readers = _readers.setdefault(schemas, {})
    reader = readers.get(header)
    if reader is None:
        schema = schemas.lookup(header)
        if schema is None:
            raise UnknownSchema(f"no schema is known for values beginning with {header.hex()}")
        reader = readers[header] = _BodyReader(schema)
    return reader.read(body)
