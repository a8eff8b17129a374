"""Keys and images as typed structs: one type for all versions of a table's schema."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, StructField, StructType

from relay.errors import ConfigError
from relay.types.columns import MAX_AVRO_PRECISION
from spark_consumers.records import Layout, RecordField
from spark_consumers.sinks.columns import merged
from spark_consumers.sinks.delta import sql_type

_PADDING = r"\.0*$|(\.\d*[1-9])0+$"


def unpadded(text: Column) -> Column:
    """Return the text of a number or time without the zeros at the end of its decimals.

    I7: it is part of a key, and a row keeps its key when the type of the column gets more decimals.
    """
    return F.regexp_replace(text, _PADDING, "$1")


@dataclass(frozen=True, slots=True)
class TypedTable:
    """The types of one table's key and rows. Rows are text for DynamoDB's items without ``columns:``."""

    key: StructType
    row: StructType | StringType

    @classmethod
    def of(cls, table: str, versions: Sequence[tuple[Layout, StructType]]) -> TypedTable:
        """Return the types that hold every value of all versions exactly (I8).

        ``versions``: the layout and the decoded type of each schema. Raises ``ConfigError`` if there is none.
        """
        keys = [(layout.key, _struct(decoded, "key")) for layout, decoded in versions]
        rows = [(layout.row, _struct(decoded, "old")) for layout, decoded in versions if layout.row is not None]
        if rows and len(rows) < len(versions):
            raise ConfigError(
                f"table {table}: some of its changes have typed columns and others do not: read them as JSON, "
                "without `table`"
            )
        return cls(_union(table, keys), _union(table, rows) if rows else StringType())

    def of_key(self, key: Column, layout: Layout) -> Column:
        return _cast(key, layout.key, self.key, in_key=True)

    def of_image(self, image: Column, layout: Layout) -> Column:
        if layout.row is None or isinstance(self.row, StringType):
            return image
        return _cast(image, layout.row, self.row)


def _struct(decoded: StructType, part: str) -> StructType:
    found = decoded[part].dataType
    assert isinstance(found, StructType)
    return found


def _union(table: str, versions: Iterable[tuple[Sequence[RecordField], StructType]]) -> StructType:
    found: dict[str, list[tuple[str, DataType]]] = {}
    for fields, decoded in versions:
        for each in fields:
            found.setdefault(each.name, []).append((each.kind, decoded[each.avro].dataType))
    return StructType([StructField(name, _type(table, name, of_column)) for name, of_column in found.items()])


def _type(table: str, column: str, versions: Sequence[tuple[str, DataType]]) -> DataType:
    kind, decoded = versions[0]
    if all(other == decoded for _, other in versions):
        return decoded
    for other, _ in versions:
        wider = merged(kind, other, MAX_AVRO_PRECISION)
        if wider is None:
            had = " and ".join(dict.fromkeys(kind for kind, _ in versions))
            raise ConfigError(
                f"table {table}: column {column} has been {had}, which no type holds exactly: read it as JSON, without "
                "`table`"
            )
        kind = wider
    return DataType.fromDDL(sql_type(kind))


def _cast(record: Column, fields: Sequence[RecordField], wanted: StructType, *, in_key: bool = False) -> Column:
    """Return a record under the source's names; columns that its version of the table does not have are null."""
    found = {each.name: record[each.avro] for each in fields}
    if in_key:
        found |= {each.name: unpadded(found[each.name]) for each in fields if each.is_padded and each.type == "string"}
    values = [found.get(each.name, F.lit(None)).cast(each.dataType).alias(each.name) for each in wanted]
    return F.when(record.isNotNull(), F.struct(*values))
