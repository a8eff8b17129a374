"""What the compiled core is told about the rows of a binlog. ``relay.mysql.binlog.rows`` reads all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from relay.avro.compiled_fields import compiled_fields
from relay.mysql.binlog import table_map
from relay.mysql.binlog.rows import ColumnReader, RowDecoder
from relay.mysql.binlog.table_map import ColumnLayout
from relay.mysql_dialect.charsets import BINARY, is_utf8
from relay.mysql_dialect.compiled_changes import Stored, compiled_rows
from relay.mysql_dialect.tables import Row, Table
from relay.types.columns import MAX_AVRO_PRECISION

if TYPE_CHECKING:
    from relay.native._core import CompiledRows

_FORMS = {
    table_map.YEAR: "year",
    table_map.DOUBLE: "double",
    table_map.BIT: "bits",
    table_map.GEOMETRY: "bytes",
    table_map.VECTOR: "bytes",
    table_map.DATE: "date",
    table_map.NEWDATE: "date",
    table_map.DATETIME2: "datetime",
    table_map.TIME2: "time",
    table_map.TIMESTAMP2: "timestamp",
    table_map.ENUM: "enum",
}
_INTEGERS = (table_map.TINY, table_map.SHORT, table_map.INT24, table_map.LONG, table_map.LONGLONG)
_TEXTS = (table_map.VARCHAR, table_map.VAR_STRING, table_map.STRING, table_map.BLOB)


def rows_of(source: str, shard: str, table: Table, decoder: RowDecoder) -> CompiledRows | None:
    """Return how the core takes the rows that ``decoder`` reads; None if it does not. ``shard``: globally qualified."""
    if decoder.table.hidden:
        return None

    def read(raw: bytes) -> Row:
        ((_, row),) = decoder.inserts(raw, 0, len(raw))
        assert row is not None
        return row

    columns = zip(decoder.table.columns, decoder.readers, strict=True)
    cells = [(_stored(column, reader), _value(reader), False, False) for column, reader in columns]
    try:
        return compiled_rows(table, source, shard, cells, compiled_fields(table.schema), read)
    except ValueError:  # no value of a column has the size that its TABLE_MAP says, so Python reads or refuses them
        return None


def _stored(column: ColumnLayout, reader: ColumnReader) -> Stored:
    kind, width = column.kind, column.width
    form = _FORMS.get(kind, "other_text" if reader.of_length else "other")
    if kind in _INTEGERS:
        form = "unsigned" if column.unsigned else "signed"
    elif kind == table_map.NEWDECIMAL and column.precision <= MAX_AVRO_PRECISION:
        form, width = "decimal", column.precision
    elif kind in _TEXTS and is_utf8(column.charset):
        form = "text"
    elif kind in _TEXTS and column.charset == BINARY:
        form = "padded" if kind == table_map.STRING else "bytes"
    return form, reader.size, width, column.decimals, reader.members


def _value(reader: ColumnReader) -> Callable[[bytes], Any]:
    """Return what decodes a value of a column with the length before it."""
    return lambda raw: reader.read(raw, 0)[0]
