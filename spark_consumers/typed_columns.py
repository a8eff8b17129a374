"""Keys and images as typed structs: one type for all versions of a table's schema."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from relay.errors import ConfigError
from spark_consumers.records import Layout, RecordField

_DIGITS = {IntegerType(): 10, LongType(): 19}
_MOST_DIGITS = 38  # of Spark's decimals


@dataclass(frozen=True, slots=True)
class TypedTable:
    """The types of one table: of its key, and of its rows, which are text for DynamoDB's items without ``columns:``."""

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
        return _cast(key, layout.key, self.key)

    def of_image(self, image: Column, layout: Layout) -> Column:
        if layout.row is None or isinstance(self.row, StringType):
            return image
        return _cast(image, layout.row, self.row)


def _struct(decoded: StructType, part: str) -> StructType:
    found = decoded[part].dataType
    assert isinstance(found, StructType)
    return found


def _union(table: str, versions: Iterable[tuple[Sequence[RecordField], StructType]]) -> StructType:
    types: dict[str, list[DataType]] = {}
    for fields, decoded in versions:
        for each in fields:
            types.setdefault(each.name, []).append(decoded[each.avro].dataType)
    columns = []
    for name, of_column in types.items():
        kind: DataType | None = of_column[0]
        for other in of_column[1:]:
            kind = None if kind is None else _both(kind, other)
        if kind is None:
            had = " and ".join(dict.fromkeys(each.simpleString() for each in of_column))
            raise ConfigError(
                f"table {table}: column {name} has been {had}, which no type holds exactly: read it as JSON, without "
                "`table`"
            )
        columns.append(StructField(name, kind))
    return StructType(columns)


def _both(a: DataType, b: DataType) -> DataType | None:
    """Return the type that holds every value of both exactly, None if there is none."""
    if a == b:
        return a
    if {a, b} == {IntegerType(), LongType()}:
        return LongType()
    if {a, b} in ({FloatType(), DoubleType()}, {IntegerType(), DoubleType()}):
        return DoubleType()
    decimals = [_decimal(kind) for kind in (a, b)]
    if None in decimals:
        return None
    scale = max(each.scale for each in decimals if each)
    whole = max(each.precision - each.scale for each in decimals if each)
    return DecimalType(whole + scale, scale) if whole + scale <= _MOST_DIGITS else None


def _decimal(kind: DataType) -> DecimalType | None:
    if isinstance(kind, DecimalType):
        return kind
    digits = _DIGITS.get(kind)  # type: ignore[call-overload]
    return DecimalType(digits, 0) if digits else None


def _cast(record: Column, fields: Sequence[RecordField], wanted: StructType) -> Column:
    """Return a record under the source's names; columns that its version of the table does not have are null."""
    avro = {each.name: each.avro for each in fields}
    values = [
        (record[avro[each.name]] if each.name in avro else F.lit(None)).cast(each.dataType).alias(each.name)
        for each in wanted
    ]
    return F.when(record.isNotNull(), F.struct(*values))
