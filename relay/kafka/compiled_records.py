"""The compiled writer of the records of one table. It writes what it can, and leaves all else to ``topic_writer``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from relay import native
from relay.avro.compiled_fields import fields_of
from relay.kafka.keys import KeyCodec
from relay.table import KeyColumn, TableSchema
from relay.types.columns import ColumnKind

if TYPE_CHECKING:
    from relay.native._core import RecordWriter

# By the type of a key column, whose canonical bytes it makes itself.
_HASHED: dict[str, str] = {
    "S": "text",
    "N": "text",
    ColumnKind.STRING: "text",
    "B": "bytes",
    ColumnKind.BYTES: "bytes",
    ColumnKind.INT: "int",
    ColumnKind.LONG: "int",
}


def compiled_records(
    schema: Mapping[str, Any], header: bytes, table: TableSchema, codec: KeyCodec, partitions: int, largest: int
) -> RecordWriter | None:
    """Return the writer, or None if the installation has no compiled core.

    ``schema``, ``header``: as for ``ChangeEncoder``. ``largest``: bytes of value, key and token of a record.
    """
    if (core := native.core()) is None:
        return None
    fields = {field["name"]: field["type"] for field in schema["fields"]}
    row, key = fields_of(schema)
    return core.RecordWriter(
        header=header,
        key=key,
        row=row,
        operations=fields["operation"]["symbols"],
        images=fields["images"]["symbols"],
        hashed=_hashed(table.key[: table.hash_columns]) if codec.mode == "hash" else None,
        codec=codec.hash_and_record_key,
        partitions=partitions,
        largest=max(0, largest),
    )


def _hashed(key: Sequence[KeyColumn]) -> list[tuple[str, str]] | None:
    """Return the columns whose bytes are the key, or None if one of them is of a rare type."""
    if any(column.type not in _HASHED for column in key):
        return None
    return [(column.name, _HASHED[column.type]) for column in key]
